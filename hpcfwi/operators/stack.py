"""Stacks: operators with one input, side by side, each simulated on one of the ranks.

A stack knows its ranks. On one rank it is the serial operator; `distribute` gives the same on
several. Members are dealt in turn: the n-th is rank n % size's. What is added up has the same bits
on any number of ranks. Methods are collective: all ranks call them, and give them the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal, Self

import torch
from torch import Tensor

from hpcfwi.operators.gathering import STRATEGIES, gather_outputs
from hpcfwi.operators.matrix import Matrix
from hpcfwi.operators.members import Member, as_member
from hpcfwi.operators.solvers import find_norm, solve_normal
from hpcfwi.operators.vectors import WHOLE, join, parts_of, randomize
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.exact import References, Sums, renew_references

Gather = Literal["concatenated", "naive", "broadcast", False]
Reduce = Literal["sum", "mean", None]

Cotangent = Callable[[int, Tensor], Tensor]
"""Of a member's number and its output: what is to be sent back through it."""

TOLERANCE, ITERATIONS = 1e-6, 100


@dataclass(frozen=True)
class Term:
    """What a member adds to a sum: arrays by name, and the part of the sum that they belong to."""

    number: int
    parts: Mapping[str, Tensor]
    where: tuple[slice, ...] = ()


