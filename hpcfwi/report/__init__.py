"""Figures, the log, the metrics and the page of a run."""
