"""What a mapper is worth: arms, tasks, statistics, and the evidence that an export carries."""
