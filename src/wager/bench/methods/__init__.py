"""Which ways of drafting exist for a model."""
