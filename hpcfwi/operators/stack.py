"""Stacks of operators with one input, whose members are distributed over the ranks.

A stack has a `Context` of ranks. On one rank it is the serial operator; `distribute` returns the
same stack on several ranks. A member is an operator of this or another library, or a plain
function. Member n belongs to rank n % size. Sums have the same bits on any number of ranks. Methods
are collective: all ranks call them with the same arguments.

A linear stack is also a matrix for flat NumPy vectors, for the solvers of other libraries: every
rank runs the whole solver, and only the products with the matrix are distributed. A `Fidelity` is
the distance of a stack's outputs from observed data, with its gradient.
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
    as_reals,
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
from hpcfwi.parallel.exact import Magnitudes, Sums, update_magnitudes
from hpcfwi.wave.problem import SecondDerivative

EXPECTED = (
    "apply and adjoint, or A and A_adjoint or A_vjp, or a function of tensors that torch can "
    "differentiate"
)


@dataclass(frozen=True)
class Member:
    """An operator of a stack.

    apply: x -> y; vjp: (x, v) -> the transpose of its derivative at x, applied to v; adjoint:
    y -> x, or None if it is not linear.
    """

    apply: Callable[[Any], Tensor]
    vjp: Callable[[Any, Tensor], Any]
    adjoint: Callable[[Tensor], Any] | None = None


def as_member(thing: Any) -> Member:
    """Return a member of a stack, made from one of the objects in `EXPECTED`.

    Raises TypeError for another object.
    """
    if isinstance(thing, Member):
        return thing
    for names in (("apply", "adjoint", "vjp"), ("A", "A_adjoint", "A_vjp")):
        apply, adjoint, vjp = (getattr(thing, name, None) for name in names)
        if apply is not None and adjoint is not None:
            return Member(apply, lambda _, v, adjoint=adjoint: adjoint(v), adjoint)  # type: ignore[misc]
        if apply is not None and vjp is not None:
            return Member(apply, vjp)
    if callable(thing):
        return Member(thing, lambda x, v: pull_back(thing, x, v))
    raise TypeError(f"found {thing!r} in a stack; expected {EXPECTED}")


def pull_back(function: Callable[[Any], Tensor], x: Any, v: Tensor) -> Any:
    """Apply the transpose of a function's derivative at x to v, by torch's autograd."""
    leaves = {name: part.detach().requires_grad_() for name, part in parts_of(x).items()}
    with torch.enable_grad():
        y = function(join(leaves, x))
        # This is the gradient of a scalar, because for a vector torch imports sympy, which takes
        # 1 s on every rank.
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
class Summand:
    """The summand of a member in a sum: arrays by name, and their part of the sum."""

    number: int
    parts: Mapping[str, Tensor]
    where: tuple[slice, ...] = ()


class Stack(ABC):
    """Operators with one input, which are distributed over ranks.

    gather: the strategy by which outputs are sent to all ranks, see `vectors`; with False, each
    rank gets and gives only the outputs of its own members. reduce: "sum" or "mean" over the
    members, for adjoints and gradients; with None, each rank gets a list with those of its own
    members.

    Subclasses compute the results of members, any number of them at a time.
    """

    def __init__(
        self,
        count: int,
        context: Context | None = None,
        gather: Gather = "concatenated",
        reduce: Reduce = "sum",
    ) -> None:
        if count < 1:
            raise ValueError("a stack has no members; expected at least one")
        self._count = count
        self.context = context or Context.alone(threads=torch.get_num_threads())
        self.gather, self.reduce = _check_ways(gather, reduce)

    def on(self, context: Context, **ways: Any) -> Self:
        """Return the same stack on these ranks; ways: new values of `gather` and `reduce`."""
        moved = copy(self)
        moved.__dict__.pop("mine", None)
        moved.context = context
        gather, reduce = ways.pop("gather", self.gather), ways.pop("reduce", self.reduce)
        moved.gather, moved.reduce = _check_ways(gather, reduce)
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
        """Yield the outputs of some members, with their numbers."""

    @abstractmethod
    def _pull(self, x: Any, numbers: Sequence[int], cotangent: Cotangent) -> Iterator[Summand]:
        """Yield the summands of the transposed derivatives of some members at x."""

    def _back(
        self,
        numbers: Sequence[int],  # noqa: ARG002
        y_of: Callable[[int], Tensor],  # noqa: ARG002
    ) -> Iterator[Summand]:
        """Yield the summands of the adjoints of some members; raise TypeError if they have none."""
        raise TypeError(
            f"{type(self).__name__} is not linear and has no adjoint; expected vjp, or the adjoint "
            "of its linearization"
        )

    def check(self, x: Any) -> None:  # noqa: B027
        """Raise TypeError or ValueError unless x is an input of the stack."""

    def _join(self, parts: Mapping[str, Tensor]) -> Any:
        """Return an input from its summed parts."""
        return parts[WHOLE]

    def _shape(self, part: Tensor) -> tuple[int, ...]:
        """Return the shape of the sum that a summand belongs to."""
        return tuple(part.shape)

    def _pack(self, outputs: Sequence[Tensor]) -> Any:
        """Return the outputs of members in the form that callers get."""
        return list(outputs)

    def __call__(self, x: Any) -> Any:
        """Return the outputs of all members; see `apply`."""
        return self.apply(x)

    def apply(self, x: Any) -> Any:
        """Return the outputs of all members, differentiable in x once, also across ranks.

        Only x is stored for the gradient; members are computed again in the backward pass. Raises
        NotImplementedError if a second derivative is requested.
        """
        self.check(x)
        parts = parts_of(x)
        if torch.is_grad_enabled() and any(part.requires_grad for part in parts.values()):
            return self._pack(_Forward.apply(self, x, *parts.values()))  # type: ignore[no-untyped-call]
        return self._pack(self._outputs(x))

    @torch.no_grad()
    def push(self, x: Any) -> dict[int, Tensor]:
        """Return the outputs of this rank's members, by their numbers."""
        self.check(x)
        return dict(self._push(x, self.mine))

    def _outputs(self, x: Any) -> list[Tensor]:
        mine = self.push(x)
        if self.gather is False:
            return [mine[number] for number in self.mine]
        return gather_outputs(mine, self._count, self.context, self.gather)

    def vjp(self, x: Any, ys: Any) -> Any:
        """Apply the transpose of the derivative at x to a cotangent of the outputs."""
        y_of = self.find(ys)
        return self.pull(x, lambda number, _: y_of(number))

    def pull(self, x: Any, cotangent: Cotangent) -> Any:
        """Return the gradient of a function of the outputs, from the cotangent of each output."""
        self.check(x)
        return self._reduce(lambda: self._pull(x, self.mine, cotangent))

    def adjoint(self, ys: Any) -> Any:
        """Apply the transpose to data in the form of outputs; raise TypeError if not linear."""
        y_of = self.find(ys)
        return self._reduce(lambda: self._back(self.mine, y_of))

    def normal(self, x: Any) -> Any:
        """Apply the operator and then its adjoint to x; outputs stay on their rank."""
        self.check(x)
        return self._reduce(lambda: self._pull(x, self.mine, lambda _, y: y))

    def norm(
        self, start: Any = None, tolerance: float = 1e-3, iterations: int = ITERATIONS
    ) -> float:
        """Return the largest singular value of the whole stack; see `vectors.find_norm`.

        start: an example of an input, of which only the shape and type are used.
        """
        start = randomize(self._known(start))
        return find_norm(self._summed.normal, start, tolerance, iterations)

    def pseudoinverse(
        self, ys: Any, tolerance: float = TOLERANCE, iterations: int = ITERATIONS
    ) -> Any:
        """Return the least-squares solution for given outputs; see `vectors.solve_normal`."""
        summed = self._summed
        return solve_normal(summed.normal, summed.adjoint(ys), tolerance, iterations)

    def is_linear(self) -> bool:
        """Return True if the stack has an adjoint; collective."""
        return type(self)._back is not Stack._back

    def as_scipy(self, like: Any = None) -> Any:
        """Return a `scipy.sparse.linalg.LinearOperator` of flat vectors; see `Matrix`.

        like: an example of an input, of which only the shape and type are used; a linearization
        needs none.
        """
        return Matrix(self, self._known(like)).as_scipy()

    def as_pylops(self, like: Any = None) -> Any:
        """Return a `pylops.LinearOperator`; see `as_scipy`. Raises ImportError without PyLops."""
        return Matrix(self, self._known(like)).as_pylops()

    def _known(self, like: Any) -> Any:
        """Return an example of an input: the given one, or one that the stack has."""
        if like is None:
            raise TypeError(
                "no input was given, and this stack does not know the shape of its inputs; "
                "expected an example with the right shape and type"
            )
        return like

    def _describe_outputs(self, x: Any) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Return the shapes and types of all outputs; collective."""
        return [(tuple(y.shape), y.dtype) for y in self._outputs(x)]

    @property
    def _summed(self) -> Self:
        return self if self.reduce == "sum" else self.on(self.context, reduce="sum")

    def find(self, ys: Any) -> Callable[[int], Tensor]:
        """Return a function from a member's number to its part of ys; check the length of ys."""
        numbers = self.mine if self.gather is False else range(self._count)
        whose = "this rank's members" if self.gather is False else "all members"
        if len(ys) != len(numbers):
            raise ValueError(f"found {len(ys)} outputs; expected those of {whose}, {len(numbers)}")
        return lambda number: ys[numbers.index(number)]

    def _reduce(self, make: Callable[[], Iterator[Summand]]) -> Any:
        with torch.no_grad():
            if self.reduce is None:
                return [self._join(self._whole(summand)) for summand in make()]
            total = self._add_up(make)
        if self.reduce == "mean":
            total = {name: part / self._count for name, part in total.items()}
        return self._join(total)

    def _whole(self, summand: Summand) -> dict[str, Tensor]:
        whole = {name: part.new_zeros(self._shape(part)) for name, part in summand.parts.items()}
        for name, part in summand.parts.items():
            whole[name][summand.where] = part
        return whole

    def _add_up(self, make: Callable[[], Iterator[Summand]]) -> dict[str, Tensor]:
        """Return the sums of the summands of all ranks; collective.

        Their resolution is set from the first member, on rank 0. If that differs much from the
        largest summand, all summands are computed again.
        """
        context, summands = self.context, make()
        first = next(summands, None)
        known = context.broadcast(None if first is None else self._describe(first))
        assert known is not None, "rank 0 has the first member"
        shapes, types, magnitudes = known
        while True:
            sums, odd = Sums(shapes, magnitudes, self._count, context.device), []
            for summand in summands if first is None else chain([first], summands):
                if all(bool(part.isfinite().all()) for part in summand.parts.values()):
                    sums.add({n: as_reals(p) for n, p in summand.parts.items()}, summand.where)
                else:
                    odd.append(summand.number)
            ranks = context.all_gather((sums.largest, odd))
            every = sorted(number for _, numbers in ranks for number in numbers)
            if every:
                context.raise_on_all_ranks(
                    ValueError(
                        f"the members {every[:10]} of a stack give values that are not finite, "
                        "which cannot be added up; expected finite input, and steps that are stable"
                    )
                )
            holds, magnitudes = sums.check_scales(largest for largest, _ in ranks)
            if holds:
                return {n: _as_type(part, types[n]) for n, part in sums.totals(context)}
            summands, first = make(), None

    def _describe(
        self, summand: Summand
    ) -> tuple[dict[str, tuple[int, ...]], dict[str, torch.dtype], Magnitudes]:
        """Return the shapes and types of the sums, and the size of the summands, for all ranks."""
        types = {name: part.dtype for name, part in summand.parts.items()}
        pairs = {
            name: (*self._shape(part), *((2,) if part.is_complex() else ()))
            for name, part in summand.parts.items()
        }
        largest = {name: float(part.abs().max()) for name, part in summand.parts.items()}
        return pairs, types, update_magnitudes({}, largest)


