"""Small acquisitions on small models, and comparisons of results."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.wave import (
    Acquisition,
    Gradients,
    Method,
    Simulation,
    Snapshots,
    acoustic,
    simulate,
)
from hpcfwi.wave.numerics import ricker

EXACT = Snapshots(1)
METHOD = [field.name for field in fields(Method)]


@dataclass(frozen=True)
class Shots:
    """The arguments of `acoustic` and `simulate`, to be changed one at a time."""

    vp: Tensor
    spacing: float | tuple[float, ...]
    dt: float
    wavelet: Tensor
    sources: NDArray[np.float64]
    receivers: NDArray[np.float64]
    options: dict[str, Any] = field(default_factory=dict)

    def simulate(self, **changes: Any) -> Simulation:
        """Run `simulate`; changes: fields of `Method` or arguments of `simulate`."""
        method, others = self.split(**changes)
        return simulate({"vp": self.vp}, self.spacing, self.acquisition, method, **others)

    def split(self, **changes: Any) -> tuple[Method, dict[str, Any]]:
        """Return the method with these changes, and the changes that are not fields of `Method`."""
        asked = {**self.options, **changes}
        others = {name: asked.pop(name) for name in list(asked) if name not in METHOD}
        return Method(**asked), others

    @property
    def acquisition(self) -> Acquisition:
        return Acquisition(self.dt, self.wavelet, self.sources, self.receivers)

    def acoustic(self, **changes: Any) -> Tensor:
        arguments = (self.vp, self.spacing, self.dt, self.wavelet, self.sources, self.receivers)
        return acoustic(*arguments, **{**self.options, **changes})


def random_shots(
    *,
    seed: int = 0,
    shape: tuple[int, ...] = (25, 33),
    spacing: tuple[float, ...] = (8.0, 11.0),
    shots: int = 3,
    sources: int = 1,
    receivers: int = 4,
    samples: int = 40,
    dt: float = 1e-3,
    on_grid: bool = False,
    **options: Any,
) -> Shots:
    """Return shots with white wavelets on a white model, in which no smoothness hides an error.

    sources: number of simultaneous sources of a shot, each with its own wavelet.
    The boundary layer is tuned to fixed values, and the history is exact.
    """
    rng = np.random.default_rng(seed)
    h = np.asarray(spacing)
    last = (np.asarray(shape) - 1) * h

    def positions(*count: int) -> NDArray[np.float64]:
        points = rng.uniform(0.0, last, (*count, len(shape)))
        if on_grid:
            points = np.rint(points / h) * h
        if options.get("free_surface"):
            # Sources on the surface are refused
            points[..., 0] = np.maximum(points[..., 0], h[0] if on_grid else 0.1 * h[0])
        return points

    together = (shots,) if sources == 1 else (shots, sources)
    return Shots(
        vp=torch.tensor(rng.uniform(1500.0, 2500.0, shape)),
        spacing=spacing,
        dt=dt,
        wavelet=torch.tensor(rng.normal(size=(*together, samples))),
        sources=positions(*together),
        receivers=positions(shots, receivers),
        options={
            "boundary": 7,
            "boundary_frequency": 20.0,
            "max_velocity": 2600.0,
            "history": EXACT,
            **options,
        },
    )


def smooth_shots(*, samples: int = 700, dt: float = 1e-3, frequency: float = 10.0) -> Shots:
    """Return two shots in a heterogeneous model with 15 points per shortest peak wavelength.

    Sources and receivers lie on grid points, some of them one or two cells from an edge.
    """
    h = 10.0
    z, x = h * np.arange(61)[:, None], h * np.arange(81)[None, :]
    vp = np.maximum(1500.0, 1700.0 + z + 200.0 * np.sin(x / 150.0) * np.sin(z / 120.0))
    listening = [[10.0, 20.0], [10.0, 780.0], [590.0, 790.0], [300.0, 10.0], [40.0, 400.0]]
    return Shots(
        vp=torch.tensor(vp),
        spacing=h,
        dt=dt,
        wavelet=torch.tensor(ricker(frequency, samples, dt, delay=0.12)),
        sources=np.array([[20.0, 100.0], [300.0, 400.0]]),
        receivers=np.array(listening),
        options={"boundary_frequency": frequency, "max_velocity": 2600.0},
    )


NAMES = ("vp", "wavelet", "source_illumination", "receiver_illumination")


def by_name(gradients: Gradients) -> dict[str, Tensor]:
    """Return the gradients and illuminations that exist, with the names of `NAMES`."""
    found = {**gradients.model, **{name: getattr(gradients, name) for name in NAMES[1:]}}
    return {name: value for name, value in found.items() if value is not None}


def white_residual(data: Tensor, seed: int = 1) -> Tensor:
    """Return white noise in the shape of the traces."""
    return torch.tensor(np.random.default_rng(seed).normal(size=data.shape)).to(data)


def white_direction(shots: Shots, seed: int = 2) -> dict[str, Tensor]:
    """Return white noise in the shape of the model."""
    noise = np.random.default_rng(seed).normal(size=shots.vp.shape)
    return {"vp": torch.tensor(noise, device=shots.vp.device)}


def relative(found: Tensor, expected: Tensor) -> float:
    """Return the relative L2 difference, or 0 if both are zero."""
    difference, size = (found.double() - expected.double()).norm(), expected.double().norm()
    return float(difference / size) if difference > 0.0 else 0.0
