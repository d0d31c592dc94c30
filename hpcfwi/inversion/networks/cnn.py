"""A network of convolutions, from a fixed random image."""

from __future__ import annotations

from typing import Annotated, cast

import torch
from pydantic import Field
from torch import Tensor, nn

CHANNELS = "Images of each layer."
LEVELS = "Times that the image is doubled, from the random one to the model."


class Cnn(nn.Module):
    """Convolutions and doublings of a small random image that stays as it is.

    The deep image prior (Ulyanov, Vedaldi and Lempitsky 2018), in an inversion as Zhu et al. (2022)
    have it: what convolutions make of noise looks like layers before it looks like noise.
    """

    pointwise = False

    def __init__(
        self,
        shape: tuple[int, ...],
        count: int,
        *,
        channels: Annotated[int, Field(gt=0, le=10_000, description=CHANNELS)] = 32,
        levels: Annotated[int, Field(gt=0, le=10, description=LEVELS)] = 3,
    ) -> None:
        super().__init__()
        convolution = nn.Conv2d if len(shape) == 2 else nn.Conv3d
        self._mode = "bilinear" if len(shape) == 2 else "trilinear"
        self._sizes = [
            tuple(-(-n // 2**level) for n in shape) for level in range(levels - 1, -1, -1)
        ]
        first = tuple(-(-n // 2**levels) for n in shape)
        self.register_buffer("seed", torch.randn(1, channels, *first))
        self.hidden = nn.ModuleList(
            convolution(channels, channels, 3, padding=1, padding_mode="replicate")
            for _ in self._sizes
        )
        self.last = convolution(channels, count, 3, padding=1, padding_mode="replicate")

    def forward(self, coordinates: Tensor) -> Tensor:  # noqa: ARG002
        """Values of the grid's shape and the count, whatever the coordinates."""
        found = cast(Tensor, self.seed)
        for layer, size in zip(self.hidden, self._sizes, strict=True):
            found = nn.functional.interpolate(found, size, mode=self._mode)
            found = nn.functional.leaky_relu(layer(found), 0.1)
        made: Tensor = self.last(found)
        return made[0].movedim(0, -1)