class Stack(ABC):
    """Operators with one input, of which each rank has its share.

    gather: how outputs are brought to all ranks, see `gathering`; False: each has its own members'
    only, and gives only these to what takes outputs. reduce: whether what members give for the
    input is added up, or averaged over them; None: a list of its own, on each rank.

    Subclasses say what a member does, of as many as they like at a time.
    """

    def __init__(
        self,
        count: int,
        context: Context | None = None,
        gather: Gather = "concatenated",
        reduce: Reduce = "sum",
    ) -> None:
        if count < 1:
            raise ValueError("a stack has no members; expected one at least")
        self._count = count
        self.context = context or Context.alone(threads=torch.get_num_threads())
        self.gather, self.reduce = _check_gather(gather), _check_reduce(reduce)

    def on(self, context: Context, **ways: Any) -> Self:
        """The same on these ranks; ways: `gather`, `reduce`, where they are to be others."""
        moved = copy(self)
        moved.__dict__.pop("mine", None)
        moved.context = context
        moved.gather = _check_gather(ways.pop("gather", self.gather))
        moved.reduce = _check_reduce(ways.pop("reduce", self.reduce))
        if ways:
            raise TypeError(f"found {sorted(ways)}; expected gather or reduce")
        return moved

    def __len__(self) -> int:
        return self._count

    @cached_property
    def mine(self) -> list[int]:
        """The numbers of this rank's members."""
        return [*range(self.context.rank, self._count, self.context.size)]

    @abstractmethod
    def _push(self, x: Any, numbers: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        """The outputs of some members, with their numbers."""

    @abstractmethod
    def _pull(self, x: Any, numbers: Sequence[int], cotangent: Cotangent) -> Iterator[Term]:
        """What comes back through the derivatives of some members at x."""

    def _back(
        self,
        numbers: Sequence[int],  # noqa: ARG002
        y_of: Callable[[int], Tensor],  # noqa: ARG002
    ) -> Iterator[Term]:
        """What comes back through some members, which are linear; raises TypeError else."""
        raise TypeError(
            f"{type(self).__name__} is not linear and has no adjoint; expected vjp, or the adjoint "
            "of its linearisation"
        )

    def _join(self, parts: Mapping[str, Tensor]) -> Any:
        """An input, of parts that have been added up."""
        return parts[WHOLE]

    def _shape(self, part: Tensor) -> tuple[int, ...]:
        """Of a sum, from that of a term."""
        return tuple(part.shape)

    def _pack(self, outputs: Sequence[Tensor]) -> Any:
        """Outputs of members as users have them."""
        return list(outputs)

    def __call__(self, x: Any) -> Any:
        """The outputs of all members; differentiable in x, also across ranks."""
        return self.apply(x)

    def apply(self, x: Any) -> Any:
        """The outputs of all members; differentiable in x, also across ranks.

        What is kept for a gradient is x alone: members are simulated again.
        """
        parts = parts_of(x)
        if torch.is_grad_enabled() and any(part.requires_grad for part in parts.values()):
            return self._pack(_Forward.apply(self, x, *parts.values()))  # type: ignore[no-untyped-call]
        return self._pack(self._outputs(x))

    @torch.no_grad()
    def push(self, x: Any) -> dict[int, Tensor]:
        """The outputs of this rank's members, by their numbers."""
        return dict(self._push(x, self.mine))

    def _outputs(self, x: Any) -> list[Tensor]:
        mine = self.push(x)
        if self.gather is False:
            return [mine[number] for number in self.mine]
        return gather_outputs(mine, self._count, self.context, self.gather)

    def vjp(self, x: Any, ys: Any) -> Any:
        """The transpose of the derivative at x, applied to something like the outputs."""
        y_of = self.find(ys)
        return self.pull(x, lambda number, _: y_of(number))

    def pull(self, x: Any, cotangent: Cotangent) -> Any:
        """As `vjp`, of what a function makes of each member's output."""
        return self._reduce(lambda: self._pull(x, self.mine, cotangent))

    def adjoint(self, ys: Any) -> Any:
        """The transpose, applied to something like the outputs; raises TypeError if not linear."""
        y_of = self.find(ys)
        return self._reduce(lambda: self._back(self.mine, y_of))

    def normal(self, x: Any) -> Any:
        """The adjoint of what members make of x; no output leaves its rank."""
        return self._reduce(lambda: self._pull(x, self.mine, _same))

    def norm(
        self, start: Any = None, tolerance: float = 1e-3, iterations: int = ITERATIONS
    ) -> float:
        """The largest singular value of the whole stack; see `solvers.find_norm`.

        start: an input, of which only shape and type matter.
        """
        start = randomize(self._known(start))
        return find_norm(self._summed.normal, start, tolerance, iterations)

    def pseudoinverse(
        self, ys: Any, tolerance: float = TOLERANCE, iterations: int = ITERATIONS
    ) -> Any:
        """The least-squares solution for something like the outputs; see `solvers.solve_normal`."""
        summed = self._summed
        return solve_normal(summed.normal, summed.adjoint(ys), tolerance, iterations)

    def is_linear(self) -> bool:
        """Whether it has an adjoint; collective."""
        return type(self)._back is not Stack._back

    def as_scipy(self, like: Any = None) -> Any:
        """A `scipy.sparse.linalg.LinearOperator` of flat vectors; see `matrix.Matrix`.

        like: an input, of which only shape and type matter; a linearisation needs none.
        """
        return Matrix(self, self._known(like)).as_scipy()

    def as_pylops(self, like: Any = None) -> Any:
        """A `pylops.LinearOperator`; else as `as_scipy`. Raises ImportError without PyLops."""
        return Matrix(self, self._known(like)).as_pylops()

    def _known(self, like: Any) -> Any:
        """An input, given or known."""
        if like is None:
            raise TypeError(
                "no input was given, and this stack does not know what they look like; expected "
                "one, of which shape and type matter"
            )
        return like

    def _describe_outputs(self, x: Any) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """The shapes and types of all outputs; collective."""
        return [(tuple(y.shape), y.dtype) for y in self._outputs(x)]

    @property
    def _summed(self) -> Self:
        """The same where what members give is added up."""
        return self if self.reduce == "sum" else self.on(self.context, reduce="sum")

    def find(self, ys: Any) -> Callable[[int], Tensor]:
        """Where a member's part is of something like the outputs; checks how many there are."""
        expected = len(self.mine) if self.gather is False else self._count
        if len(ys) != expected:
            whose = "this rank's members" if self.gather is False else "all members"
            raise ValueError(f"found {len(ys)} outputs; expected those of {whose}, {expected}")
        if self.gather is False:
            return lambda number: ys[self.mine.index(number)]
        return lambda number: ys[number]

    def _reduce(self, make: Callable[[], Iterator[Term]]) -> Any:
        with torch.no_grad():
            if self.reduce is None:
                return [self._join(self._whole(term)) for term in make()]
            total = self._add_up(make)
        if self.reduce == "mean":
            total = {name: part / self._count for name, part in total.items()}
        return self._join(total)

    def _whole(self, term: Term) -> dict[str, Tensor]:
        whole = {name: part.new_zeros(self._shape(part)) for name, part in term.parts.items()}
        for name, part in term.parts.items():
            whole[name][term.where] = part
        return whole

    def _add_up(self, make: Callable[[], Iterator[Term]]) -> dict[str, Tensor]:
        """The sums of all ranks' terms; collective.

        They take their resolution from the first member's, which is rank 0's, and where that is
        far from the largest they are made again.
        """
        context, terms = self.context, make()
        first = next(terms, None)
        known = context.broadcast(None if first is None else self._describe(first))
        assert known is not None, "rank 0 has the first member"
        shapes, types, references = known
        while True:
            sums, odd = Sums(shapes, references, self._count, context.device), []
            for term in terms if first is None else chain([first], terms):
                if all(bool(part.isfinite().all()) for part in term.parts.values()):
                    sums.add(_as_reals(term.parts), term.where)
                else:
                    odd.append(term.number)
            ranks = context.all_gather((sums.largest, odd))
            every = sorted(number for _, numbers in ranks for number in numbers)
            if every:
                context.raise_alike(
                    ValueError(
                        f"the members {every[:10]} of a stack give values that are not finite, "
                        "which cannot be added up; expected finite input, and steps that are stable"
                    )
                )
            holds, references = sums.judge(largest for largest, _ in ranks)
            if holds:
                return {n: _as_type(part, types[n]) for n, part in sums.totals(context)}
            terms, first = make(), None

    def _describe(
        self, term: Term
    ) -> tuple[dict[str, tuple[int, ...]], dict[str, torch.dtype], References]:
        """What all ranks have to know of sums: their shapes and types, and how large terms are."""
        types = {name: part.dtype for name, part in term.parts.items()}
        pairs = {
            name: (*self._shape(part), *((2,) if part.is_complex() else ()))
            for name, part in term.parts.items()
        }
        largest = {name: float(part.abs().max()) for name, part in term.parts.items()}
        return pairs, types, renew_references({}, largest)


class MemberStack(Stack):
    """A stack of operators that are there one by one.

    members: what `members.as_member` takes, or the factory of them by number, which is only asked
    for those of this rank.
    """

    def __init__(
        self,
        members: Sequence[Any] | Callable[[int], Any],
        count: int | None = None,
        context: Context | None = None,
        gather: Gather = "concatenated",
        reduce: Reduce = "sum",
    ) -> None:
        if count is None:
            if callable(members):
                raise TypeError("a factory of members was given without their number")
            count = len(members)
        super().__init__(count, context, gather, reduce)
        self._make = members if callable(members) else members.__getitem__
        self._made: dict[int, Member] = {}

    def __getitem__(self, number: int) -> Member:
        """A member, made when it is asked for first."""
        if number not in self._made:
            self._made[number] = as_member(self._make(number))
        return self._made[number]

    def _push(self, x: Any, numbers: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        return ((number, self[number].apply(x)) for number in numbers)

    def _pull(self, x: Any, numbers: Sequence[int], cotangent: Cotangent) -> Iterator[Term]:
        for number in numbers:
            member = self[number]
            v = cotangent(number, member.apply(x))
            yield Term(number, parts_of(member.vjp(x, v)))

    def is_linear(self) -> bool:
        """Whether all members have an adjoint; collective."""
        mine = all(self[number].adjoint is not None for number in self.mine)
        return all(self.context.all_gather(mine))

    def _back(self, numbers: Sequence[int], y_of: Callable[[int], Tensor]) -> Iterator[Term]:
        for number in numbers:
            adjoint = self[number].adjoint
            if adjoint is None:
                raise TypeError(
                    f"member {number} of a stack has no adjoint; expected a linear operator, or vjp"
                )
            yield Term(number, parts_of(adjoint(y_of(number))))


class _Forward(torch.autograd.Function):
    """The outputs of a stack, of an input given by its parts."""

    @staticmethod
    def forward(ctx: Any, stack: Stack, like: Any, *parts: Tensor) -> tuple[Tensor, ...]:
        names = parts_of(like)
        x = join(dict(zip(names, (part.detach() for part in parts), strict=True)), like)
        ctx.stack, ctx.x = stack, x
        return tuple(stack._outputs(x))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *ys: Tensor) -> tuple[Tensor | None, ...]:
        found: Any = ctx.stack._summed.vjp(ctx.x, ys)
        return None, None, *parts_of(found).values()


def _same(_: int, y: Tensor) -> Tensor:
    return y


def _check_gather(gather: Any) -> Gather:
    if gather is not False and gather not in STRATEGIES:
        raise ValueError(f"gather is {gather!r}; expected {', '.join(STRATEGIES)} or False")
    return gather


def _check_reduce(reduce: Any) -> Reduce:
    if reduce not in ("sum", "mean", None):
        raise ValueError(f"reduce is {reduce!r}; expected 'sum', 'mean' or None")
    return reduce


def _as_reals(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: torch.view_as_real(part) if part.is_complex() else part
        for name, part in parts.items()
    }


def _as_type(total: Tensor, dtype: torch.dtype) -> Tensor:
    return (torch.view_as_complex(total) if dtype.is_complex else total).to(dtype)
