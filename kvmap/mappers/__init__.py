"""Mapper families, one module each; a family's name is its module's name."""
