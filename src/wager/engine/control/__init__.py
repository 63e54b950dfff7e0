"""How much of what was proposed is verified: where a bet is taken or not."""
