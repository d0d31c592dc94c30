"""The figures of the pages on methods, one function each, which docs/draw.py lists and saves."""
