"""Commands, one file each; heavy imports stay inside them so that ``--help`` answers at once."""
