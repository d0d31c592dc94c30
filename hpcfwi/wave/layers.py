"""Layers: the division of a shot's grid along z between ranks, which are then a crew.

Each rank of a crew computes one layer, which is a range of planes of the padded grid (of rows, in
2-D). After each step it exchanges the planes next to the cuts with its neighbours, so that all
values have the bits of the undivided grid (docs/decisions/070-layers.md).

An engine gets the `Crew` of its rank and cuts the problem itself. `engines.Leader` runs an engine
on all ranks of a crew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

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

# Tensors for, or of, the rank before and the rank after one.
Halo = tuple[Sequence[Tensor], Sequence[Tensor]]


class Crew(Protocol):
    """The ranks that simulate shots together. All methods but `fail` are collective.

    number: number of this rank, which computes the layer of this number; size: number of ranks;
    hosts: for each rank, the first rank on its host; failed: (1,), in memory that the ranks of a
    host share, 1 while a rank fails; courier: address of the C function
    `void carry(int64 *letters, int64 count, int64 number)`, which returns when the messages of this
    number have been sent and received, or a rank fails. Instead of returning, `gather`, `check` and
    `share` raise the error of a rank that has called `fail`.
    """

    number: int
    size: int
    hosts: tuple[int, ...]
    failed: NDArray[np.int64]
    courier: int

    def broadcast(self, value: Any) -> Any:
        """Return the value of rank 0 on all ranks."""

    def gather(self, value: Any) -> list[Any] | None:
        """Return the values of all ranks on rank 0, None on the others."""

    def check(self) -> None:
        """Wait until all ranks have called this."""

    def fail(self, error: Exception) -> None:
        """Give an error to the other ranks, and end their waits, unless it is theirs."""

    def swap(self, sent: Halo, received: Halo) -> None:
        """Send tensors to the ranks before and after this one, and receive others from them.

        All are contiguous. At an end of the crew those of the missing rank are left as they are. On
        a GPU this is queued in the current stream.
        """

    def share(self, size: int) -> NDArray[np.uint8]:
        """Return memory of at least this number of bytes that the ranks of a host read and write.

        Its contents are 0 at first. Later calls return the same memory, unless they ask for more or
        a rank has failed.
        """


class Letter(NamedTuple):
    """Messages that a rank sends to one of another host, or receives from it.

    rank: the other rank; sent: True if this one sends; address, size: of slots of so many bytes in
    this process, message n is in slot n % 2; counter: number of the counter of messages that is
    increased after a message has been received.
    """

    rank: int
    sent: bool
    address: int
    size: int
    counter: int


class _Alone:
    """A single rank, which computes the whole grid."""

    number, size = 0, 1
    hosts: tuple[int, ...] = (0,)
    failed, courier = np.zeros(1, np.int64), 0

    def broadcast(self, value: Any) -> Any:
        return value

    def gather(self, value: Any) -> list[Any] | None:
        return [value]

    def check(self) -> None:
        pass

    def fail(self, error: Exception) -> None:
        pass

    def swap(self, sent: Halo, received: Halo) -> None:
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
    """Return so many layers, as even as the absorbing boundaries permit.

    The memory variables of the boundary at an end of z are all in the layer at this end.

    Raises
    ------
    ValueError
        If the layers would be too thin.
    """
    n, inner = problem.padded_shape[0], count - 2
    first, last = (edges[0] for edges in problem.interior)
    begin, end = max(n // count, first), min(n - n // count, last)
    if inner > 0:
        cuts = [begin + (end - begin) * k // inner for k in range(inner + 1)]
    else:
        cuts = [min(begin, last)] * (count - 1)
    layers = [Layer(*pair) for pair in pairwise([0, *cuts, n])]
    thin = min(layer.planes for layer in layers) < THINNEST
    if count > 1 and (thin or layers[0].end < first):
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
    of_layer = torch.from_numpy(owners).to(values.device)
    parts = crew.gather(values[of_layer == crew.number].cpu())
    for number, part in enumerate(parts or []):
        values[of_layer == number] = part.to(values.device)
    return values


def join_fields(fields: Tensor, crew: Crew) -> Tensor | None:
    """Return fields (shot, ...) of all layers on rank 0 of the crew, else None; collective."""
    if crew.size == 1:
        return fields
    device, parts = fields.device, crew.gather(fields.cpu())
    del fields
    if parts is None:
        return None
    end = sum(part.shape[1] for part in parts)
    shape = (parts[0].shape[0], end, *parts[0].shape[2:])
    whole = torch.empty(shape, dtype=parts[0].dtype, device=device)
    # Each part is released before the next one takes memory in the whole
    while parts:
        part = parts.pop()
        whole[:, end - part.shape[1] : end] = part
        end -= part.shape[1]
    return whole


def find_layer(planes: NDArray[np.int64], layers: Sequence[Layer]) -> NDArray[np.int64]:
    """Return the number of the layer that has each of some planes of the grid."""
    ends = np.array([layer.end for layer in layers[:-1]], dtype=np.int64)
    return np.searchsorted(ends, planes, side="right")
