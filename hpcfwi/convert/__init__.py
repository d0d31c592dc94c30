"""Conversion of other programs' files (SEG-Y, NumPy, MATLAB, raw) to models and gathers, and back.

Only `hpcfwi convert` imports this package, and only this package imports segyio.
"""
