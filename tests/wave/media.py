"""Random media and shots for every first-order equation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.registry import EQUATIONS
from hpcfwi.wave import propagate
from hpcfwi.wave.history import Snapshots

FIRST_ORDER = tuple(name for name in EQUATIONS if name != "acoustic")


def random_medium(
    equation: str, shape: Sequence[int], seed: int = 0, water: int = 0
) -> dict[str, Tensor]:
    """Return white arrays of all parameters of an equation, float64.

    water: number of rows at the top in which vs is 0.
    """
    rng = np.random.default_rng(seed)

    def between(lowest: float, highest: float) -> Tensor:
        return torch.tensor(rng.uniform(lowest, highest, shape))

    model = {"vp": between(1900.0, 2100.0), "rho": between(1500.0, 2500.0)}
    if "elastic" in equation:
        model["vs"] = between(900.0, 1200.0)
        model["vs"][:water] = 0.0
    if equation.endswith(("vti", "tti")):
        model["delta"] = between(-0.05, 0.1)
        model["epsilon"] = model["delta"] + between(0.01, 0.1)
    if equation.endswith("tti"):
        model["theta"] = between(-80.0, 80.0)
    if equation.startswith("visco"):
        model["qp"] = between(20.0, 25.0)
    if equation == "viscoelastic":
        model["qs"] = between(20.0, 40.0)
    return model


@dataclass(frozen=True)
class Survey:
    """The arguments of `propagate` other than the equation and the model."""

    spacing: tuple[float, ...]
    dt: float
    wavelet: Tensor
    sources: NDArray[np.float64]
    receivers: NDArray[np.float64]
    options: dict[str, Any]

    def propagate(self, equation: str, model: dict[str, Tensor], **changes: Any) -> Tensor:
        wavelet = changes.pop("wavelet", self.wavelet)
        given = (self.spacing, self.dt, wavelet, self.sources, self.receivers)
        return propagate(equation, model, *given, **{**self.options, **changes})


def random_survey(
    shape: Sequence[int],
    *,
    samples: int = 40,
    shots: int = 2,
    on_grid: bool = False,
    seed: int = 1,
    **options: Any,
) -> Survey:
    """Return shots with white wavelets at random points below the first cells."""
    rng = np.random.default_rng(seed)
    spacing = (8.0, 10.0, 9.0)[: len(shape)]
    last = (np.asarray(shape) - 1) * np.asarray(spacing)

    def points(*count: int) -> NDArray[np.float64]:
        found = rng.uniform(0.1 * last, 0.9 * last, (*count, len(shape)))
        return np.rint(found / spacing) * spacing if on_grid else found

    fixed = {
        "boundary": 6,
        "boundary_frequency": 10.0,
        "max_velocity": 2600.0,
        "history": Snapshots(interval=1),
    }
    return Survey(
        spacing,
        1e-3,
        torch.tensor(rng.standard_normal((shots, samples))),
        points(shots),
        points(shots, 3),
        {**fixed, **options},
    )


def shorten(equation: str, shape: Sequence[int]) -> dict[str, int]:
    """Return options of `random_survey` for an equation whose graph would fill the memory."""
    is_large = equation == "elastic-tti" and len(shape) == 3
    return {"samples": 10, "shots": 1, "boundary": 3} if is_large else {}


def everything(shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the options that record every component."""
    names = ["pressure", "vz", "vx", *(["vy"] if len(shape) == 3 else []), "strain"]
    return {"components": names, "directions": [1.0, 2.0, 3.0][: len(shape)], "gauge": 6.0}


def traces_and_gradients(
    equation: str, model: dict[str, Tensor], survey: Survey, **changes: Any
) -> list[Tensor]:
    """Return the traces, and the gradients of a fixed white product with model and wavelet."""
    device = next(iter(model.values())).device
    wavelet = survey.wavelet.to(device)
    leaves = [array.clone().requires_grad_() for array in (*model.values(), wavelet)]
    traces = survey.propagate(
        equation, dict(zip(model, leaves, strict=False)), wavelet=leaves[-1], **changes
    )
    residual = torch.randn(traces.shape, generator=torch.Generator().manual_seed(3)).to(device)
    return [traces.detach(), *torch.autograd.grad((traces * residual).sum(), leaves)]