class MemberStack(Stack):
    """A stack of separate operators.

    members: objects for `as_member`, or a function that makes the one of a number, which is only
    called for members of this rank.
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
                raise TypeError("found a factory of members without count; expected their number")
            count = len(members)
        super().__init__(count, context, gather, reduce)
        self._make = members if callable(members) else members.__getitem__
        self._made: dict[int, Member] = {}

    def __getitem__(self, number: int) -> Member:
        """Return a member, which is made when it is first used."""
        if number not in self._made:
            self._made[number] = as_member(self._make(number))
        return self._made[number]

    def _push(self, x: Any, numbers: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        return ((number, self[number].apply(x)) for number in numbers)

    def _pull(self, x: Any, numbers: Sequence[int], cotangent: Cotangent) -> Iterator[Summand]:
        for number in numbers:
            member = self[number]
            v = cotangent(number, member.apply(x))
            yield Summand(number, parts_of(member.vjp(x, v)))

    def is_linear(self) -> bool:
        mine = all(self[number].adjoint is not None for number in self.mine)
        return all(self.context.all_gather(mine))

    def _back(self, numbers: Sequence[int], y_of: Callable[[int], Tensor]) -> Iterator[Summand]:
        for number in numbers:
            adjoint = self[number].adjoint
            if adjoint is None:
                raise TypeError(
                    f"member {number} of a stack has no adjoint; expected a linear operator, or vjp"
                )
            yield Summand(number, parts_of(adjoint(y_of(number))))


class _Forward(torch.autograd.Function):
    """The outputs of a stack as a function of the parts of an input."""

    @staticmethod
    def forward(ctx: Any, stack: Stack, like: Any, *parts: Tensor) -> tuple[Tensor, ...]:
        names = parts_of(like)
        x = join(dict(zip(names, (part.detach() for part in parts), strict=True)), like)
        ctx.stack, ctx.x = stack, x
        ctx.save_for_backward(*parts)
        return tuple(stack._outputs(x))

    @staticmethod
    def backward(ctx: Any, *ys: Tensor) -> tuple[Tensor | None, ...]:
        nothing = SecondDerivative.apply(*ys, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        found = parts_of(ctx.stack._summed.vjp(ctx.x, ys))
        # There is none with respect to arrays of a model that the members do not use.
        gradients = [found.get(name) for name in parts_of(ctx.x)]
        if torch.is_grad_enabled():
            gradients = [None if each is None else each + nothing for each in gradients]
        return None, None, *gradients


def _check_ways(gather: Any, reduce: Any) -> tuple[Gather, Reduce]:
    if gather is not False and gather not in STRATEGIES:
        raise ValueError(f"gather is {gather!r}; expected {', '.join(STRATEGIES)} or False")
    if reduce not in ("sum", "mean", None):
        raise ValueError(f"reduce is {reduce!r}; expected 'sum', 'mean' or None")
    return gather, reduce


def _as_type(total: Tensor, dtype: torch.dtype) -> Tensor:
    return (torch.view_as_complex(total) if dtype.is_complex else total).to(dtype)


class Matrix:
    """The matrix of a stack, with the members' matrices one below the other.

    like: an example of an input. A vector consists of the arrays of an input, one after the other,
    each row by row; a result consists of the outputs of the members in order. It is complex if
    inputs or outputs are.

    Raises TypeError if the stack is not linear, and ValueError if ranks have only their own
    outputs, or if they call it with different vectors.
    """

    def __init__(self, stack: Stack, like: Any) -> None:
        if stack.gather is False:
            raise ValueError(
                "gather is False, but a solver needs complete vectors on every rank; expected "
                "'concatenated', 'naive' or 'broadcast'"
            )
        if not stack.is_linear():
            raise TypeError(
                f"{type(stack).__name__} is not linear; expected a linear stack, such as the "
                "linearization of shots"
            )
        self._stack, self._like = stack._summed, like
        # These tensors have the shapes and types of the outputs, without their memory.
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
        return scipy.sparse.linalg.LinearOperator(
            self.shape, matvec=self.apply, rmatvec=self.adjoint, dtype=self.dtype
        )

    def as_pylops(self) -> Any:
        """Return a `pylops.LinearOperator` with the shapes of inputs and outputs."""
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
                context.raise_on_all_ranks(
                    ValueError(
                        "ranks have called a collective product with different vectors; expected "
                        "the same solver on all ranks, with the same start instead of a random "
                        "one, and the same number of threads"
                    )
                )


def _stack_shapes(arrays: Iterable[Tensor]) -> tuple[int, ...]:
    """Return the shape of stacked arrays; it is flat if their shapes differ."""
    shapes = [tuple(array.shape) for array in arrays]
    if len(shapes) == 1:
        return shapes[0]
    return (len(shapes), *shapes[0]) if len(set(shapes)) == 1 else (sum(map(prod, shapes)),)


Distance = Callable[[Tensor, Tensor], Tensor]
"""A differentiable function of a member's output and its observed data that returns a number."""


