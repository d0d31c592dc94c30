"""The `cpu` engine: sweeps compiled by Numba, bit-reproducible, in little memory.

`engine` has the functions of an engine and the estimates of what they take. It runs shots with what
`histories` keep of them. Time loops are in `sweeps`, the arithmetic along a row in `kernels`, the
arrays and tables in `layout`; `windows` has the cells that a wave may have reached and what is kept
of them.
"""
