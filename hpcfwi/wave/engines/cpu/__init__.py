"""The engine for CPUs, compiled by Numba.

`engine` has the functions of an engine, and shares out shots among threads. A `shot` is simulated
by one of the `keepers`, which keep what its way back needs. The compiled time loops are `sweeps`,
of the numbers in `scheme`; `rows` has what they do along a row. Arrays have the layout of `layout`,
`windows` say where the wave may be, `packing` puts kept fields in fewer bits, and in `team` threads
that share a shot wait for one another.
"""
