"""What a member of a stack may be: an operator of ours, somebody else's, or a plain function.

What stacks do with them is in `stack`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpcfwi.operators.vectors import join, parts_of

EXPECTED = (
    "apply and adjoint, or A and A_adjoint or A_vjp, or a function of tensors that torch can "
    "differentiate"
)


@dataclass(frozen=True)
class Member:
    """One operator, whoever's it is.

    apply: x -> y; vjp: (x, v) -> the transpose of its derivative at x, applied to v; adjoint: y ->
    x, None where it is not linear.
    """

    apply: Callable[[Any], Tensor]
    vjp: Callable[[Any, Tensor], Any]
    adjoint: Callable[[Tensor], Any] | None = None


def as_member(thing: Any) -> Member:
    """A member of a stack: `EXPECTED` says what it can be made of.

    Raises TypeError where it is nothing of these.
    """
    if isinstance(thing, Member):
        return thing
    for apply, adjoint, vjp in (("apply", "adjoint", "vjp"), ("A", "A_adjoint", "A_vjp")):
        if hasattr(thing, apply) and (hasattr(thing, adjoint) or hasattr(thing, vjp)):
            return _adapt(*(getattr(thing, name, None) for name in (apply, adjoint, vjp)))
    if callable(thing):
        return Member(thing, lambda x, v: pull_back(thing, x, v))
    raise TypeError(f"found {thing!r} in a stack; expected {EXPECTED}")


def _adapt(
    apply: Any, adjoint: Callable[[Tensor], Any] | None, vjp: Callable[[Any, Tensor], Any] | None
) -> Member:
    if adjoint is not None:
        transpose = adjoint
        return Member(apply, lambda _, v: transpose(v), adjoint)
    assert vjp is not None
    return Member(apply, vjp)


def pull_back(function: Callable[[Any], Tensor], x: Any, v: Tensor) -> Any:
    """The transpose of a function's derivative at x, applied to v: by torch's autograd."""
    leaves = {name: part.detach().requires_grad_() for name, part in parts_of(x).items()}
    with torch.enable_grad():
        y = function(join(leaves, x))
        # Of a number: torch imports sympy, a second of every rank, where it is given a vector
        found = torch.autograd.grad(
            torch.vdot(v.to(y).flatten(), y.flatten()).real, [*leaves.values()], allow_unused=True
        )
    pairs = zip(leaves.items(), found, strict=True)
    return join({n: torch.zeros_like(p) if g is None else g for (n, p), g in pairs}, x)
