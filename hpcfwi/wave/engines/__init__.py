"""The engines, which solve the same discrete scheme; each is a module with the interface `Engine`.

`eager`, the reference, and `deepwave`, which calls the library of that name, are modules; `cpu` and
`gpu` are packages with a module `engine`. First-order equations have other modules. Engines know
one `Problem`, but no files. Those that divide shots between ranks take a `layers.Crew` in
`forward`, and the number of its ranks in `footprint`. All ranks of a crew call `forward`,
`backward` and `scatter`, and only rank 0 gets all traces and the gradients. A grid with too few
planes for the crew is a ValueError.

The first rank of a crew leads it. It takes part in the inversion, in which the crew counts as one
rank, and its engine is a `Leader`. The other ranks `serve`: they run what the leader orders, and
keep the states of their layers.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from hpcfwi.registry import ENGINES, FIRST_ORDER_ENGINES, find
from hpcfwi.wave.engines.gpu import engine as gpu
from hpcfwi.wave.equation import ACOUSTIC, Equation, FirstOrderEquation
from hpcfwi.wave.history import Kind
from hpcfwi.wave.layers import Crew
from hpcfwi.wave.problem import Gradients, Problem


class Engine(Protocol):
    """The interface of an engine's module."""

    def available(self) -> str | None:
        """Return why this engine cannot be used here, or None if it can be used."""

    NAME: str
    """Name of the engine."""

    HISTORIES: tuple[Kind, ...]
    """The kinds of history that it has, the fastest first."""

    def footprint(self, problem: Problem, steps: int) -> int:
        """Return the approximate bytes of `forward` and `backward` for so many steps."""

    def count_updates(self, problem: Problem, steps: int) -> float:
        """Return the approximate number of cells that `forward` computes in all shots and steps."""

    def idle(self) -> int:
        """Return the bytes of buffers from earlier simulations."""

    def clear(self) -> None:
        """Release these buffers."""

    def forward(self, problem: Problem, wavelet: Tensor, keep: bool) -> tuple[Tensor, Any]:
        """Return traces (shot, receiver, time) of wavelets (shot, source, time), and a state."""

    def backward(self, problem: Problem, state: Any, adjoint_source: Tensor) -> Gradients:
        """Return the gradients, given the one with respect to traces (shot, receiver, time)."""

    def scatter(self, problem: Problem, state: Any, direction: Mapping[str, Tensor]) -> Tensor:
        """Return the first-order change of the traces (shot, receiver, time) with the model.

        direction: changes of the model's arrays, by name. This is the transpose of
        `backward` for the steps that are stored.
        """


def release_buffers() -> bool:
    """Release all buffers of earlier simulations; return True if there were any."""
    used = [sys.modules[place] for place in ENGINES.values() if place in sys.modules]
    held = [engine for engine in cast(list[Engine], used) if engine.idle()]
    for engine in held:
        engine.clear()
    return bool(held)


def choose(name: str, device: torch.device, equation: Equation = ACOUSTIC) -> Engine:
    """Return the engine of a name; "auto" takes `cpu` for models on CPUs, `gpu` for those on GPUs.

    It is imported now, because Numba and Triton are slow. If Triton is not installed, "auto" takes
    `eager` on GPUs. Raises ValueError if there is no such engine, or if it does not work on this
    device.
    """
    known = FIRST_ORDER_ENGINES if isinstance(equation, FirstOrderEquation) else ENGINES
    if name == "auto" and device.type == "cpu":
        name = "cpu"
    elif name == "auto":
        name = "gpu" if gpu.available() is None else "eager"
    if name not in known:
        raise ValueError(
            f'engine is {name!r}; expected "auto", {", ".join(map(repr, known))} for the equation '
            f"{equation.name}"
        )
    if name == "cpu" and device.type != "cpu":
        raise ValueError(f"the cpu engine is for models on CPUs, not on {device.type}")
    if name == "gpu" and device.type == "cpu" and not gpu.is_interpreted():
        raise ValueError(
            "the gpu engine is for models on GPUs, not on cpu "
            "(for tests, TRITON_INTERPRET=1 lets it run there, slowly)"
        )
    engine = cast(Engine, find(known[name]))
    reason = engine.available()
    if reason is not None:
        raise ValueError(f"the {name} engine cannot be used: {reason}")
    return engine


CPU = torch.device("cpu")


class Order(NamedTuple):
    """A call of an engine's function on all ranks, or "dismiss".

    engine, function: names; number: of the state; deleted: numbers of states to delete before.
    """

    engine: str
    function: str
    number: int
    arguments: tuple[Any, ...]
    deleted: list[int]


