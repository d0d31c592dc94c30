"""Measurements of this machine: what `hpcfwi bench` runs. What only developers run is elsewhere.

Above `inversion` in the order of imports, because what an inversion does is measured here.
"""