def half_squares(output: Tensor, observed: Tensor) -> Tensor:
    """Return half the sum of the squared differences."""
    return 0.5 * (output - observed).abs().square().sum()


class Fidelity:
    """The sum or mean of distances between a stack's outputs and observed data.

    Methods are collective, and results have the same bits on any number of ranks.

    Parameters
    ----------
    stack
        The operators. Its `reduce` selects the sum or the mean.
    observed
        Data in the form of the outputs of the stack.
    distance
        A differentiable function of a member's output and its observed data that returns a number;
        by default half the sum of the squared differences.
    """

    def __init__(self, stack: Stack, observed: Any, distance: Distance = half_squares) -> None:
        if stack.reduce is None:
            raise ValueError("the stack's reduce is None; expected 'sum' or 'mean'")
        self.stack, self.distance = stack, distance
        self._observed, self._observed_of = observed, stack.find(observed)

    def on(self, context: Context, **ways: Any) -> Self:
        """Return the same fidelity on these ranks; ways: see `Stack.on`."""
        return type(self)(self.stack.on(context, **ways), self._observed, self.distance)

    def fn(self, x: Any) -> float:
        """Return the distance of the outputs for x."""
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
        one = torch.ones((), dtype=y.real.dtype)
        return pull_back(lambda output: self.distance(output, observed), y, one)


Thing = TypeVar("Thing", Stack, Fidelity)

Factory = Callable[[int, torch.device, Any], Any]
"""A function that makes a member from its number, this rank's device and shared data."""


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
    """Distribute operators over ranks: methods are collective, and every rank gets the results.

    Parameters
    ----------
    thing
        A stack (`Shots`, `Born`, ...), a list of operators, a `Fidelity`, or, with `count`, a
        function (number, device, shared) -> operator, which each rank calls for its own members
        only. Without `count`, a function is a map of images.
    context
        The ranks, from `hpcfwi.launch`.
    count
        The number of operators that the function makes.
    shared
        The last argument of the function.
    **ways
        For a map `patch`, `overlap`, `batch`, `strategy` and `axes`, see `Tiles`; otherwise
        `gather` and `reduce`, see `Stack`.

    Returns
    -------
    Stack, Fidelity or Tiles
        The distributed operators, fidelity or map.

    Raises
    ------
    TypeError
        If `thing` is none of these.
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
    """Return True if the thing is a list of operators, or a stack of another library."""
    return isinstance(thing, Sequence) or all(
        hasattr(thing, name) for name in ("A", "__len__", "__getitem__")
    )
