"""Arithmetic of the vectors that operators take and return: tensors, or models of tensors.

The arrays of a model are the parts of one vector. Sums, products with a matrix along an axis and
solvers compute on the device of the array, with the same bits on every rank and card: the order of
sums does not depend on a device or on the number of threads. `parallel.exact` adds up arrays of
different ranks. A `Coarsening` maps models to a coarser grid. The last section gathers the outputs
of the operators of all ranks on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from math import ceil, fsum, log2, prod, sqrt
from typing import Any, Self, TypeVar

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.model import Grid, Model
from hpcfwi.parallel.context import Context
from hpcfwi.wave.numerics import FEWEST_POINTS

Vector = TypeVar("Vector", Tensor, Model)

# Name of the part of a vector that is a single tensor.
WHOLE = "whole"


def parts_of(vector: Tensor | Model) -> dict[str, Tensor]:
    """Return the tensors of a vector, by name."""
    return {WHOLE: vector} if isinstance(vector, Tensor) else dict(vector.arrays)


def join(parts: Mapping[str, Tensor], like: Vector) -> Vector:
    """Return a vector of the same kind as another, from its parts."""
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
    """Return all values of a vector, one part after the other, for NumPy."""
    parts = parts_of(vector).values()
    return np.concatenate([part.detach().resolve_conj().cpu().numpy().ravel() for part in parts])


def unflatten(values: NDArray[Any], like: Vector) -> Vector:
    """Return the vector of these values in the form of another; it is real if that is real."""
    ends = np.cumsum([part.numel() for part in parts_of(like).values()])
    rows = iter(np.split(values.ravel(), ends[:-1]))

    def fill(part: Tensor) -> Tensor:
        row = next(rows)
        row = row if part.is_complex() else row.real
        return torch.tensor(row, dtype=part.dtype, device=part.device).reshape(part.shape)

    return combine(fill, like)


def dot(a: Tensor | Model, b: Tensor | Model) -> float:
    """Return the real scalar product in double precision, with the same bits on every rank.

    Complex numbers are treated as pairs of real numbers.
    """
    pairs = zip(parts_of(a).values(), parts_of(b).values(), strict=True)
    return fsum(
        # Only the product is in double precision
        float(add_up(as_reals(one).to(torch.float64, copy=True).mul_(as_reals(two))))
        for one, two in pairs
    )


def length(vector: Tensor | Model) -> float:
    """Return the Euclidean norm."""
    return sqrt(dot(vector, vector))


def go_along(values: Tensor, direction: Tensor, by: float) -> Tensor:
    """Return values plus a multiple of a direction, rounded once to their precision.

    This is a product and then a sum, because `torch.add` with `alpha` rounds once or twice,
    depending on the place of a cell.
    """
    wide = torch.complex128 if values.is_complex() else torch.float64
    return direction.to(wide, copy=True).mul_(by).add_(values).to(values.dtype)


def check_like(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless arrays are real and have the names and shapes of others."""
    if found.keys() != expected.keys():
        raise ValueError(f"the arrays are {[*found]}, expected {[*expected]}")
    for name, array in found.items():
        if array.shape != expected[name].shape or not array.is_floating_point():
            is_shape, shape = tuple(array.shape), tuple(expected[name].shape)
            raise ValueError(f"{name} is {is_shape} of {array.dtype}; expected real {shape}")


