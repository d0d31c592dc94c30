"""Layers: the division of a shot's grid along z between ranks, which are then a crew.

Each rank of a crew computes one layer, which is a range of planes of the padded grid (of rows, in
2-D). After each step it exchanges the planes next to the cuts with its neighbours, so that all
values have the bits of the undivided grid (docs/decisions/070-layers.md).

An engine gets the `Crew` of its rank and cuts the problem itself. `leader` runs an engine on all
ranks of a crew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.wave.numerics import Taps
from hpcfwi.wave.problem import Problem

# Planes that a layer gets from each of its neighbours: half the highest order.
HALO = 4
# A layer has at least this number of planes, so that its halo comes from one neighbour, and the
# mirror images at a free surface lie within one layer.
THINNEST = 2 * HALO


class Crew(Protocol):
    """The ranks that simulate shots together. All methods but `fail` are collective.

    number: number of this rank, which computes the layer of this number; size: number of ranks;
    failed: (1,), in memory that all ranks share, 1 while a rank fails. Instead of returning,
    `gather`, `check` and `share` raise the error of a rank that has called `fail`.
    """

    number: int
    size: int
    failed: NDArray[np.int64]

    def broadcast(self, value: Any) -> Any:
        """Return the value of rank 0 on all ranks."""

    def gather(self, value: Any) -> list[Any] | None:
        """Return the values of all ranks on rank 0, None on the others."""

    def check(self) -> None:
        """Wait until all ranks have called this."""

    def fail(self, error: Exception) -> None:
        """Give an error to the other ranks, and end their waits, unless it is theirs."""

    def share(self, size: int) -> NDArray[np.uint8]:
        """Return memory of at least this number of bytes that all ranks read and write.

        Its contents are 0 at first. Later calls return the same memory, unless they ask for more or
        a rank has failed.
        """


class _Alone:
    """A single rank, which computes the whole grid."""

    number, size = 0, 1
    failed = np.zeros(1, np.int64)

    def broadcast(self, value: Any) -> Any:
        return value

    def gather(self, value: Any) -> list[Any] | None:
        return [value]

    def check(self) -> None:
        pass

    def fail(self, error: Exception) -> None:
        pass

    def share(self, size: int) -> NDArray[np.uint8]:
        return np.zeros(size, np.uint8)


ALONE: Crew = _Alone()


@dataclass(frozen=True)
class Layer:
    """The planes `first` to `end` - 1 of a padded grid."""

    first: int
    end: int

    @property
    def planes(self) -> int:
        return self.end - self.first

    def clip(self, plane: int) -> int:
        """Return the plane of the layer that is nearest to one of the grid, counted in the layer.

        The plane after the last counts as one of the layer.
        """
        return min(max(plane, self.first), self.end) - self.first


def cut(problem: Problem, count: int) -> list[Layer]:
    """Return so many layers of nearly equal thickness.

    The memory variables of the absorbing boundary at an end of z are all in the layer at this end.

    Raises
    ------
    ValueError
        If the layers would be too thin.
    """
    n = problem.padded_shape[0]
    layers = [Layer(*pair) for pair in pairwise(n * k // count for k in range(count + 1))]
    first, last = (edges[0] for edges in problem.interior)
    thin = min(layer.planes for layer in layers) < THINNEST
    if count > 1 and (thin or layers[0].end < first or layers[-1].first > last):
        raise ValueError(
            f"{n} planes of the padded grid along z cannot be divided into {count} layers; "
            f"expected at least {THINNEST} planes each, and the absorbing cells of an end "
            f"({max(first, n - last)} planes) in one layer"
        )
    return layers


def find_layers(taps: Taps, layers: list[Layer]) -> NDArray[np.int64]:
    """Return the number of the layer that records each point, (shot, point).

    It has the plane above the point, so that all taps are in the layer or in its halo.
    """
    along = taps.indices[0]
    return find_layer(along[..., (along.shape[-1] - 1) // 2], layers)


def join_points(values: Tensor, owners: NDArray[np.int64], crew: Crew) -> Tensor:
    """Return the values (shot, point, ...) of all layers on rank 0 of the crew; collective.

    owners: the layer that has those of each point, (shot, point).
    """
    if crew.size == 1:
        return values
    of_layer = torch.from_numpy(owners)
    parts = crew.gather(values[of_layer == crew.number])
    for number, part in enumerate(parts or []):
        values[of_layer == number] = part
    return values


def join_fields(fields: Tensor, crew: Crew) -> Tensor | None:
    """Return fields (shot, ...) of all layers on rank 0 of the crew, else None; collective."""
    if crew.size == 1:
        return fields
    parts = crew.gather(fields)
    return None if parts is None else torch.cat(parts, dim=1)


def find_layer(planes: NDArray[np.int64], layers: Sequence[Layer]) -> NDArray[np.int64]:
    """Return the number of the layer that has each of some planes of the grid."""
    ends = np.array([layer.end for layer in layers[:-1]], dtype=np.int64)
    return np.searchsorted(ends, planes, side="right")
