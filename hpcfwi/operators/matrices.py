"""Linear stacks as other people's linear operators: matrices that act on flat vectors.

Their solvers run on every rank alike, as what a stack gives has the same bits on all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.operators.vectors import join, parts_of

if TYPE_CHECKING:
    from hpcfwi.operators.stack import Stack


@dataclass(frozen=True)
class Layout:
    """How tensors lie in a flat vector, one after the other."""

    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Layout:
        """That of these tensors."""
        first = tensors[0]
        return cls(tuple(tuple(each.shape) for each in tensors), first.dtype, first.device)

    @property
    def size(self) -> int:
        return sum(map(prod, self.shapes))

    def flatten(self, tensors: Sequence[Tensor]) -> NDArray:
        """The vector of these tensors."""
        flat: NDArray = torch.cat([each.detach().flatten() for each in tensors]).cpu().numpy()
        return flat

    def split(self, vector: NDArray) -> list[Tensor]:
        """The tensors of a vector."""
        flat = torch.from_numpy(np.ascontiguousarray(vector).ravel()).to(self.device, self.dtype)
        parts = torch.split(flat, [prod(shape) for shape in self.shapes])
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]


def as_scipy(stack: Stack, like: Any) -> scipy.sparse.linalg.LinearOperator:
    """A linear stack as SciPy's operator, for its solvers: lsqr, lsmr, svds, ...

    like: an input, of which shapes and type matter. Inputs are the arrays of a model one after the
    other, outputs the members'. Raises ValueError where outputs stay on their ranks, or what goes
    back is not summed, which no solver can work with.
    """
    if stack.gather is False or stack.reduce != "sum":
        raise ValueError(
            f"gather is {stack.gather!r} and reduce {stack.reduce!r}; expected all outputs on all "
            "ranks, and sums: distribute(stack, context, gather='concatenated', reduce='sum')"
        )
    names: Mapping[str, Tensor] = parts_of(like)
    domain = Layout.of([*names.values()])

    def to_input(vector: NDArray) -> Any:
        return join(dict(zip(names, domain.split(vector), strict=True)), like)

    # What outputs look like is known to members alone
    seen = Layout.of(list(stack.apply(to_input(np.zeros(domain.size)))))

    def matvec(vector: NDArray) -> NDArray:
        return seen.flatten(list(stack.apply(to_input(vector))))

    def rmatvec(vector: NDArray) -> NDArray:
        outputs = seen.split(vector)
        alike = len(set(seen.shapes)) == 1
        found = stack.adjoint(torch.stack(outputs) if alike else outputs)
        return domain.flatten([*parts_of(found).values()])

    dtype = torch.empty(0, dtype=domain.dtype).numpy().dtype
    return scipy.sparse.linalg.LinearOperator(
        (seen.size, domain.size), matvec=matvec, rmatvec=rmatvec, dtype=dtype
    )


def as_pylops(stack: Stack, like: Any) -> Any:
    """As `as_scipy`, for PyLops: cgls, its regularised and sparse solvers.

    Raises ImportError where PyLops is not installed.
    """
    try:
        import pylops
    except ImportError as error:
        raise ImportError(
            "as_pylops needs PyLops, which is not installed: pip install 'hpcfwi[pylops]'"
        ) from error
    return pylops.aslinearoperator(as_scipy(stack, like))