def randomize(like: Vector) -> Vector:
    """Return random numbers in the form of a vector, the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    return combine(
        lambda part: torch.randn(part.shape, generator=generator, dtype=part.dtype).to(part.device),
        like,
    )


def as_reals(part: Tensor) -> Tensor:
    """Return complex numbers as pairs of real numbers, along a last axis."""
    values = part.detach().resolve_conj()
    return torch.view_as_real(values) if values.is_complex() else values


# Bits of an integer that are used; of the 63, one is left free because values may be rounded up.
BITS = 62
# Each fold takes the bits that the previous one has left; two have about twice those of a float64.
FOLDS = 2
# Smaller values count as 0, because their smallest unit would underflow.
TINY = 2.0**-960


def add_up(values: Tensor, over: tuple[int, ...] | None = None) -> Tensor:
    """Sum real values over some axes, or all of them, in float64 and on their device.

    On a CPU, NumPy adds them, in an order that does not depend on threads; on other devices,
    `add_whole` does.
    """
    over = tuple(range(values.ndim)) if over is None else over
    if not values.is_cpu:
        return add_whole(values, over)
    return torch.as_tensor(values.detach().numpy().sum(axis=over, dtype=np.float64))


def add_whole(values: Tensor, over: tuple[int, ...]) -> Tensor:
    """Sum values over some axes as whole numbers, with the same bits in any order.

    Values are divided by a power of two, which depends on the largest one, and rounded; the
    remainders are added up in the same way (Demmel and Nguyen 2013, section 4, with whole numbers
    in place of their bins). The CPU does not wait for the device. The sum is not finite if a value
    is not.
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


BLOCK = 2**15  # cells


@dataclass(frozen=True)
class AxisMatrix:
    """A matrix along an axis: columns and weights of the entries of each row, (row, entry)."""

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
        # Short rows are padded with weight 0 on their first column: other cells may not be finite.
        columns[:] = matrix.indices[matrix.indptr[:-1], None]
        columns[rows, entries], weights[rows, entries] = matrix.indices, matrix.data
        return cls(columns, weights)

    def apply(self, values: Tensor, axis: int) -> Tensor:
        """Multiply the vectors along an axis by the matrix, in the array's precision."""
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
                # `addcmul` would round once or twice, depending on a cell's place.
                sums += given.index_select(axis, column).mul_(factor)
        return total


