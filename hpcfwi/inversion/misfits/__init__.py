"""Misfits of simulated and observed data: one in each file, named in `registry.MISFITS`.

A misfit is a function of simulated and observed traces, both (shot, receiver, time), of their
sampling dt (s), and of its keys. It returns one value for each shot, (shot,) in float64, and the
gradient of these with respect to the simulated traces, which is the source of the adjoint wave. The
results of a shot must not depend on other shots. The gradient is itself differentiated by torch's
forward mode, so that it must not be detached from the simulated traces. `objective` handles values
that are not finite. `traces` makes a misfit from a differentiable function.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Misfit = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]
