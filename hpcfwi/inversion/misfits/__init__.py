"""Misfits of simulated and observed data: one a file, named in `registry.MISFITS`.

A misfit is a function of simulated and observed traces, both (shot, receiver, time), of their
sampling dt (s), and of keys of its own. It returns one value a shot, (shot,) in float64, and the
gradient of these with respect to the simulated traces: the source of the adjoint wave. A shot's
results must not depend on the other shots. The gradient is differentiated in its turn, by torch's
forward mode: it must not be cut from the simulated traces. What is not finite is dealt with by
`objective`. `traces` makes all this of a differentiable function.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Misfit = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]
