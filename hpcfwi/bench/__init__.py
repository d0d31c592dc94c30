"""Measurements of this machine: what `hpcfwi bench` runs. Those for developers are in `benchmarks`.

This package is above `inversion` in the order of imports, because it measures what an inversion
does.
"""
