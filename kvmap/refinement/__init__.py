"""Refinement: an exported mapper trained further by what the target makes of its KV."""
