"""Which method and draft length pay, found by estimates and a few real runs."""
