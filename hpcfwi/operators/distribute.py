"""One door to all ranks: what is to be distributed is found out from what is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import torch

from hpcfwi.operators.fidelity import Fidelity
from hpcfwi.operators.stack import MemberStack, Stack
from hpcfwi.parallel.context import Context

Thing = TypeVar("Thing", Stack, Fidelity)

Factory = Callable[[int, torch.device, Any], Any]
"""Of a member's number, this rank's device and what is shared: the member."""


@overload
def distribute(thing: Thing, context: Context, **ways: Any) -> Thing: ...
@overload
def distribute(
    thing: Sequence[Any] | Factory,
    context: Context,
    *,
    count: int | None = ...,
    shared: Any = ...,
    **ways: Any,
) -> MemberStack: ...
def distribute(
    thing: Any, context: Context, *, count: int | None = None, shared: Any = None, **ways: Any
) -> Any:
    """The same on several ranks; collective methods, and results on every rank.

    thing: a stack (`Shots`, `Born`, ...), a list of operators (see `members`), a `Fidelity`, or a
    factory (number, device, shared) -> operator with `count`, which each rank asks for its own
    members only. ways: `gather` and `reduce`, see `Stack`.

    Raises TypeError where it is nothing of these.
    """
    if isinstance(thing, Stack | Fidelity):
        return thing.on(context, **ways)
    if isinstance(thing, Sequence):
        return MemberStack(thing, context=context, **ways)
    if callable(thing) and count is not None:
        return MemberStack(
            lambda number: thing(number, context.device, shared), count, context, **ways
        )
    raise TypeError(
        f"found {thing!r}; expected a stack, a list of operators, a fidelity, or a factory of "
        "operators with count"
    )
