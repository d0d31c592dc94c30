"""Predictions of a run before it starts: what it takes, and what would spoil it."""
