"""A batch's shots in groups, each of which stays in the card's cache while it is simulated.

A step goes once through the fields of all shots in a launch. Where these are more than the cache of
the second level holds, each step fetches them from the card's memory again, and a group that it
holds does not. What a group does is in `sweep`; shots do not know of each other, so that their bits
are the same in any groups (decision 052).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from torch import Tensor

from hpcfwi.wave.engines.gpu.device import CANDIDATES, Card, card_of
from hpcfwi.wave.engines.gpu.layout import Blueprint, Matrix
from hpcfwi.wave.engines.gpu.sweep import Sweep
from hpcfwi.wave.problem import Problem

# Tiles that a group has for each multiprocessor, at least: half of the warps that it may have
FILLING = 4


@dataclass(frozen=True)
class Load:
    """What a shot asks of a card: bytes that a step goes through, of itself and of what shots have
    in common; tiles of its interior."""

    own: int
    common: int
    tiles: int


def load_of(blueprint: Blueprint) -> Load:
    first, *_ = CANDIDATES[blueprint.layout.ndim]
    z, y, x = blueprint.layout.interior_tiles(first.shape)
    return Load(*blueprint.count_touched(), z * y * x)


def group_shots(shots: int, load: Load, card: Card) -> list[int]:
    """How many shots of a batch are simulated together, group by group.

    As few groups as fit into the cache, of the same size to one shot. All shots together where a
    group of that size would leave multiprocessors idle, or not even one shot fits.
    """
    most = (card.cache - load.common) // load.own
    if most < 1:
        return [shots]
    groups = -(-shots // most)
    smallest, more = divmod(shots, groups)
    if smallest * load.tiles < FILLING * card.processors:
        return [shots]
    return [smallest + 1] * more + [smallest] * (groups - more)


def divide(blueprint: Blueprint) -> list[Blueprint]:
    """The blueprints of a batch's groups."""
    card = card_of(blueprint.device)
    if card is None:
        return [blueprint]
    sizes = group_shots(blueprint.shots, load_of(blueprint), card)
    return [replace(blueprint, shots=size) for size in sizes]


class Groups:
    """The sweeps of a batch with this blueprint, one for each of its groups, in their order."""

    def __init__(self, blueprint: Blueprint, problem: Problem) -> None:
        self.blueprint = blueprint
        self.sweeps = [Sweep(part, problem) for part in divide(blueprint)]

    def load(self, problem: Problem, sources: Matrix, receivers: Matrix) -> None:
        """Take over a problem's numbers, its sizes being those of the blueprint."""
        for sweep, part in self._parts():
            sweep.load(problem, _select(sources, part), _select(receivers, part))

    def run_forward(self, wavelet: Tensor) -> Tensor:
        """As `Sweep.run_forward`; so are the others."""
        (traces,) = self._gather(
            [sweep.run_forward(wavelet[part])] for sweep, part in self._parts()
        )
        return traces

    def run_scattered(self, change: Tensor) -> Tensor:
        (traces,) = self._gather([sweep.run_scattered(change)] for sweep in self.sweeps)
        return traces

    def run_backward(self, residual: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        found = (sweep.run_backward(residual[part]) for sweep, part in self._parts())
        image, wavelet, *energies = self._gather([i, w, *each] for i, w, each in found)
        return image, wavelet, energies

    def count_bytes(self) -> int:
        return count_bytes(self.blueprint)

    def _parts(self) -> Iterable[tuple[Sweep, slice]]:
        """The sweeps, and which of the batch's shots they have."""
        first = 0
        for sweep in self.sweeps:
            yield sweep, slice(first, first + sweep.blueprint.shots)
            first += sweep.blueprint.shots

    def _gather(self, found: Iterable[list[Tensor]]) -> list[Tensor]:
        """Arrays (shot, ...) of the batch from those of its groups, which are let go one by one."""
        whole: list[Tensor] = []
        for (_, part), arrays in zip(self._parts(), found, strict=True):
            if len(self.sweeps) == 1:
                return arrays
            if not whole:
                whole = [each.new_empty((self.blueprint.shots, *each.shape[1:])) for each in arrays]
            for target, each in zip(whole, arrays, strict=True):
                target[part] = each
        return whole


def count_bytes(blueprint: Blueprint) -> int:
    """What the groups of a batch with this blueprint take."""
    return sum(part.count_bytes() for part in divide(blueprint))


def _select(matrix: Matrix, part: slice) -> Matrix:
    return Matrix(*(getattr(matrix, field.name)[part] for field in fields(matrix)))
