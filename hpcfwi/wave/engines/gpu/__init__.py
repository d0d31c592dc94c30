"""The engine for GPUs, in Triton.

`engine` has the functions of an engine, and imports what needs Triton only when it is used. A batch
of shots has a `blueprint`, which lists its arrays, and a `sweep`, which goes forwards and backwards
in them: its steps launch `kernels`, and a `loop` repeats them. `cells` says where things lie in a
card's memory, and `tiles` which shape makes the largest kernel fastest. `disk` keeps what is
compiled.
"""
