"""The same discrete scheme, several ways; each engine is a module with the same functions.

`available()` says why it cannot be used here, or None; `forward` and `backward` are those of
`Engine`. Engines know one `Problem` and its `Scheme`, and nothing of files or ranks.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from hpcfwi.wave.history import Kind
from hpcfwi.wave.problem import Gradients, Problem

ENGINES = ("eager", "cpu", "deepwave")


class Engine(Protocol):
    """What an engine's module offers."""

    def available(self) -> str | None:
        """Why this engine cannot be used here, or None."""

    HISTORIES: tuple[Kind, ...]
    """The kinds of history that it has, the fastest first."""

    def footprint(self, problem: Problem, steps: int) -> int:
        """Bytes that `forward` and `backward` take at most, for so many steps."""

    def forward(self, problem: Problem, wavelet: Tensor, keep: bool) -> tuple[Tensor, Any]:
        """Traces (shot, receiver, time) for wavelets (shot, time), and what `backward` needs."""

    def backward(self, problem: Problem, state: Any, residual: Tensor) -> Gradients:
        """Gradients from the one with respect to the traces, (shot, receiver, time)."""


def choose(name: str, device: torch.device) -> Engine:
    """The engine of that name; "auto" takes `cpu` for models on CPUs, `eager` elsewhere.

    Raises ValueError where there is no such engine, or it cannot do this here.
    """
    if name == "auto":
        name = "cpu" if device.type == "cpu" else "eager"
    if name not in ENGINES:
        raise ValueError(f'engine is {name!r}; expected "auto", {", ".join(map(repr, ENGINES))}')
    if name == "cpu" and device.type != "cpu":
        raise ValueError(f"the cpu engine is for models on CPUs, not on {device.type}")
    engine = cast(Engine, import_module(f"hpcfwi.wave.engines.{name}"))
    reason = engine.available()
    if reason is not None:
        raise ValueError(f"the {name} engine cannot be used: {reason}")
    return engine