def find_blocks(values: Tensor, axis: int) -> list[slice]:
    """Return parts of an axis whose intermediate results stay in the cache of a processor.

    On other devices there is a single part, because each part needs a kernel launch.
    """
    length = values.shape[axis]
    size = max(1, BLOCK * length // max(1, values.numel()))
    if not values.is_cpu:
        size = max(1, length)
    return [slice(first, first + size) for first in range(0, length, size)]


@dataclass(frozen=True)
class Coarsening:
    """The map from a grid to a coarser one of the same extent."""

    fine: Grid
    coarse: Grid

    @classmethod
    def to(cls, fine: Grid, spacing: float) -> Coarsening | None:
        """Return the map to a grid of at most this spacing (m), or None if that is not coarser."""
        shape = tuple(
            min(n, max(FEWEST_POINTS, ceil((n - 1) * h / spacing - 1e-6) + 1))
            for n, h in zip(fine.shape, fine.spacing, strict=True)
        )
        if shape == fine.shape:
            return None
        apart = tuple(
            (n - 1) * h / (m - 1) for n, m, h in zip(fine.shape, shape, fine.spacing, strict=True)
        )
        return cls(fine, Grid(shape, apart, fine.origin))

    def restrict(self, model: Model[Tensor]) -> Model[Tensor]:
        """Return a model on the coarser grid, whose cells are weighted means of those around them.

        The transpose therefore interpolates, without a pattern of the coarser grid in gradients.
        """
        means, _, _ = self._matrices
        return Model(self.coarse, model.map(lambda a: _apply(means, a)).arrays)

    def transpose(self, gradient: Model[Tensor]) -> Model[Tensor]:
        """Return the gradient with respect to the finer model, given that on the coarser grid."""
        _, transposes, _ = self._matrices
        return Model(self.fine, gradient.map(lambda a: _apply(transposes, a)).arrays)

    def refine(self, field: Tensor) -> Tensor:
        """Interpolate a field on the coarser grid linearly to the finer one."""
        _, _, spreads = self._matrices
        return _apply(spreads, field)

    @cached_property
    def _matrices(self) -> tuple[list[AxisMatrix], ...]:
        """The matrices along each axis of `restrict`, `transpose` and `refine`."""
        axes = []
        for n, m in zip(self.fine.shape, self.coarse.shape, strict=True):
            spread = _interpolate(np.linspace(0.0, m - 1.0, n), m)
            weights = scipy.sparse.csr_array(spread.T)
            mean = scipy.sparse.csr_array(weights / weights.sum(axis=1)[:, None])
            axes.append([AxisMatrix.of(each) for each in (mean, mean.T.tocsr(), spread)])
        means, transposes, spreads = map(list, zip(*axes, strict=True))
        return means, transposes, spreads


def _interpolate(places: NDArray[np.float64], n: int) -> scipy.sparse.csr_array:
    """Return the matrix (place, n) that interpolates n values linearly at places, in cells."""
    left = np.minimum(places.astype(int), n - 2)
    share = places - left
    weights, columns = np.stack([1.0 - share, share]), np.stack([left, left + 1])
    rows = np.broadcast_to(np.arange(places.size), columns.shape)
    entries = (weights.ravel(), (rows.ravel(), columns.ravel()))
    return scipy.sparse.csr_array(entries, shape=(places.size, n))


def _apply(matrices: list[AxisMatrix], field: Tensor) -> Tensor:
    """Apply a matrix along each axis, in double precision."""
    values = field.double()
    for axis, matrix in enumerate(matrices):
        values = matrix.apply(values, axis)
    return values.to(field.dtype)


def find_norm(
    normal: Callable[[Vector], Vector], start: Vector, tolerance: float, iterations: int
) -> float:
    """Return the largest singular value of A, from x -> A^T A x, by power iteration.

    start: a vector that is not orthogonal to the singular vector. The iteration ends when the value
    changes by less than `tolerance` of itself, or after so many iterations. The result is never too
    large (Golub and Van Loan 2013, section 7.3.1).
    """
    x, found = start, 0.0
    size: float = length(start)
    for _ in range(iterations):
        if size == 0.0:
            return 0.0
        x = combine(lambda part, by=size: part / by, x)
        x = normal(x)
        before, size = size, length(x)
        # The first norm is that of the start, not an estimate.
        change, found = abs(sqrt(size) - found), sqrt(size)
        if before and change <= tolerance * found:
            break
    return found


def solve_normal(
    normal: Callable[[Vector], Vector], right: Vector, tolerance: float, iterations: int
) -> Vector:
    """Return the solution of A^T A x = right with the least norm, by conjugate gradients.

    The iteration starts at x = 0, and ends when the norm of the residual is `tolerance` times that
    of the right side, or after so many steps (Hestenes and Stiefel 1952, section 3).
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


Outputs = Mapping[int, Tensor]
"""Outputs of this rank's operators, by their numbers."""


def gather_outputs(outputs: Outputs, count: int, context: Context, strategy: str) -> list[Tensor]:
    """Return the outputs of all `count` operators, in order, on every rank; collective.

    strategy: "concatenated" uses one collective for all outputs, which must have the same type;
    "naive" sends them as pickled objects; "broadcast" sends them one operator after the other,
    without a second copy. Operator n belongs to rank n % size.

    Raises ValueError on all ranks if the types do not suit the strategy.
    """
    return STRATEGIES[strategy](outputs, count, context)


def _gather_concatenated(outputs: Outputs, count: int, context: Context) -> list[Tensor]:
    if context.size == 1:
        return [outputs[number] for number in range(count)]
    mine = {number: (tuple(y.shape), y.dtype) for number, y in outputs.items()}
    kinds = {number: kind for rank in context.all_gather(mine) for number, kind in rank.items()}
    shapes, types = zip(*(kinds[number] for number in range(count)), strict=True)
    if len(set(types)) > 1:
        context.raise_on_all_ranks(
            ValueError(
                f"operators give outputs of {len(set(types))} types, such as "
                f"{sorted(map(str, set(types)))[:2]}, and gather is 'concatenated'; expected the "
                "same for all: use gather='broadcast'"
            )
        )
    sizes = [*map(prod, shapes)]
    together = torch.zeros(sum(sizes), dtype=types[0], device=context.device)
    pairs = zip(torch.split(together, sizes), shapes, strict=True)
    found = [part.view(shape) for part, shape in pairs]
    for number, y in outputs.items():
        found[number].copy_(y)
    # Only one rank has nonzero bytes of an output, so that the sum of bytes copies them.
    context.sum(together.view(torch.uint8))
    return found


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
