"""Deepwave behind the same function: an optional extra, for cross-checks.

Deepwave's `scalar` solves the same equation with a boundary of its own, so that results agree
to the accuracy of the discretisation, not to rounding. It has no illuminations.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, cast

import torch
from torch import Tensor

from hpcfwi.wave.points import spread
from hpcfwi.wave.problem import Gradients, Problem


@dataclass(frozen=True)
class State:
    """The leaves of Deepwave's graph and its output."""

    vp: Tensor
    wavelet: Tensor
    traces: Tensor


def available() -> str | None:
    """Why this engine cannot be used here, or None."""
    if find_spec("deepwave") is None:
        return "Deepwave is not installed (pip install hpcfwi[deepwave])"
    return None


def forward(problem: Problem, wavelet: Tensor, keep: bool) -> tuple[Tensor, State | None]:
    """Traces (shot, receiver, time) for wavelets (shot, time), and what `backward` needs."""
    import deepwave

    shots, steps = wavelet.shape
    ndim = problem.vp.ndim
    with torch.set_grad_enabled(keep):
        vp = problem.vp.expand(shots, *problem.vp.shape).clone().requires_grad_(keep)
        wavelet = wavelet.detach().clone().requires_grad_(keep)
        # Our points act on the model's own cells: Deepwave takes no source in its boundary.
        no_padding = ((0,) * ndim, tuple(problem.vp.shape), problem.free_surface)
        sources = spread(problem.sources, problem.spacing, *no_padding)
        receivers = spread(problem.receivers, problem.spacing, *no_padding)
        scale = -1.0 / float(torch.tensor(problem.spacing).prod())
        weights = torch.as_tensor(sources.weights[:, 0], dtype=vp.dtype)
        emitted = scale * weights[..., None] * wavelet[:, None, :]
        width = [problem.boundary] * (2 * ndim)
        if problem.free_surface:
            width[0] = 0
        listening = torch.as_tensor(receivers.weights, dtype=vp.dtype)
        traces = deepwave.scalar(
            vp,
            list(problem.spacing),
            problem.dt,
            source_amplitudes=emitted,
            source_locations=torch.as_tensor(sources.cells[:, 0]),
            receiver_locations=torch.as_tensor(receivers.cells).flatten(1, 2),
            accuracy=cast(Literal[2, 4, 6, 8], problem.order),
            pml_width=width,
            pml_freq=problem.boundary_frequency,
            max_vel=problem.max_velocity,
            model_gradient_sampling_interval=problem.interval,
        )[-1]
        traces = traces.reshape(*listening.shape, steps)
        traces = (listening[..., None] * traces).sum(dim=2)
    return traces.detach(), State(vp, wavelet, traces) if keep else None


def backward(_: Problem, state: State, residual: Tensor) -> Gradients:
    """Gradients from the one with respect to the traces, (shot, receiver, time)."""
    vp, wavelet = torch.autograd.grad(
        state.traces, (state.vp, state.wavelet), residual, retain_graph=True
    )
    return Gradients(vp, wavelet, None, None)
