"""A map of images, such as a denoiser, applied to tiles of the images that are spread over ranks.

The map and the contents of the images are arbitrary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor

from hpcfwi.operators.vectors import gather_outputs
from hpcfwi.parallel.context import Context

Where = tuple[slice, ...]
Named = Literal["overlap", "basic"]


@dataclass(frozen=True)
class Tile:
    """A part of an image.

    window: part of the image that is the input of the map; kept: part of the image in which the
    output is used; weights: of the output, an array for each axis of `kept`, whose product is the
    weight of a point. Weights are divided by their sum over all tiles.
    """

    window: Where
    kept: Where
    weights: tuple[Tensor, ...]


class Tiling(ABC):
    """The division of an image into tiles, and the treatment of a tile before and after the map."""

    @abstractmethod
    def cut(self, shape: tuple[int, ...]) -> list[Tile]:
        """Return the tiles of an image of this shape; each of its points is in at least one."""

    def take(self, image: Tensor, tile: Tile) -> Tensor:
        """Return the input of the map from images (..., y, x): the window of a tile."""
        return image[_last(tile.window)]

    def give(self, made: Tensor, tile: Tile) -> Tensor:
        """Return the part of the map's output that is kept."""
        pairs = zip(tile.kept, tile.window, strict=True)
        inside = tuple(slice(k.start - w.start, k.stop - w.start) for k, w in pairs)
        return made[_last(inside)]


class Overlap(Tiling):
    """Tiles of `patch` points along each axis, whose windows have `overlap` more around them.

    Near the border of two tiles, both are used within an eighth of the overlap on each side, with
    linear weights, so that dependences beyond the overlap cause no edges. The window extends
    `overlap` points further: if no value of the result depends on points farther away, tiles agree
    wherever both are used, and the weights have no effect.

    All windows have the same shape; those at the edges are moved into the image.
    """

    def __init__(self, patch: int, overlap: int) -> None:
        if patch < 1 or overlap < 0:
            raise ValueError(
                f"patch is {patch} and overlap {overlap}; expected at least 1 and 0 points"
            )
        self.patch, self.overlap, self.seam = patch, overlap, overlap // 8

    def cut(self, shape: tuple[int, ...]) -> list[Tile]:
        rows = [
            [self._cut_axis(start, size) for start in range(0, size, self.patch)] for size in shape
        ]
        return [Tile(*zip(*axes, strict=True)) for axes in product(*rows)]

    def _cut_axis(self, start: int, size: int) -> tuple[slice, slice, Tensor]:
        stop, margin = min(start + self.patch, size), self.overlap + self.seam
        width = min(self.patch + 2 * margin, size)
        left = min(max(start - margin, 0), size - width)
        kept = slice(max(start - self.seam, 0), min(stop + self.seam, size))
        points = torch.arange(kept.start, kept.stop, dtype=torch.float64) + 0.5
        weights = torch.ones_like(points)
        if start > 0 and self.seam:
            weights *= ((points - start) / (2 * self.seam) + 0.5).clamp(max=1.0)
        if stop < size and self.seam:
            weights *= ((stop - points) / (2 * self.seam) + 0.5).clamp(max=1.0)
        return slice(left, left + width), kept, weights


