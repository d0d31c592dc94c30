"""The reference engine: plain torch, short and obvious, differentiated by autograd.

It stores every step with every history; the sampled steps are only used for illuminations. The
scattered field is the forward-mode derivative of a second simulation. Models may have any number of
axes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import forward_ad

from hpcfwi.wave import numerics
from hpcfwi.wave.history import KINDS, Kind, sampling_offset
from hpcfwi.wave.problem import (
    Gradients,
    Problem,
    forward_level,
    make_gradients,
    relative_change,
    square_speed,
)


@dataclass(frozen=True)
class EagerState:
    """The differentiable forward pass: its leaves, its output and the energies of the fields."""

    v2dt2: Tensor
    wavelet: Tensor
    traces: Tensor
    forward_energy: Tensor
    adjoint_energy: Tensor


NAME = "eager"
HISTORIES: tuple[Kind, ...] = KINDS


def available() -> str | None:
    """Return why this engine cannot be used here, or None if it can be used."""
    return None


def footprint(problem: Problem, steps: int) -> int:
    """Return an upper bound of the bytes of both passes: 30 fields for each step and axis."""
    cells = prod(problem.padded_shape) * problem.n_shots
    return 30 * problem.like.ndim * steps * cells * problem.like.element_size()


def count_updates(problem: Problem, steps: int) -> float:
    """Return the number of all cells, summed over shots and steps."""
    return float(problem.n_shots) * steps * prod(problem.padded_shape)


def idle() -> int:
    """Return 0, because there are no buffers."""
    return 0


def clear() -> None:
    """Do nothing, because there are no buffers."""


def forward(problem: Problem, wavelet: Tensor, keep: bool) -> tuple[Tensor, EagerState | None]:
    """Return the traces (shot, receiver, time) of wavelets (shot, source, time), and a state."""
    shape = (problem.n_shots, *problem.padded_shape)
    with torch.set_grad_enabled(keep):
        v2dt2 = square_speed(problem).expand(shape).clone().requires_grad_(keep)
        wavelet = wavelet.detach().clone().requires_grad_(keep)
        state = _simulate(problem, v2dt2, wavelet)
    return state.traces.detach(), state if keep else None


def backward(problem: Problem, state: EagerState, adjoint_source: Tensor) -> Gradients:
    """Return the gradients, given the one with respect to the traces, (shot, receiver, time)."""
    state.adjoint_energy.zero_()
    v2dt2, wavelet = torch.autograd.grad(
        state.traces, (state.v2dt2, state.wavelet), adjoint_source, retain_graph=True
    )
    image = v2dt2 * state.v2dt2.detach()
    return make_gradients(problem, image, wavelet, state.forward_energy, state.adjoint_energy)


def scatter(problem: Problem, state: EagerState, direction: Mapping[str, Tensor]) -> Tensor:
    """Return the first-order change of the traces (shot, receiver, time) with the model."""
    v2dt2 = state.v2dt2.detach()
    with forward_level():
        change = v2dt2 * relative_change(problem, direction)
        changing = forward_ad.make_dual(v2dt2, change)  # type: ignore[no-untyped-call]
        traces = _simulate(problem, changing, state.wavelet.detach()).traces
        found: Tensor = forward_ad.unpack_dual(traces).tangent  # type: ignore[no-untyped-call]
    return found


def _simulate(problem: Problem, v2dt2: Tensor, wavelet: Tensor) -> EagerState:
    ndim = problem.like.ndim
    second = [numerics.second_difference(problem.order, h).tolist() for h in problem.spacing]
    first = [numerics.first_difference(problem.order, h).tolist() for h in problem.spacing]

    def along(values: object, axis: int) -> Tensor:
        shape = [1] * (ndim + 1)
        shape[axis + 1] = -1
        return torch.as_tensor(values, dtype=v2dt2.dtype, device=v2dt2.device).reshape(shape)

    a = [along(p.a, axis) for axis, p in enumerate(problem.profiles)]
    b = [along(p.b, axis) for axis, p in enumerate(problem.profiles)]
    inject, record = (
        Stencil(taps.flat(problem.padded_shape), taps.weights, v2dt2)
        for taps in (problem.source_taps, problem.receiver_taps)
    )
    forward_energy = torch.zeros_like(v2dt2, requires_grad=False)
    adjoint_energy = torch.zeros_like(forward_energy)
    offset = sampling_offset(problem.interval)

    def add_adjoint_energy(gradient: Tensor) -> None:
        adjoint_energy.add_(problem.interval * (v2dt2.detach() * gradient) ** 2)

    steps = wavelet.shape[-1]
    previous = torch.zeros_like(forward_energy)
    p = torch.zeros_like(forward_energy)
    psi, zeta = [p] * ndim, [p] * ndim
    samples = [record.sample(p)]
    for n in range(steps - 1):
        kept = n % problem.interval == offset
        u = inject.spread(problem.source_scale * wavelet[..., n])
        for axis in range(ndim):
            mirrored = axis == 0 and problem.free_surface
            slope = _difference(p, first[axis], axis, -1.0, mirrored)
            psi[axis] = b[axis] * psi[axis] + a[axis] * slope
            curvature = _difference(p, second[axis], axis, 1.0, mirrored)
            w = curvature + _difference(psi[axis], first[axis], axis, -1.0)
            zeta[axis] = b[axis] * zeta[axis] + a[axis] * w
            u = u + w + zeta[axis]
        if kept:
            forward_energy += problem.interval * p.detach() ** 2
        previous, p = p, 2.0 * p - previous + v2dt2 * u
        if kept and p.requires_grad:
            p.register_hook(add_adjoint_energy)  # type: ignore[no-untyped-call]
        samples.append(record.sample(p))
    traces = torch.stack(samples, dim=-1)
    return EagerState(v2dt2, wavelet, traces, forward_energy, adjoint_energy)


def _difference(
    f: Tensor, weights: list[float], axis: int, sign: float, mirrored: bool = False
) -> Tensor:
    """Return the sum of weights times f at positive offsets, and `sign` times f at negative ones.

    Outside the grid f is zero, or before the first cell its mirror image if `mirrored`.
    """
    n, radius = f.shape[axis + 1], len(weights) - 1
    zeros = torch.zeros_like(f.narrow(axis + 1, 0, radius))
    above = -f.narrow(axis + 1, 1, radius).flip(axis + 1) if mirrored else zeros
    padded = torch.cat([above, f, zeros], dim=axis + 1)
    total = weights[0] * f
    for k in range(1, radius + 1):
        after, before = (padded.narrow(axis + 1, first, n) for first in (radius + k, radius - k))
        total = total + weights[k] * (after + sign * before)
    return total


class Stencil:
    """Values at points as sums over the cells of a field (shot, ...), in torch index arithmetic.

    cells: indices into the flattened grid, (shot, point, tap); weights: of the same shape; like: a
    field.
    """

    def __init__(
        self, cells: NDArray[np.int64], weights: NDArray[np.float64], like: Tensor
    ) -> None:
        self.cells = torch.as_tensor(cells, device=like.device)
        self.weights = torch.as_tensor(weights, dtype=like.dtype, device=like.device)
        self.shape = like.shape

    def sample(self, field: Tensor) -> Tensor:
        """Return the values (shot, point) of a field."""
        values = field.flatten(1).gather(1, self.cells.flatten(1)).reshape(self.cells.shape)
        return (values * self.weights).sum(dim=-1)

    def spread(self, values: Tensor) -> Tensor:
        """Return a field with values (shot, point) at the points."""
        terms = (values[..., None] * self.weights).flatten(1)
        field = terms.new_zeros(self.shape).flatten(1)
        return field.scatter_add(1, self.cells.flatten(1), terms).reshape(self.shape)
