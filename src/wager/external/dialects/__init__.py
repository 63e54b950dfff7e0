"""What each engine calls things: one module per engine, reading and writing its options."""
