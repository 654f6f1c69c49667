"""Tasks, one a file: what is asked of an arm, and what is kept of its answer."""
