"""The engine that calls Deepwave, an optional extra for cross-checks.

Deepwave's `scalar` solves the same equation with another absorbing boundary, so that results agree
to the accuracy of the discretization, but not to rounding. It has no illuminations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from hpcfwi.wave.engines.eager import clear as clear
from hpcfwi.wave.engines.eager import count_updates as count_updates
from hpcfwi.wave.engines.eager import idle as idle
from hpcfwi.wave.history import Kind, sampled_steps
from hpcfwi.wave.numerics import Taps, spread
from hpcfwi.wave.problem import Gradients, Problem, forward_level


@dataclass(frozen=True)
class DeepwaveState:
    """The leaves of Deepwave's graph and its output."""

    speed: Tensor
    wavelet: Tensor
    traces: Tensor


NAME = "deepwave"
HISTORIES: tuple[Kind, ...] = ("snapshots",)


def available() -> str | None:
    """Return why this engine cannot be used here, or None if it can be used."""
    if find_spec("deepwave") is None:
        return "Deepwave is not installed (pip install hpcfwi[deepwave])"
    return None


def footprint(problem: Problem, steps: int) -> int:
    """Return an upper bound of the bytes of `forward` and `backward`."""
    fields = len(sampled_steps(steps, problem.interval)) + 8
    return fields * problem.n_shots * prod(problem.padded_shape) * problem.like.element_size()


def forward(problem: Problem, wavelet: Tensor, keep: bool) -> tuple[Tensor, DeepwaveState | None]:
    """Return the traces (shot, receiver, time) of wavelets (shot, source, time), and a state."""
    with torch.set_grad_enabled(keep):
        speed = problem.model["vp"].expand(problem.n_shots, *problem.like.shape).clone()
        speed, wavelet = speed.requires_grad_(keep), wavelet.detach().clone().requires_grad_(keep)
        traces = _simulate(problem, speed, wavelet)
    return traces.detach(), DeepwaveState(speed, wavelet, traces) if keep else None


def backward(_: Problem, state: DeepwaveState, adjoint_source: Tensor) -> Gradients:
    """Return the gradients, given the one with respect to the traces, (shot, receiver, time)."""
    speed, wavelet = torch.autograd.grad(
        state.traces, (state.speed, state.wavelet), adjoint_source, retain_graph=True
    )
    return Gradients({"vp": speed}, wavelet, None, None)


def scatter(problem: Problem, state: DeepwaveState, direction: Mapping[str, Tensor]) -> Tensor:
    """Return the first-order change of the traces (shot, receiver, time) with the model.

    All steps are used: this is the transpose of `backward` with an interval of 1.
    """
    speed = state.speed.detach()
    with forward_level():
        change = direction["vp"].expand_as(speed).contiguous()
        changing = forward_ad.make_dual(speed, change)  # type: ignore[no-untyped-call]
        traces = _simulate(problem, changing, state.wavelet.detach())
        found: Tensor = forward_ad.unpack_dual(traces).tangent  # type: ignore[no-untyped-call]
    return found


def _simulate(problem: Problem, speed: Tensor, wavelet: Tensor) -> Tensor:
    import deepwave

    ndim = problem.like.ndim
    # Deepwave's free surface is a grid point above its first row; hpcfwi's is the first row.
    hidden = 1 if problem.free_surface else 0
    width = [problem.boundary] * (2 * ndim)
    sides: list[Literal["free", "pml"]] = ["pml"] * (2 * ndim)
    if problem.free_surface:
        width[0], sides[0] = 0, "free"
    # Sources and receivers act on cells of the model only: Deepwave allows none in its boundary.
    shape = (problem.like.shape[0] - hidden, *problem.like.shape[1:])
    grid = (problem.spacing, (-hidden,) + (0,) * (ndim - 1), shape, problem.free_surface)
    sources = _TouchedCells(spread(problem.sources, *grid), shape, speed)
    receivers = _TouchedCells(spread(problem.receivers, *grid), shape, speed)
    scale = -1.0 / float(torch.tensor(problem.spacing).prod())
    traces = deepwave.scalar(
        speed[:, hidden:],
        list(problem.spacing),
        problem.dt,
        source_amplitudes=sources.scatter(scale * wavelet),
        source_locations=sources.locations,
        receiver_locations=receivers.locations,
        accuracy=cast(Literal[2, 4, 6, 8], problem.order),
        pml_width=width,
        boundary=sides,
        pml_freq=problem.boundary_frequency,
        max_vel=problem.max_velocity,
        model_gradient_sampling_interval=problem.interval,
    )[-1]
    return receivers.gather(traces)


class _TouchedCells:
    """The distinct cells that the points of each shot touch, as Deepwave expects them.

    locations: (shot, cell, ndim), padded with ignored locations for shots that touch fewer cells.
    """

    def __init__(self, taps: Taps, shape: tuple[int, ...], like: Tensor) -> None:
        import deepwave

        found = [np.unique(cells, return_inverse=True) for cells in taps.flat(shape)]
        most = max(cells.size for cells, _ in found)
        locations = np.full((len(found), most, len(shape)), deepwave.IGNORE_LOCATION)
        for shot, (cells, _) in enumerate(found):
            locations[shot, : cells.size] = np.stack(np.unravel_index(cells, shape), axis=-1)
        place = np.stack([p.reshape(taps.weights.shape[1:]) for _, p in found])
        self.locations = torch.as_tensor(locations)
        self._place = torch.as_tensor(place).flatten(1)[..., None]
        self._weights = torch.as_tensor(taps.weights, dtype=like.dtype)[..., None]

    def gather(self, values: Tensor) -> Tensor:
        """Return values (shot, point, time) at points from those (shot, cell, time) of cells."""
        place = self._place.expand(-1, -1, values.shape[-1])
        taps = values.gather(1, place)
        shape = (*self._weights.shape[:3], values.shape[-1])
        return (self._weights * taps.reshape(shape)).sum(dim=2)

    def scatter(self, values: Tensor) -> Tensor:
        """Return values (shot, cell, time) of cells from those (shot, point, time) at points."""
        taps = (self._weights * values[:, :, None, :]).flatten(1, 2)
        cells = taps.new_zeros(taps.shape[0], self.locations.shape[1], taps.shape[-1])
        return cells.scatter_add(1, self._place.expand_as(taps), taps)
