"""The engine for CPUs, compiled by Numba.

`engine` has the functions of an engine, and shares out shots among threads. A `shot` is simulated
by one of the `keepers`, which keep what its way back needs. The compiled time loops are `sweeps`,
made of `steps`, whose numbers are in `scheme` and whose arithmetic along a row is in `rows`. Arrays
have the layout of `layout`, `windows` say where the wave may be, `packing` is what kept fields look
like, in memory of the `shelf`, and in `team` threads that share a shot wait for one another. `disk`
keeps what is compiled, and what all that takes of memory is estimated in `footprint`.
"""
