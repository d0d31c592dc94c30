"""User-defined denoisers for tests."""

from __future__ import annotations

import torch
from torch import Tensor


def mix(images: Tensor, strength: float) -> Tensor:
    """Return images mixed with their mean over 5 points along each axis."""
    count = images.ndim - 2
    pool = torch.nn.functional.avg_pool2d if count == 2 else torch.nn.functional.avg_pool3d
    padded = torch.nn.functional.pad(images, (2, 2) * count, mode="replicate")
    return (1.0 - strength) * images + strength * pool(padded, 5, stride=1)


def shrink(images: Tensor, strength: float) -> Tensor:  # noqa: ARG001
    """Return images of a wrong shape."""
    return images[..., 1:, :]


def lose(images: Tensor, strength: float) -> Tensor:  # noqa: ARG001
    """Return NaN."""
    return images * torch.nan


nothing_to_call = 3
