"""What fits into memory, reckoned before anything is started."""
