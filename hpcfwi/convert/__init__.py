"""Other people's files: SEG-Y, NumPy's and raw arrays, from and to models and gathers.

Imported by `hpcfwi convert` alone, and segyio by nothing else.
"""
