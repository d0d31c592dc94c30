"""Triton kernels of the `gpu` engine: what happens in one step, for all shots of a batch at once.

A program computes some cells of one shot. No two programs write to the same place, and every sum
has one order, so that a shot's bits depend on nothing but the shot.

Arrays have the layout that `cells` describes: `cell` is an offset in one shot's field, `place` one
in its memory variables. Which kernels run when is in `sweep`.
"""
