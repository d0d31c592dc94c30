"""The algorithm of the inversion: where waves, ranks and data meet."""
