"""How far simulated data are from observed ones: one misfit a file, named in `registry.MISFITS`.

A misfit is a function of simulated and observed traces, both (shot, receiver, time), and of their
sampling dt (s). It returns one value a shot, (shot,) in float64, and the gradient of these with
respect to the simulated traces: the source of the adjoint wave. A shot's results must not depend on
the other shots. What is not finite is dealt with by `shots`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torch import Tensor

from hpcfwi.registry import MISFITS, find

Misfit = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]


def find_misfit(name: str) -> Misfit:
    """The misfit that an input names."""
    return cast(Misfit, find(MISFITS[name]))
