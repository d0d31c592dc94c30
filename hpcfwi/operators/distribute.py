"""One door to all ranks: what is to be distributed is found out from what is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import torch
from torch import Tensor

from hpcfwi.operators.fidelity import Fidelity
from hpcfwi.operators.stack import MemberStack, Stack
from hpcfwi.operators.tiles import Tiles
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
    count: int = ...,
    shared: Any = ...,
    **ways: Any,
) -> MemberStack: ...
@overload
def distribute(thing: Callable[..., Tensor], context: Context, **ways: Any) -> Tiles: ...
def distribute(
    thing: Any, context: Context, *, count: int | None = None, shared: Any = None, **ways: Any
) -> Any:
    """The same on several ranks; collective methods, and results on every rank.

    thing: a stack (`Shots`, `Born`, ...), a list of operators (see `members`), a `Fidelity`, or a
    factory (number, device, shared) -> operator with `count`, which each rank asks for its own
    members only; any other function is a map of images. ways: of a map `patch`, `overlap`, `batch`,
    `strategy` and `axes`, see `Tiles`; else `gather` and `reduce`, see `Stack`.

    Raises TypeError where it is nothing of these.
    """
    if isinstance(thing, Stack | Fidelity):
        return thing.on(context, **ways)
    if _is_list(thing):
        return MemberStack(thing, context=context, **ways)
    if callable(thing) and count is not None:
        return MemberStack(
            lambda number: thing(number, context.device, shared), count, context, **ways
        )
    if callable(thing):
        return Tiles(thing, context, **ways)
    raise TypeError(
        f"found {thing!r}; expected a stack, a list of operators, a fidelity, a factory of "
        "operators with count, or a map of images"
    )


def _is_list(thing: Any) -> bool:
    """Whether it holds operators: an operator may do so, somebody else's stack."""
    return isinstance(thing, Sequence) or all(
        hasattr(thing, name) for name in ("A", "__len__", "__getitem__")
    )
