"""The wave operator as a module: a model that torch's optimisers and wrappers know.

The operator itself is in `acoustic`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.wave.acoustic import acoustic, require_tensor


class Acoustic(torch.nn.Module):
    """Traces of shots in a model that is its parameter `vp`.

    vp: (nz, nx) or (nz, ny, nx), m/s; spacing: of its grid, m; dt: of wavelets and traces, s;
    options: those of `acoustic`, by their names. Give `max_velocity` and `boundary_frequency` where
    parts of a batch are to be simulated alike.
    """

    def __init__(
        self, vp: Tensor, spacing: float | Sequence[float], dt: float, **options: Any
    ) -> None:
        super().__init__()
        require_tensor(vp, "vp")
        self.vp = torch.nn.Parameter(vp.detach().clone())
        self.spacing, self.dt, self.options = spacing, dt, options

    def forward(
        self,
        wavelet: Tensor,
        sources: Tensor | NDArray[np.float64],
        receivers: Tensor | NDArray[np.float64],
    ) -> Tensor:
        """Traces (shot, receiver, time) of these shots, as `acoustic` has them.

        Under `DataParallel`, which cuts every argument along its first axis, each of them needs
        that of shots. Without shots there are no traces, and gradients are zero.
        """
        data: Tensor = acoustic(
            self.vp, self.spacing, self.dt, wavelet, sources, receivers, **self.options
        )
        return data


def share_of_mean(total: Tensor, shots: int, ranks: int) -> Tensor:
    """What a rank passes to `backward` under DistributedDataParallel, for the mean over all shots.

    total: the sum of this rank's misfits, whatever its part; shots: of all ranks together. The
    wrapper averages gradients over ranks, as if all had as many shots.
    """
    return total * (ranks / shots)
