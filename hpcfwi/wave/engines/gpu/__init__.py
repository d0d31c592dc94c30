"""The engine for GPUs, in Triton.

`engine` has the functions of an engine, and imports what needs Triton only when it is used; `sweep`
has the arrays and time loops of a batch, and `kernels` what a step consists of. `cells` says where
things lie in a card's memory, and `tiles` which shape makes the largest kernel fastest.
"""
