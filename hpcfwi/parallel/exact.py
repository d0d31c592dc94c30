"""Sums of arrays whose bits depend neither on the order of the terms nor on the number of ranks.

Floating-point addition rounds after every term, so that its result depends on the order. Here
each term is rounded once, to an integer multiple of a power of two that does not depend on the
distribution of the terms, and the integers are added exactly (docs/decisions/019-exact-sums.md).

Two other modules use the same idea: `operators.vectors.add_whole` for sums within a rank, whose
terms are all known, and `inversion.stages.Lattice` for traces that are summed in double precision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import ceil, frexp, ldexp, log2

import torch
from torch import Tensor

from hpcfwi.parallel.context import Context
from hpcfwi.parallel.shards import WHOLE, Shards

Magnitudes = Mapping[str, float]
"""Largest magnitudes of terms, by the names of sums; 0 if not known."""

NO_MAGNITUDES: Magnitudes = {}

# One of the 63 bits of an integer is not used, because rounding may increase a number.
BITS = 62
# The largest term may exceed the reference by a factor 2^ABOVE, or be smaller by 2^BELOW.
ABOVE, BELOW = 16, 8
# Number of cells that are rounded at a time, so that intermediate results stay in the cache.
BLOCK = 2**16
# Number of cells that are summed over ranks at a time, because their integers are copied.
SUMMED = 2**20
# The inverse of a smaller power of two overflows double precision.
SMALLEST = -1000


class ExactSum:
    """A sum over ranks of at most `terms` arrays, in integer multiples of a power of two.

    shape: shape of the sum; reference: an estimate of the largest magnitude of the terms, the same
    on all ranks; largest: the largest magnitude of this rank's terms so far. If the reference is
    too far from it, `holds` returns False, and the sum must be repeated with the largest magnitude
    on all ranks as its reference.

    The error of a term is at most 2^-45 times the number of terms times the reference. For a
    thousand terms this is a thousandth of the error of an addition in single precision to a sum as
    large as the reference. The total has the type float64.
    """

    def __init__(
        self, shape: tuple[int, ...], reference: float, terms: int, device: torch.device
    ) -> None:
        count = ceil(log2(max(terms, 1)))
        power = frexp(reference)[1] + ABOVE + count - BITS if reference > 0.0 else SMALLEST
        self._unit = ldexp(1.0, max(SMALLEST, power))
        self._limit = ldexp(self._unit, BITS - count)
        self._reference = reference
        self._units = torch.zeros(shape, dtype=torch.int64, device=device)
        self._largest = torch.zeros((), dtype=torch.float64, device=device)

    @property
    def largest(self) -> float:
        return float(self._largest)

    def add(self, term: Tensor, where: tuple[slice, ...] = ()) -> None:
        """Add a finite array to a part of the sum, unless it exceeds the limit.

        The CPU does not wait for the device to learn whether it was added.
        """
        lowest, highest = torch.aminmax(term)
        largest = torch.maximum(-lowest, highest).double()
        self._largest = torch.maximum(self._largest, largest)
        factor = (largest <= self._limit).double() * (1.0 / self._unit)
        rows = max(1, BLOCK // max(1, term[0].numel()))
        for part, units in zip(
            torch.split(term, rows), torch.split(self._units[where], rows), strict=True
        ):
            scaled = part.to(torch.float64).mul_(factor)
            units += scaled.round_().to(torch.int64)

    def holds(self, largest: float) -> bool:
        """Return True if no term exceeded the limit, and the terms were not too small to be exact.

        largest: the largest magnitude of the terms of all ranks.
        """
        return largest == 0.0 or ldexp(self._reference, -BELOW) <= largest <= self._limit

    def total(self, context: Context, shards: Shards = WHOLE) -> Tensor:
        """Return the sum over all ranks, with the same bits on each; collective.

        shards: the division of the array in which the ranks compute the sum before they gather it.
        """
        if shards.count == 1:
            total = torch.empty_like(self._units, dtype=torch.float64)
            blocks = (torch.split(array.view(-1), SUMMED) for array in (total, self._units))
            for part, units in zip(*blocks, strict=True):
                part.copy_(context.sum(units.clone())).mul_(self._unit)
            return total
        part = shards.reduce_scatter(self._units).to(torch.float64).mul_(self._unit)
        return shards.all_gather(part, self._units.shape)


class PlainSum:
    """A sum in single precision, whose bits depend on the order and the number of ranks."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self._sum = torch.zeros(shape, dtype=torch.float32, device=device)
        self.largest = 0.0

    def add(self, term: Tensor, where: tuple[slice, ...] = ()) -> None:
        """Add an array to a part of the sum."""
        self._sum[where] += term

    def holds(self, largest: float) -> bool:  # noqa: ARG002
        """Return True, because floating-point numbers have no limit that matters."""
        return True

    def total(self, context: Context, shards: Shards = WHOLE) -> Tensor:  # noqa: ARG002
        """Return the sum over all ranks; collective."""
        return context.sum(self._sum.clone())


class Sums:
    """Several sums over ranks, by name, whose terms are added together.

    shapes: shapes of the sums; magnitudes, terms: see `ExactSum`; exact: True for an `ExactSum` of
    each, False for a `PlainSum`.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        magnitudes: Magnitudes,
        terms: int,
        device: torch.device,
        exact: bool = True,
    ) -> None:
        self._magnitudes = magnitudes
        self._sums: dict[str, ExactSum | PlainSum] = {
            name: ExactSum(shape, magnitudes.get(name, 0.0), terms, device)
            if exact
            else PlainSum(shape, device)
            for name, shape in shapes.items()
        }

    def add(self, terms: Mapping[str, Tensor | None], where: tuple[slice, ...] = ()) -> None:
        """Add finite arrays to a part of the sums of these names; unknown names are ignored."""
        for name, total in self._sums.items():
            term = terms.get(name)
            if term is not None:
                total.add(term, where)

    @property
    def largest(self) -> dict[str, float]:
        """The largest magnitudes of this rank's terms so far."""
        return {name: total.largest for name, total in self._sums.items()}

    def check_scales(self, ranks: Iterable[Mapping[str, float]]) -> tuple[bool, Magnitudes]:
        """Return True if all sums hold, and the magnitudes for the next sums or a repetition.

        ranks: `largest` of all ranks.
        """
        every = list(ranks)
        largest = {name: max(rank[name] for rank in every) for name in self._sums}
        holds = all(total.holds(largest[name]) for name, total in self._sums.items())
        return holds, update_magnitudes(self._magnitudes, largest)

    def totals(self, context: Context, shards: Shards = WHOLE) -> Iterator[tuple[str, Tensor]]:
        """Yield the names and sums over all ranks, with the same bits on each; collective.

        shards: see `ExactSum.total`.
        """
        for name, total in self._sums.items():
            yield name, total.total(context, shards)


def update_magnitudes(magnitudes: Magnitudes, largest: Mapping[str, float]) -> Magnitudes:
    """Return the largest magnitudes, or the earlier magnitudes for sums without terms."""
    return {**magnitudes, **{name: most for name, most in largest.items() if most}}
