"""Answering a prompt through a mapped cache."""
