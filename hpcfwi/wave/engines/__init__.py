"""The engines, which solve the same discrete scheme; each is a module with the interface `Engine`.

`eager`, the reference, and `deepwave`, which calls the library of that name, are modules; `cpu` and
`gpu` are packages with a module `engine`. First-order equations have other modules. Engines know
one `Problem`, but no files. Those that divide shots between ranks take a `layers.Crew` in
`forward`, and the number of its ranks in `footprint`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from hpcfwi.registry import ENGINES, FIRST_ORDER_ENGINES, find
from hpcfwi.wave.engines.gpu import engine as gpu
from hpcfwi.wave.equation import ACOUSTIC, Equation, FirstOrderEquation
from hpcfwi.wave.history import Kind
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
