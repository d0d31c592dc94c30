"""Files of models, gathers and checkpoints; independent of `wave`."""
