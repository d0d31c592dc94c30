"""The engine for CPUs, compiled by Numba.

`engine` has the functions of an engine, and shares out shots among threads; `keepers` simulate one
shot and keep what its way back needs; `sweeps` are the compiled time loops, and `rows` what they do
along a row. Arrays have the layout of `layout`; `windows` say where the wave may be, `packing` puts
kept fields in fewer bits, and in `team` threads that share a shot wait for one another.
"""
