"""Files: models, gathers, checkpoints, known datasets. Knows nothing of waves."""