class Tiles:
    """A map of images that is applied tile by tile, with the whole result on every rank.

    Calls are collective and have no gradient. Other arguments of a call are passed to the function;
    tensors with a row for each image are repeated for each tile. Results have the same bits on any
    number of ranks if the result of an image does not depend on other images in a batch, as with
    batch=1. A rank holds the windows of its tiles and the kept parts of all tiles, which are little
    more than the image.

    Parameters
    ----------
    function
        images -> images of the same size, (..., y, x), or with axes=3 (..., z, y, x). The first of
        the axes before these counts the images.
    context
        The ranks.
    patch, overlap
        Points of a tile along each axis, and points that its window has beyond it, see `Overlap`.
    batch
        Number of tiles in a call of the function; by default all tiles of a rank.
    strategy
        "overlap" for `Overlap`, "basic" for the same without an overlap, or a `Tiling`.
    axes
        Number of axes of an image, 2 or 3.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        context: Context,
        *,
        patch: int = 256,
        overlap: int = 64,
        batch: int | None = None,
        strategy: Named | Tiling = "overlap",
        axes: int = 2,
    ) -> None:
        if not isinstance(strategy, Tiling) and strategy not in ("overlap", "basic"):
            raise ValueError(f"strategy is {strategy!r}; expected 'overlap', 'basic' or a Tiling")
        if batch is not None and batch < 1:
            raise ValueError(f"batch is {batch}; expected at least 1 tile, or None for all tiles")
        self.function, self.context = function, context
        self.tiling = (
            strategy
            if isinstance(strategy, Tiling)
            else Overlap(patch, overlap if strategy == "overlap" else 0)
        )
        self.batch, self.axes = batch, axes

    @torch.no_grad()
    def __call__(self, image: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Apply the map to images; collective."""
        shape = tuple(image.shape[-self.axes :])
        tiles = self.tiling.cut(shape)
        numbers = range(self.context.rank, len(tiles), self.context.size)
        taken = {number: self.tiling.take(image, tiles[number]) for number in numbers}
        mine = {}
        for group in self._group(taken):
            made = self._apply([taken[number] for number in group], args, kwargs)
            for number, each in zip(group, made, strict=True):
                mine[number] = self._give(each, tiles[number])
        pieces = gather_outputs(mine, len(tiles), self.context, "concatenated")
        return _blend(pieces, tiles, shape)

    def _group(self, taken: Mapping[int, Tensor]) -> Iterator[list[int]]:
        """Yield groups of tiles of the same shape, to which the map is applied together."""
        alike: dict[torch.Size, list[int]] = {}
        for number, tile in taken.items():
            alike.setdefault(tile.shape, []).append(number)
        for numbers in alike.values():
            lone = taken[numbers[0]].ndim == self.axes
            most = 1 if lone else self.batch or len(numbers)
            yield from (numbers[k : k + most] for k in range(0, len(numbers), most))

    def _apply(
        self, parts: Sequence[Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Sequence[Tensor]:
        if len(parts) == 1:
            return [_require_tensor(self.function(parts[0], *args, **kwargs))]
        images = len(parts[0])

        def repeat(value: Any) -> Any:
            rows = isinstance(value, Tensor) and value.ndim > 0 and len(value) == images
            return torch.cat([value] * len(parts)) if rows else value

        made = self.function(
            torch.cat([*parts]),
            *(repeat(value) for value in args),
            **{name: repeat(value) for name, value in kwargs.items()},
        )
        return torch.split(_require_tensor(made), images)

    def _give(self, made: Tensor, tile: Tile) -> Tensor:
        kept = self.tiling.give(made, tile)
        expected = tuple(part.stop - part.start for part in tile.kept)
        if tuple(kept.shape[-self.axes :]) != expected:
            raise ValueError(
                f"a map has returned {tuple(made.shape)} for a tile, of which {tuple(kept.shape)} "
                f"is kept; expected the tile's size, of which {expected} is kept"
            )
        return kept.contiguous()


def _blend(pieces: Sequence[Tensor], tiles: Sequence[Tile], shape: tuple[int, ...]) -> Tensor:
    """Return the weighted means of the tiles at each point.

    Each tile moves the result by its share of the difference, so that nothing is rounded where
    tiles agree.
    """
    first, axes = pieces[0], len(shape)
    blended = first.new_zeros((*first.shape[:-axes], *shape))
    total = torch.zeros(shape, dtype=torch.float64, device=first.device)
    for piece, tile in zip(pieces, tiles, strict=True):
        weights = torch.ones((), dtype=torch.float64, device=first.device)
        for row in tile.weights:
            weights = weights[..., None] * row.to(weights)
        total[tile.kept] += weights
        share = (weights / total[tile.kept]).to(blended.real.dtype)
        before = blended[_last(tile.kept)]
        before += share * (piece - before)
    return blended


def _require_tensor(made: Any) -> Tensor:
    """Return the output of a map; raise TypeError if it is not a tensor."""
    if not isinstance(made, Tensor):
        raise TypeError(
            f"a map has returned a {type(made).__module__}.{type(made).__qualname__}; expected a "
            "torch.Tensor of the tile's size"
        )
    return made


def _last(where: Where) -> Any:
    """Return the index of a part along the last axes."""
    return (..., *where)
