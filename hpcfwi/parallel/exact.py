"""Sums of arrays whose bits depend on neither order nor number of ranks.

Floating-point addition rounds after every term, so that its result depends on the order. Here
each term is rounded once, to whole multiples of a power of two that does not depend on how terms
are shared, and the whole numbers are added exactly (docs/decisions/019-exact-sums.md). What is
added, and where the reference comes from, is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import ceil, frexp, ldexp, log2

import torch
from torch import Tensor

from hpcfwi.parallel.context import Context
from hpcfwi.parallel.shards import WHOLE, Slabs

References = Mapping[str, float]
"""Largest magnitudes of terms, by the sums' names; 0 if not known."""

NO_REFERENCES: References = {}

# Of the 63 bits of a whole number one is spared, as rounding may go up.
BITS = 62
# Powers of two by which the largest term may be above the reference, or below it.
ABOVE, BELOW = 16, 8
# Cells that are rounded at a time: what is between stays in a cache.
BLOCK = 2**16
# The inverse of a smaller power of two is no number in double precision.
SMALLEST = -1000


class ExactSum:
    """A sum over ranks of at most `terms` arrays, as whole multiples of a power of two.

    shape: of the sum; reference: about the largest magnitude of the terms, the same on all ranks;
    largest: that of this rank's terms so far. Where the reference was too far off, `holds` is
    False, and the sum is to be made again with the largest magnitude of all ranks as its reference.

    A term is off by at most 2^-45 terms times the reference: for a thousand terms that is a
    thousandth of what an addition in single precision may lose of a sum as large as the reference.
    The total is a float64.
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
        """Add a finite array to a part of the sum; one beyond the limit leaves the sum as it is.

        The host does not wait for a device to see which it is.
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
        """Return True if no term was beyond the limit, and not all so small that bits were lost."""
        return largest == 0.0 or ldexp(self._reference, -BELOW) <= largest <= self._limit

    def total(self, context: Context, slabs: Slabs = WHOLE) -> Tensor:
        """The sum over all ranks, the same bits on each; collective.

        slabs: in which it arrives, before they are put together.
        """
        if slabs.count == 1:
            return context.sum(self._units.clone()).to(torch.float64).mul_(self._unit)
        part = slabs.sum(self._units).to(torch.float64).mul_(self._unit)
        return slabs.gather(part, self._units.shape)


class PlainSum:
    """A sum in single precision, whose bits depend on the order and the ranks."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self._sum = torch.zeros(shape, dtype=torch.float32, device=device)
        self.largest = 0.0

    def add(self, term: Tensor, where: tuple[slice, ...] = ()) -> None:
        """Add an array to a part of the sum."""
        self._sum[where] += term

    def holds(self, largest: float) -> bool:  # noqa: ARG002
        """Always: a floating point has no limit that matters."""
        return True

    def total(self, context: Context, slabs: Slabs = WHOLE) -> Tensor:  # noqa: ARG002
        """The sum over all ranks; collective."""
        return context.sum(self._sum.clone())


class Sums:
    """Sums over ranks that get their terms together, by name.

    shapes: of each; references, terms: as `ExactSum` has them; exact: or plain ones.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        references: References,
        terms: int,
        device: torch.device,
        exact: bool = True,
    ) -> None:
        self._references = references
        self._sums: dict[str, ExactSum | PlainSum] = {
            name: ExactSum(shape, references.get(name, 0.0), terms, device)
            if exact
            else PlainSum(shape, device)
            for name, shape in shapes.items()
        }

    def add(self, terms: Mapping[str, Tensor | None], where: tuple[slice, ...] = ()) -> None:
        """Add finite arrays to a part of the sums of their names; those without a sum are not."""
        for name, total in self._sums.items():
            term = terms.get(name)
            if term is not None:
                total.add(term, where)

    @property
    def largest(self) -> dict[str, float]:
        """The largest magnitudes of this rank's terms so far."""
        return {name: total.largest for name, total in self._sums.items()}

    def judge(self, ranks: Iterable[Mapping[str, float]]) -> tuple[bool, References]:
        """Return whether all sums hold, and the references for the next ones, or for a repetition.

        ranks: `largest` of all of them.
        """
        every = list(ranks)
        largest = {name: max(rank[name] for rank in every) for name in self._sums}
        holds = all(total.holds(largest[name]) for name, total in self._sums.items())
        return holds, renew_references(self._references, largest)

    def totals(self, context: Context, slabs: Slabs = WHOLE) -> Iterator[tuple[str, Tensor]]:
        """The sums over all ranks with their names, the same bits on each; collective.

        slabs: in which exact ones arrive.
        """
        for name, total in self._sums.items():
            yield name, total.total(context, slabs)


def renew_references(references: References, largest: Mapping[str, float]) -> References:
    """The largest magnitudes, or what they were where there is nothing new."""
    return {**references, **{name: most for name, most in largest.items() if most}}
