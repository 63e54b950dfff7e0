"""What `wager doctor` finds: whether wager runs here, on what, and what else this machine has."""
