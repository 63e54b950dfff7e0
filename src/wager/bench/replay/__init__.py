"""What drafting would have done to recorded answers."""
