"""Which rank computes which shot. Which shots a step takes is chosen in `inversion.sampler`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def split_shots(shots: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """One part of `shots` (shot,) for each of `size` ranks, in order.

    The parts' lengths differ by one at most, the longer ones first, as in
    `torch.tensor_split`; with fewer shots than ranks the last parts are empty.
    """
    return np.array_split(shots, size)
