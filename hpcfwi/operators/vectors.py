"""Arithmetic of the vectors that operators take and return: tensors, or models of tensors.

The arrays of a model are the parts of one vector. Sums, products with a matrix along an axis and
solvers compute where the array is, with the same bits on every rank and card: no sum has an order
that depends on a device or on a number of threads. Different parts of an array on different ranks
are added up in `parallel.exact`. The last section brings the results of the ranks' operators
together on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import ceil, fsum, log2, prod, sqrt
from typing import Any, Literal, Self, TypeVar

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.model import Model
from hpcfwi.parallel.context import Context

Vector = TypeVar("Vector", Tensor, Model)

# The name of a tensor that is all of a vector
WHOLE = "whole"


def parts_of(vector: Tensor | Model) -> dict[str, Tensor]:
    """The tensors of a vector, by name."""
    return {WHOLE: vector} if isinstance(vector, Tensor) else dict(vector.arrays)


def join(parts: Mapping[str, Tensor], like: Vector) -> Vector:
    """A vector of the same kind as another, from its parts."""
    return parts[WHOLE] if isinstance(like, Tensor) else Model(like.grid, parts)


def combine(function: Callable[..., Tensor], like: Vector, *others: Vector) -> Vector:
    """Apply a function to the parts of one or several vectors."""
    rest = [parts_of(other) for other in others]
    parts = {
        name: function(part, *(other[name] for other in rest))
        for name, part in parts_of(like).items()
    }
    return join(parts, like)


def flatten(vector: Tensor | Model) -> NDArray[Any]:
    """All values of a vector, one part after the other, for NumPy."""
    parts = parts_of(vector).values()
    return np.concatenate([part.detach().resolve_conj().cpu().numpy().ravel() for part in parts])


def unflatten(values: NDArray[Any], like: Vector) -> Vector:
    """The vector of these values, like another; real where that is real."""
    ends = np.cumsum([part.numel() for part in parts_of(like).values()])
    rows = iter(np.split(values.ravel(), ends[:-1]))

    def fill(part: Tensor) -> Tensor:
        row = next(rows)
        row = row if part.is_complex() else row.real
        return torch.tensor(row, dtype=part.dtype, device=part.device).reshape(part.shape)

    return combine(fill, like)


def dot(a: Tensor | Model, b: Tensor | Model) -> float:
    """The scalar product, in double precision, with the same bits on every rank; of a real kind.

    Complex numbers count as pairs.
    """
    pairs = zip(parts_of(a).values(), parts_of(b).values(), strict=True)
    return fsum(
        float(add_up(_as_reals(one).double() * _as_reals(two).double())) for one, two in pairs
    )


def length(vector: Tensor | Model) -> float:
    """The Euclidean norm."""
    return sqrt(dot(vector, vector))


def go_along(values: Tensor, direction: Tensor, by: float) -> Tensor:
    """Values further along a direction, rounded once to their precision.

    A product and then a sum: `torch.add` with `alpha` rounds once or twice, as a cell lies to the
    threads.
    """
    wide = torch.complex128 if values.is_complex() else torch.float64
    return (values.to(wide) + direction.to(wide) * by).to(values.dtype)


def check_like(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless arrays have the names and the shapes of others, and are real."""
    if found.keys() != expected.keys():
        raise ValueError(f"the arrays are {[*found]}, expected {[*expected]}")
    for name, array in found.items():
        if array.shape != expected[name].shape or not array.is_floating_point():
            is_shape, shape = tuple(array.shape), tuple(expected[name].shape)
            raise ValueError(f"{name} is {is_shape} of {array.dtype}, expected {shape}")


def randomize(like: Vector) -> Vector:
    """Random numbers like a vector, the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    return combine(
        lambda part: torch.randn(part.shape, generator=generator, dtype=part.dtype).to(part.device),
        like,
    )


def _as_reals(part: Tensor) -> Tensor:
    values = part.detach().resolve_conj()
    return torch.view_as_real(values) if values.is_complex() else values


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


@contextmanager
def one_thread() -> Iterator[None]:
    """Several would divide a sum, or a Fourier transform, by how many they are."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


BLOCK = 2**15  # cells


@dataclass(frozen=True)
class AxisMatrix:
    """columns, weights: of the entries of each row, (row, entry); weights beyond its own are 0."""

    columns: NDArray[np.int64]
    weights: NDArray[np.float64]

    @classmethod
    def of(cls, matrix: scipy.sparse.csr_array) -> Self:
        """Return the form of a sparse matrix."""
        counts = np.diff(matrix.indptr)
        rows = np.repeat(np.arange(counts.size), counts)
        entries = np.arange(matrix.nnz) - matrix.indptr[rows]
        columns = np.zeros((counts.size, counts.max()), dtype=np.int64)
        weights = np.zeros(columns.shape)
        # Short rows are padded with weight 0 on their first column: another cell may not be finite
        columns[:] = matrix.indices[matrix.indptr[:-1], None]
        columns[rows, entries], weights[rows, entries] = matrix.indices, matrix.data
        return cls(columns, weights)

    def apply(self, values: Tensor, axis: int) -> Tensor:
        """The matrix times the vectors along one of two or three axes, in the array's precision."""
        tables = (np.ascontiguousarray(table.T) for table in (self.columns, self.weights))
        columns, weights = (torch.from_numpy(table).to(values.device) for table in tables)
        like = [-1 if other == axis else 1 for other in range(values.ndim)]
        factors = weights.to(values.dtype).reshape(len(weights), *like)
        shape = [*values.shape[:axis], columns.shape[1], *values.shape[axis + 1 :]]
        total, across = values.new_zeros(shape), 0 if axis else 1
        for block in find_blocks(values, across):
            where = (slice(None),) * across + (block,)
            given, sums = values[where], total[where]
            for column, factor in zip(columns, factors, strict=True):
                # A product and then a sum: `addcmul` may round once or twice, as a cell lies
                sums += given.index_select(axis, column).mul_(factor)
        return total


