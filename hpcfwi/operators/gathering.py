"""What the ranks' operators have given, brought together on every rank.

Whose turn an operator is, and what it gives, is in `stack`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from hpcfwi.parallel.context import Context

Strategy = Literal["concatenated", "naive", "broadcast"]

Outputs = Mapping[int, Tensor]
"""Of this rank's operators, by their numbers."""


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
