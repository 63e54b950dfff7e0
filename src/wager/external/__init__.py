"""Other engines: their options, and how to start, ask, read and stop them."""
