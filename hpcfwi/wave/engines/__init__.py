"""The same discrete scheme, several ways; each engine is a module that offers what `Engine` says.

`eager`, the reference, and `deepwave`, a library behind the same functions, are a module each;
`cpu` and `gpu` are packages, and the engine is their `engine`. Engines know one `Problem` and its
`Scheme`, and nothing of files or ranks.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from hpcfwi.registry import ENGINES, find
from hpcfwi.wave.engines.gpu import engine as gpu
from hpcfwi.wave.history import Kind
from hpcfwi.wave.problem import Gradients, Problem


class Engine(Protocol):
    """The interface of an engine's module."""

    def available(self) -> str | None:
        """Why this engine cannot be used here, or None."""

    NAME: str
    """Name of the engine."""

    HISTORIES: tuple[Kind, ...]
    """The kinds of history that it has, the fastest first."""

    def footprint(self, problem: Problem, steps: int) -> int:
        """Bytes that `forward` and `backward` take, about, for so many steps."""

    def count_updates(self, problem: Problem, steps: int) -> float:
        """Cells that `forward` computes, about, added up over shots and steps."""

    def idle(self) -> int:
        """Bytes that it holds from earlier batches, to be used again or let go."""

    def clear(self) -> None:
        """Let these go."""

    def forward(self, problem: Problem, wavelet: Tensor, keep: bool) -> tuple[Tensor, Any]:
        """Traces (shot, receiver, time) of wavelets (shot, source, time); what `backward` takes."""

    def backward(self, problem: Problem, state: Any, residual: Tensor) -> Gradients:
        """Gradients from the one with respect to the traces, (shot, receiver, time)."""

    def scatter(self, problem: Problem, state: Any, direction: Tensor) -> Tensor:
        """Return the change of the traces (shot, receiver, time) with the speed, to first order.

        direction: change of the speed on the model's grid, m/s. The transpose of `backward`,
        for the steps that were stored.
        """


def load(name: str) -> Engine:
    """The engine of that name, imported only now: Numba and Triton take a while to import."""
    return cast(Engine, find(ENGINES[name]))


def let_go() -> bool:
    """Let go what all engines hold from earlier batches; whether there was anything."""
    used = [sys.modules[place] for place in ENGINES.values() if place in sys.modules]
    held = [engine for engine in cast(list[Engine], used) if engine.idle()]
    for engine in held:
        engine.clear()
    return bool(held)


def choose(name: str, device: torch.device) -> Engine:
    """The engine of that name; "auto" takes `cpu` for models on CPUs, `gpu` for those on GPUs.

    Where Triton is not installed, "auto" takes `eager` on GPUs. Raises ValueError where there is no
    such engine, or it cannot do this here.
    """
    if name == "auto" and device.type == "cpu":
        name = "cpu"
    elif name == "auto":
        name = "gpu" if gpu.available() is None else "eager"
    if name not in ENGINES:
        raise ValueError(f'engine is {name!r}; expected "auto", {", ".join(map(repr, ENGINES))}')
    if name == "cpu" and device.type != "cpu":
        raise ValueError(f"the cpu engine is for models on CPUs, not on {device.type}")
    if name == "gpu" and device.type == "cpu" and not gpu.is_interpreted():
        raise ValueError(
            "the gpu engine is for models on GPUs, not on cpu "
            "(for tests, TRITON_INTERPRET=1 lets it run there, slowly)"
        )
    engine = load(name)
    reason = engine.available()
    if reason is not None:
        raise ValueError(f"the {name} engine cannot be used: {reason}")
    return engine
