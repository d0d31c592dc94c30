"""Known models, named in `registry.DATASETS`: found, fetched or computed.

`library` has the published ones, and makes models of all; `dome` and `section` are computed.
"""
