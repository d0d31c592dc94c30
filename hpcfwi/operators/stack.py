"""Stacks: operators with one input, side by side, each simulated on one of the ranks.

A stack knows its ranks. On one rank it is the serial operator; `distribute` gives the same on
several. A member is an operator of ours, somebody else's, or a plain function. Members are dealt in
turn: the n-th is rank n % size's. Sums have the same bits on any number of ranks. Methods are
collective: all ranks call them with the same arguments.

A linear stack is also a matrix of flat NumPy vectors, which other people's solvers take: ranks run
the solver side by side, each the whole of it, and share only the products with the matrix. A
`Fidelity` is the distance of a stack's outputs from observed data: one number, and its gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import fsum, prod
from typing import Any, Literal, Self, TypeVar, overload
from zlib import crc32

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.operators.tiles import Tiles
from hpcfwi.operators.vectors import (
    STRATEGIES,
    WHOLE,
    find_norm,
    flatten,
    gather_outputs,
    join,
    parts_of,
    randomize,
    solve_normal,
    unflatten,
)
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.exact import References, Sums, renew_references

EXPECTED = (
    "apply and adjoint, or A and A_adjoint or A_vjp, or a function of tensors that torch can "
    "differentiate"
)


@dataclass(frozen=True)
class Member:
    """An operator of a stack.

    apply: x -> y; vjp: (x, v) -> the transpose of its derivative at x, applied to v; adjoint: y ->
    x, None if it is not linear.
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


Gather = Literal["concatenated", "naive", "broadcast", False]
Reduce = Literal["sum", "mean", None]

Cotangent = Callable[[int, Tensor], Tensor]
"""A function of a member's number and output that returns the cotangent of the output."""

TOLERANCE, ITERATIONS = 1e-6, 100


@dataclass(frozen=True)
class Term:
    """The term of a member in a sum: arrays by name, and their part of the sum."""

    number: int
    parts: Mapping[str, Tensor]
    where: tuple[slice, ...] = ()


class Stack(ABC):
    """Operators with one input, of which each rank has its share.

    gather: how outputs are brought to all ranks, see `vectors`; False: each has its own members'
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
        """Yield the terms of the transposed derivatives of some members at x."""

    def _back(
        self,
        numbers: Sequence[int],  # noqa: ARG002
        y_of: Callable[[int], Tensor],  # noqa: ARG002
    ) -> Iterator[Term]:
        """Yield the terms of the adjoints of some members; raises TypeError if they have none."""
        raise TypeError(
            f"{type(self).__name__} is not linear and has no adjoint; expected vjp, or the adjoint "
            "of its linearisation"
        )

    def _join(self, parts: Mapping[str, Tensor]) -> Any:
        """An input, of parts that have been added up."""
        return parts[WHOLE]

    def _shape(self, part: Tensor) -> tuple[int, ...]:
        """Return the shape of a sum from that of a term."""
        return tuple(part.shape)

    def _pack(self, outputs: Sequence[Tensor]) -> Any:
        """Outputs of members as users have them."""
        return list(outputs)

    def __call__(self, x: Any) -> Any:
        """The outputs of all members; differentiable in x, also across ranks."""
        return self.apply(x)

    def apply(self, x: Any) -> Any:
        """The outputs of all members; differentiable in x, also across ranks.

        Only x is stored for a gradient: members are simulated again.
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
        """Return the gradient of a function of the outputs, from the cotangent of each output."""
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
        """True if it has an adjoint; collective."""
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
        """Return a function from a member's number to its part of ys; checks their number."""
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
        """Return the shapes and types of sums, and the size of terms, for all ranks."""
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
        """True if all members have an adjoint; collective."""
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
        """Return the outputs of an input; collective."""
        self._check_alike(vector)
        ys = self._stack(unflatten(vector, self._like))
        return np.concatenate([flatten(y) for y in ys])

    def adjoint(self, vector: NDArray[Any]) -> NDArray[Any]:
        """Return the adjoint of outputs; collective."""
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
    """Return the shape of stacked arrays, flat if their shapes differ."""
    shapes = [tuple(array.shape) for array in arrays]
    if len(shapes) == 1:
        return shapes[0]
    return (len(shapes), *shapes[0]) if len(set(shapes)) == 1 else (sum(map(prod, shapes)),)


Distance = Callable[[Tensor, Tensor], Tensor]
"""A differentiable function of a member's output and its observation: one number."""


def half_squares(output: Tensor, observed: Tensor) -> Tensor:
    """Half the sum of the squared differences."""
    return 0.5 * (output - observed).abs().square().sum()


class Fidelity:
    """The distances between a stack's outputs and what was observed, added up or averaged.

    observed: something like the outputs, as the stack's own methods take it; distance: of one
    member; what comes of it is a sum or a mean as the stack's `reduce` says. Methods are
    collective. Results have the same bits on any number of ranks.
    """

    def __init__(self, stack: Stack, observed: Any, distance: Distance = half_squares) -> None:
        if stack.reduce is None:
            raise ValueError("the stack's reduce is None; expected 'sum' or 'mean'")
        self.stack, self.distance = stack, distance
        self._observed, self._observed_of = observed, stack.find(observed)

    def on(self, context: Context, **ways: Any) -> Self:
        """The same on these ranks; ways: as `Stack.on` has them."""
        return type(self)(self.stack.on(context, **ways), self._observed, self.distance)

    def fn(self, x: Any) -> float:
        """The distance of what is made of x."""
        mine = {number: self._measure(number, y) for number, y in self.stack.push(x).items()}
        every = [each for rank in self.stack.context.all_gather(mine) for each in rank.values()]
        return fsum(every) / (len(self.stack) if self.stack.reduce == "mean" else 1)

    def grad(self, x: Any) -> Any:
        """Return the gradient at x."""
        return self.stack.pull(x, self._slope)

    def _measure(self, number: int, y: Tensor) -> float:
        return float(self.distance(y, self._observed_of(number).to(y)))

    def _slope(self, number: int, y: Tensor) -> Tensor:
        observed = self._observed_of(number).to(y)
        slope: Tensor = pull_back(
            lambda output: self.distance(output, observed), y, torch.ones((), dtype=y.real.dtype)
        )
        return slope


Thing = TypeVar("Thing", Stack, Fidelity)

Factory = Callable[[int, torch.device, Any], Any]
"""A function of a member's number, this rank's device and shared data that makes the member."""


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

    thing: a stack (`Shots`, `Born`, ...), a list of operators, a `Fidelity`, or a
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
    """Return True if it is a list of operators, or a stack of another library."""
    return isinstance(thing, Sequence) or all(
        hasattr(thing, name) for name in ("A", "__len__", "__getitem__")
    )
