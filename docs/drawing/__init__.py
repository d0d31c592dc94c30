"""The figures of the pages on methods, a function each: docs/draw.py lists and saves them."""
