"""Conversion of other programs' files (SEG-Y, NumPy, MATLAB, raw) to models and gathers, and back.

Only this package imports segyio.
"""
