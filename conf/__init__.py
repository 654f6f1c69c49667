"""The Hydra configs, importable so that an installed kvmap finds them."""
