"""Measurements for people: one page of HTML, or Markdown."""
