"""The algorithm of the inversion, which combines waves, ranks and data."""
