"""What operators are applied to, and give: a tensor, or a model of tensors. Their arithmetic.

A model's arrays are the parts of one vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import fsum, sqrt
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.model import Model
from hpcfwi.operators.totals import add_up

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
    """What a function makes of the parts of one or several vectors."""
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
