"""Recorded requests and answers, in the shapes that servers write."""