def find_blocks(values: Tensor, axis: int) -> list[slice]:
    """Parts of an axis: what is computed with so many cells stays in a processor's cache.

    All of it on another device, where each part would be a launch.
    """
    length = values.shape[axis]
    size = max(1, BLOCK * length // max(1, values.numel()))
    if not values.is_cpu:
        size = max(1, length)
    return [slice(first, first + size) for first in range(0, length, size)]


def find_norm(
    normal: Callable[[Vector], Vector], start: Vector, tolerance: float, iterations: int
) -> float:
    """The largest singular value of A, from x -> A^T A x, by power iteration.

    start: not orthogonal to the singular vector; it ends where the value changes by less than
    `tolerance` of itself, or after so many iterations. It is never too large.
    Golub and Van Loan (2013), section 7.3.1.
    """
    x, found = start, 0.0
    size: float = length(start)
    for _ in range(iterations):
        if size == 0.0:
            return 0.0
        x = combine(lambda part, by=size: part / by, x)
        x = normal(x)
        before, size = size, length(x)
        # The first is the start's own length
        change, found = abs(sqrt(size) - found), sqrt(size)
        if before and change <= tolerance * found:
            break
    return found


def solve_normal(
    normal: Callable[[Vector], Vector], right: Vector, tolerance: float, iterations: int
) -> Vector:
    """The solution of A^T A x = right of least length, by conjugate gradients from x = 0.

    It ends where the residual is `tolerance` of the right side, or after so many iterations.
    Hestenes and Stiefel (1952), section 3.
    """
    x = combine(lambda part: part * 0, right)
    left = conjugate = right
    squares = dot(left, left)
    goal = tolerance**2 * squares
    for _ in range(iterations):
        if squares <= goal:
            break
        product = normal(conjugate)
        curvature = dot(conjugate, product)
        if not curvature > 0.0:
            break
        share = squares / curvature
        x = combine(partial(go_along, by=share), x, conjugate)
        left = combine(partial(go_along, by=-share), left, product)
        before, squares = squares, dot(left, left)
        conjugate = combine(partial(go_along, by=squares / before), left, conjugate)
    return x


Strategy = Literal["concatenated", "naive", "broadcast"]

Outputs = Mapping[int, Tensor]
"""Outputs of this rank's operators, by their numbers."""


def gather_outputs(outputs: Outputs, count: int, context: Context, strategy: str) -> list[Tensor]:
    """The outputs of all `count` operators, in order, on every rank; collective.

    strategy: "concatenated" has one collective for all of them, which must have the same shape and
    type; "naive" sends them as pickled objects; "broadcast" sends one operator's after the other,
    and never holds what is sent twice. The operator n is rank n % size's.

    Raises ValueError on all ranks where the shapes do not suit the strategy.
    """
    return STRATEGIES[strategy](outputs, count, context)


def _gather_concatenated(outputs: Outputs, count: int, context: Context) -> list[Tensor]:
    if context.size == 1:
        return [outputs[number] for number in range(count)]
    mine = {(tuple(y.shape), y.dtype) for y in outputs.values()}
    kinds = {kind for kinds in context.all_gather(mine) for kind in kinds}
    if len(kinds) > 1:
        context.raise_alike(
            ValueError(
                f"operators give outputs of {len(kinds)} shapes or types, of which "
                f"{sorted(map(str, kinds))[:2]}, and gather is 'concatenated'; expected the same "
                "for all: use gather='broadcast'"
            )
        )
    ((shape, dtype),) = kinds
    together = torch.zeros((count, *shape), dtype=dtype, device=context.device)
    for number, y in outputs.items():
        together[number] = y
    # As bytes, of which zeros change none: those of all but one rank
    return list(context.sum(together.view(torch.uint8)).view(dtype))


def _gather_naive(outputs: Outputs, count: int, context: Context) -> list[Tensor]:
    ranks = context.all_gather({number: y.cpu() for number, y in outputs.items()})
    found = {number: y for rank in ranks for number, y in rank.items()}
    return [found[number].to(context.device) for number in range(count)]


def _gather_one_by_one(outputs: Outputs, count: int, context: Context) -> list[Tensor]:
    found = []
    for number in range(count):
        mine = outputs.get(number)
        sent = context.broadcast(None if mine is None else mine.cpu(), number % context.size)
        assert sent is not None, "its rank has it"
        found.append(sent.to(context.device) if mine is None else mine)
    return found


STRATEGIES: Mapping[str, Callable[[Outputs, int, Context], list[Tensor]]] = {
    "concatenated": _gather_concatenated,
    "naive": _gather_naive,
    "broadcast": _gather_one_by_one,
}
