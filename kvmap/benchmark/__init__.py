"""How fast: every way of answering on the same prompts, in one run."""
