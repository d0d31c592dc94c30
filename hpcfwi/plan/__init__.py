"""Predictions about a run before it starts: time, memory, and problems with input and data."""
