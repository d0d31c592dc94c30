"""The `cpu` engine: sweeps compiled by Numba, bit-reproducible, in little memory.

`engine` is the engine of the acoustic equation, with the data that a shot stores for its backward
pass. Its time loops are in `sweeps`, and the arithmetic along a row in `kernels`. `staggered` is
the engine of first-order equations, with the loops in `staggered_sweeps`, `staggered_blocks` and
`staggered_rows`, which go through `staggered_tables`.

Both use the arrays of `layout`, the cells that a wave may have reached and their stores in
`windows`, and the threads and ranks that share a shot in `teams`. `estimates` has the memory and
the cells that shots take, and `compilation` the loops on disk.
"""
