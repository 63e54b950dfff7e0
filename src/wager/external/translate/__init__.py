"""Speculation options of any engine, explained and written anew."""
