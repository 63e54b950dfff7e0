"""What is asked: generated prompts, and prompts from files."""
