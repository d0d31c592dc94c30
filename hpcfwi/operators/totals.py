"""The sum of an array's values, where the array is, with the same bits on every rank.

Ranks add up what all of them have, on as many threads as each has, on whatever card: a sum in the
order of a device would be another one. What ranks have different parts of is added up in
`parallel.exact`.
"""

from __future__ import annotations

from math import ceil, log2, prod

import numpy as np
import torch
from torch import Tensor

# Of the 63 bits of a whole number one is spared, as rounding may go up.
BITS = 62
# Each has the bits that the one before leaves over: two have twice as many as a float64.
FOLDS = 2
# What is smaller counts as 0, as the powers of two below it end.
TINY = 2.0**-960


def add_up(values: Tensor, over: tuple[int, ...] | None = None) -> Tensor:
    """The sum of real values over some axes, or all of them, in float64 and on their device.

    On a CPU by NumPy, in an order of its own whatever the threads; elsewhere as `add_whole`.
    """
    over = tuple(range(values.ndim)) if over is None else over
    if not values.is_cpu:
        return add_whole(values, over)
    return torch.as_tensor(values.detach().numpy().sum(axis=over, dtype=np.float64))


def add_whole(values: Tensor, over: tuple[int, ...]) -> Tensor:
    """The sum over some axes by whole numbers, which has the same bits in any order.

    Values are divided by a power of two, which the largest of all sets, and rounded; what that
    leaves over is added up in the same way (Demmel and Nguyen 2013, section 4, with whole numbers
    in place of their bins). The host does not wait for a device. Of values that are not finite the
    sum is none either.
    """
    left = values.detach().double()
    count = prod(left.shape[axis] for axis in over)
    if not left.numel():
        return left.sum(over)
    share = 2.0 ** (ceil(log2(count)) - BITS)
    largest = left.abs().amax()
    total = torch.zeros((), dtype=torch.float64, device=left.device)
    for _ in range(FOLDS):
        size = left.abs().amax().clamp(min=TINY)
        unit = size / torch.frexp(size).mantissa * share
        whole = (left / unit).round()
        total = total + whole.long().sum(over).double() * unit
        left = left - whole * unit
    return torch.where(largest.isfinite(), total, torch.nan)
