"""Tables of numbers as the kernels take them, and how they come to the device.

Which arrays of the fields there are is in `blueprint`, where cells lie in memory in `cells`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.wave import stencil
from hpcfwi.wave.engines.gpu.cells import Layout
from hpcfwi.wave.problem import Problem


def weigh_differences(problem: Problem) -> NDArray[np.float64]:
    """A row for each of the axes z, y, x: second differences from 0 on, first ones from 1 on."""
    radius = problem.order // 2
    rows = np.zeros((3, 2 * radius + 1))
    axes = (0, 2) if problem.speed.ndim == 2 else (0, 1, 2)
    for axis, h in zip(axes, problem.spacing, strict=True):
        rows[axis, : radius + 1] = stencil.second_difference(problem.order, h)
        rows[axis, radius + 1 :] = stencil.first_difference(problem.order, h)[1:]
    return rows


def lay_out_profiles(problem: Problem, layout: Layout) -> list[NDArray[np.float64]]:
    """a and b of the axes z, y, x, one behind the other, each between `radius` zeros."""
    given = [(p.a, p.b) for p in problem.scheme.profiles]
    if layout.ndim == 2:
        given.insert(1, (np.zeros(1), np.zeros(1)))
    return [
        np.concatenate([np.pad(values, layout.radius) for values in profile])
        for profile in zip(*given, strict=True)
    ]


def upload(target: Tensor, table: NDArray[Any]) -> None:
    """Copy a table to a device; to a card from pinned memory, so that the host need not wait.

    In the target's precision before: torch converts what it copies in memory that is not pinned.
    """
    given = torch.from_numpy(table).to(target.dtype)
    target.copy_(given.pin_memory() if target.is_cuda else given, non_blocking=True)
