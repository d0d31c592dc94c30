"""Files: models, gathers, checkpoints. Knows nothing of waves."""
