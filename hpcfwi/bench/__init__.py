"""The measurements of a machine by `hpcfwi bench`; benchmarks for developers are in `benchmarks`.

This package may import `inversion`, because it measures the parts of an inversion.
"""