class Leader:
    """The engine of a rank that leads a crew: all of its ranks run the calls of another engine.

    It has the interface `Engine`. States stay with the ranks; the state that `forward`
    returns is a handle, and its deletion releases them.
    """

    def __init__(self, crew: Crew) -> None:
        self._crew, self._states = crew, _States()
        self._engine: Any = None
        self._deleted: list[int] = []
        self._count = 0

    @property
    def size(self) -> int:
        """The number of ranks of the crew."""
        return self._crew.size

    @property
    def hosts(self) -> int:
        """The number of hosts of the crew."""
        return len(set(self._crew.hosts))

    def lead(self, engine: Engine) -> Engine:
        """Return this object as the crew's version of an engine."""
        self._engine = engine
        return cast(Engine, self)

    def __getattr__(self, name: str) -> Any:
        """Return what the engine has and the crew does not change."""
        return getattr(self._engine, name)

    def footprint(self, problem: Problem, steps: int) -> int:
        """Return the approximate bytes of the ranks on the host of the leader together.

        Each rank also has the whole model with its coefficients, and the traces and adjoint sources
        of all receivers. On GPUs, of which each rank has one, these are the bytes of the rank that
        needs most.
        """
        size = self._crew.size
        layers: int = self._engine.footprint(problem, steps, size)
        if problem.like.is_cuda:
            return layers
        cells = len(problem.model) * prod(problem.like.shape)
        traces = 4 * problem.n_shots * steps * problem.receivers.shape[1]
        near = self._crew.hosts.count(0)
        others = (near - 1) * (cells + traces) * problem.like.element_size()
        return layers * near // size + others

    def forward(self, problem: Problem, wavelet: Tensor, keep: bool) -> tuple[Tensor, Any]:
        self._count += 1
        # A copy lacks taps and profiles, which every rank makes again.
        traces = self._call("forward", self._count, replace(problem), wavelet, keep)
        if not keep:
            return traces, None
        handle = _Handle(self._count)
        weakref.finalize(handle, self._delete, self._count).atexit = False
        return traces, handle

    def backward(self, problem: Problem, state: _Handle, adjoint_source: Tensor) -> Gradients:  # noqa: ARG002
        return self._call("backward", state.number, adjoint_source)

    def scatter(
        self,
        problem: Problem,  # noqa: ARG002
        state: _Handle,
        direction: Mapping[str, Tensor],
    ) -> Tensor:
        return self._call("scatter", state.number, direction)

    def _call(self, name: str, number: int, *arguments: Any) -> Any:
        deleted, self._deleted = self._deleted, []
        order = Order(self._engine.NAME, name, number, arguments, deleted)
        self._crew.broadcast(_move(order, CPU))
        return self._states.obey(self._crew, order)

    def _delete(self, number: int) -> None:
        self._states.held.pop(number, None)
        self._deleted.append(number)


@dataclass(frozen=True, eq=False)
class _Handle:
    """A state that the ranks of a crew hold under a number."""

    number: int


class _States:
    """The engines, problems and states of one rank's layer, by number."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[Any, Problem, Any]] = {}

    def obey(self, crew: Crew, order: Order, device: torch.device | None = None) -> Any:
        """Run an order of the leader on this rank; raise the error of any rank on all of them.

        device: that of this rank, if the arguments are still on the CPU.
        """
        _, name, number, arguments, deleted = order
        for each in deleted:
            self.held.pop(each, None)
        try:
            if device is not None:
                arguments = _move(order, device).arguments
            if name == "forward":
                problem: Problem = arguments[0]
                engine: Any = choose(order.engine, problem.like.device, problem.equation)
                found, state = engine.forward(*arguments, crew=crew)
                if state is not None:
                    self.held[number] = engine, problem, state
            elif number in self.held:
                engine, *kept = self.held[number]
                found = getattr(engine, name)(*kept, *arguments)
            else:
                raise RuntimeError(f"the state of {name} was lost when a rank failed")
            crew.check()
        except Exception as error:
            # The layers of the states are no longer connected
            self.held.clear()
            release_buffers()
            crew.fail(error)
            raise
        return found


def dismiss(crew: Crew, error: BaseException | None = None) -> None:
    """End `serve` on the other ranks, where it returns, or raises an error if one is given."""
    crew.broadcast(Order("", "dismiss", 0, (error,), []))


def serve(crew: Crew, device: torch.device = CPU) -> None:
    """Run the orders of the leader of a crew until it dismisses the others; raise its error if any.

    device: of this rank. Errors of an order are those of the leader, which decides how to continue.
    """
    states = _States()
    while True:
        order = crew.broadcast(None)
        if order.function == "dismiss":
            (error,) = order.arguments
            if error is not None:
                raise error
            return
        with suppress(Exception):
            states.obey(crew, order, device)
        # Its memory is needed for the next one
        del order


def _move(order: Order, device: torch.device) -> Order:
    """Return an order with the arrays of its arguments on a device."""

    def move(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(device)
        if isinstance(value, Mapping):
            return {key: move(each) for key, each in value.items()}
        return replace(value, model=move(value.model)) if isinstance(value, Problem) else value

    return order._replace(arguments=tuple(map(move, order.arguments)))
