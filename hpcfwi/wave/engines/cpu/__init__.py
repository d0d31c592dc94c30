"""The engine for CPUs, compiled by Numba.

`engine` has the functions of an engine, and shares out shots among threads. A shot is simulated by
one of the `histories`, which keep what its way back needs. The compiled time loops are `sweeps`,
made of `steps`, whose arithmetic along a row is in `rows`. Their arrays and tables are described in
`layout`, `windows` say where the wave may be, `packing` is what kept fields look like, in memory of
the pool in `buffers`, and in `threads` those that share a shot wait for one another. `disk` keeps
what is compiled, and what all that takes of memory is estimated in `footprint`.
"""
