"""A linear stack as a matrix of flat NumPy vectors, which is what other people's solvers take.

Ranks run a solver side by side, each the whole of it; only products with the matrix are shared.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.operators.vectors import flatten, parts_of, unflatten

if TYPE_CHECKING:
    from hpcfwi.operators.stack import Stack


class Matrix:
    """The stack's members one below the other.

    like: an input. A vector is its arrays, one after the other, each row by row; what comes out are
    the members' outputs in order. Complex where inputs or outputs are.

    Raises TypeError where the stack is not linear, ValueError where ranks have their own outputs
    only, or come with different vectors.
    """

    def __init__(self, stack: Stack, like: Any) -> None:
        if stack.gather is False:
            raise ValueError(
                "gather is False, and a solver's vectors are whole on every rank; expected "
                "'concatenated', 'naive' or 'broadcast'"
            )
        if not stack.is_linear():
            raise TypeError(
                f"{type(stack).__name__} is not linear; expected a linear stack, such as the "
                "linearisation of shots"
            )
        self._stack, self._like = stack._summed, like
        # Of their shapes and types, without their memory
        self._outputs = [
            torch.empty((), dtype=dtype, device=stack.context.device).expand(shape)
            for shape, dtype in stack._describe_outputs(like)
        ]
        self._sizes = [y.numel() for y in self._outputs]
        values = flatten(like)
        self.shape = sum(self._sizes), len(values)
        self.dtype = np.result_type(values, *(flatten(y[..., :0]) for y in self._outputs))
        self._real = not np.iscomplexobj(values)

    def apply(self, vector: NDArray[Any]) -> NDArray[Any]:
        """Of an input, the outputs; collective."""
        self._check_alike(vector)
        ys = self._stack(unflatten(vector, self._like))
        return np.concatenate([flatten(y) for y in ys])

    def adjoint(self, vector: NDArray[Any]) -> NDArray[Any]:
        """Of outputs, an input; collective."""
        self._check_alike(vector)
        parts = np.split(vector.ravel(), np.cumsum(self._sizes)[:-1])
        ys = [unflatten(*pair) for pair in zip(parts, self._outputs, strict=True)]
        found = flatten(self._stack.adjoint(ys))
        return found.real if self._real else found

    def as_scipy(self) -> Any:
        """A `scipy.sparse.linalg.LinearOperator`."""
        return scipy.sparse.linalg.LinearOperator(
            self.shape, matvec=self.apply, rmatvec=self.adjoint, dtype=self.dtype
        )

    def as_pylops(self) -> Any:
        """A `pylops.LinearOperator`, which knows the shape of an input, and of outputs."""
        try:
            import pylops
        except ImportError as error:
            raise ImportError(
                f"PyLops cannot be imported ({error}); expected pip install 'hpcfwi[pylops]'"
            ) from error
        dims, dimsd = _stack_shapes(parts_of(self._like).values()), _stack_shapes(self._outputs)
        return pylops.LinearOperator(self.as_scipy(), dims=dims, dimsd=dimsd)

    def _check_alike(self, vector: NDArray[Any]) -> None:
        context = self._stack.context
        if context.size > 1:
            ranks = context.all_gather(crc32(vector.tobytes()))
            if len(set(ranks)) > 1:
                context.raise_alike(
                    ValueError(
                        "ranks have come with different vectors to a product that they share; "
                        "expected the same solver on all, with the same start where it would take "
                        "a random one, and as many threads"
                    )
                )


def _stack_shapes(arrays: Iterable[Tensor]) -> tuple[int, ...]:
    """Of arrays one after the other: flat where they do not fit beside each other."""
    shapes = [tuple(array.shape) for array in arrays]
    if len(shapes) == 1:
        return shapes[0]
    return (len(shapes), *shapes[0]) if len(set(shapes)) == 1 else (sum(map(prod, shapes)),)
