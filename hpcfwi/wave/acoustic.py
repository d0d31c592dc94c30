"""The constant-density acoustic wave equation as a differentiable operator.

(1 / v^2) p_tt - laplacian(p) = s(t) delta(x - x_s). `acoustic` is the function for autograd;
`simulate` gives the same result as an object that can be propagated back shot by shot, with
illuminations, which is what an inversion wants; `choose_history` says beforehand what that will
keep. The numerics are in `engines`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.wave import engines, sampling, stencil
from hpcfwi.wave import history as histories
from hpcfwi.wave.history import Auto, History, Snapshots
from hpcfwi.wave.memory import memory_at_hand
from hpcfwi.wave.problem import Gradients, Problem
from hpcfwi.wave.wavelet import peak_frequency


class Simulation:
    """One batch of shots, simulated; its transpose can be applied to residuals.

    data: (shot, receiver, time), sampled as the wavelet is; substeps: steps of the simulation
    for each sample; history: what it keeps, or would.
    """

    def __init__(
        self,
        problem: Problem,
        engine: engines.Engine,
        wavelet: Tensor,
        substeps: int,
        keep: bool,
    ) -> None:
        self._problem, self._engine, self._wavelet = problem, engine, wavelet
        self.substeps = substeps
        self.history = problem.history
        traces, self._state = engine.forward(problem, sampling.refine(wavelet, substeps), keep)
        self._traces_like = traces[..., :1].expand_as(traces)
        self.data = sampling.coarsen(traces, substeps, wavelet.shape[-1])

    def backpropagate(self, residual: Tensor) -> Gradients:
        """Gradients, shot by shot, of a misfit whose gradient with respect to data this is.

        residual: (shot, receiver, time). The wavelet's gradient is (shot, time), as the
        wavelet is sampled. Raises RuntimeError where the simulation kept no history.
        """
        if self._state is None:
            raise RuntimeError("this simulation kept no history; simulate with keep=True")
        n = self._wavelet.shape[-1]
        fine = sampling.transpose(
            partial(sampling.coarsen, substeps=self.substeps, n=n), self._traces_like, residual
        )
        gradients = self._engine.backward(self._problem, self._state, fine)
        wavelet = sampling.transpose(
            partial(sampling.refine, substeps=self.substeps), self._wavelet, gradients.wavelet
        )
        return Gradients(
            gradients.vp, wavelet, gradients.source_illumination, gradients.receiver_illumination
        )


def simulate(
    vp: Tensor,
    spacing: float | Sequence[float],
    dt: float,
    wavelet: Tensor,
    sources: Tensor | NDArray[np.float64],
    receivers: Tensor | NDArray[np.float64],
    *,
    order: int = 8,
    boundary: int = 20,
    free_surface: bool = False,
    boundary_frequency: float | None = None,
    max_velocity: float | None = None,
    engine: str = "auto",
    history: str | Auto | History = "auto",
    window: tuple[slice, ...] | None = None,
    keep: bool = True,
    illuminate: bool = True,
) -> Simulation:
    """Simulate shots; the parameters are those of `acoustic`.

    window: the part of the model that is simulated, within absorbing boundaries of its own, as
    slices of its axes; all of it where None. Positions still count from the model's first point,
    and substeps are the model's; gradients have the shape of the part. keep: whether to keep what
    `Simulation.backpropagate` needs; illuminate: whether its illuminations are wanted.
    """
    task = _set_up(
        vp,
        spacing,
        dt,
        wavelet,
        sources,
        receivers,
        order=order,
        boundary=boundary,
        free_surface=free_surface,
        boundary_frequency=boundary_frequency,
        max_velocity=max_velocity,
        engine=engine,
        window=window,
        illuminate=illuminate,
    )
    asked = _ask(history, task, dt)
    problem = task.problem
    if keep:
        problem = replace(problem, history=_choose(asked, task))
    return Simulation(problem, task.engine, task.wavelet, task.substeps, keep)


def choose_history(
    vp: Tensor,
    spacing: float | Sequence[float],
    dt: float,
    wavelet: Tensor,
    sources: Tensor | NDArray[np.float64],
    receivers: Tensor | NDArray[np.float64],
    *,
    history: str | Auto | History = "auto",
    **options: Any,
) -> tuple[History, int]:
    """What `simulate` keeps when it is given the same, and the bytes that this takes at most.

    Nothing is simulated. Raises ValueError and MemoryError as `acoustic` does.
    """
    task = _set_up(vp, spacing, dt, wavelet, sources, receivers, **options)
    chosen = _choose(_ask(history, task, dt), task)
    return chosen, task.footprint(chosen)


@dataclass(frozen=True)
class _Task:
    """A problem whose history is not chosen yet, and who solves it.

    wavelet: (shot, time) in the model's precision; substeps: steps for each of its samples.
    """

    problem: Problem
    engine: engines.Engine
    wavelet: Tensor
    substeps: int

    def footprint(self, history: History) -> int:
        """Bytes that the engine takes at most with this history."""
        steps = sampling.count_steps(self.wavelet.shape[-1], self.substeps)
        return self.engine.footprint(replace(self.problem, history=history), steps)


@torch.no_grad()
def _set_up(
    vp: Tensor,
    spacing: float | Sequence[float],
    dt: float,
    wavelet: Tensor,
    sources: Tensor | NDArray[np.float64],
    receivers: Tensor | NDArray[np.float64],
    *,
    order: int = 8,
    boundary: int = 20,
    free_surface: bool = False,
    boundary_frequency: float | None = None,
    max_velocity: float | None = None,
    engine: str = "auto",
    window: tuple[slice, ...] | None = None,
    illuminate: bool = True,
) -> _Task:
    vp = vp.detach()
    _check_model(vp)
    chosen = engines.choose(engine, vp.device)
    steps = _as_spacing(spacing, vp.ndim)
    points = [
        _as_positions(p, name, vp.ndim)
        for p, name in ((sources, "sources"), (receivers, "receivers"))
    ]
    wavelet, source_points, receiver_points = _align(wavelet.detach(), *points)
    if boundary_frequency is not None and not 0.0 <= boundary_frequency < np.inf:
        raise ValueError(
            f"boundary_frequency is {boundary_frequency}; expected a frequency (Hz), 0 or more"
        )
    if max_velocity is not None and not 0.0 < max_velocity < np.inf:
        raise ValueError(f"max_velocity is {max_velocity}; expected a positive velocity (m/s)")
    fastest = float(vp.max())
    tuned_to = fastest if max_velocity is None else float(max_velocity)
    if window is not None:
        first = np.array([part.start for part in window]) * np.asarray(steps)
        vp, source_points, receiver_points = (
            vp[window],
            source_points - first,
            receiver_points - first,
        )
    _check_scheme(vp, steps, dt, wavelet, order, boundary, (source_points, receiver_points))
    if boundary_frequency is None:
        boundary_frequency = peak_frequency(wavelet.cpu().numpy(), dt)
    substeps = sampling.count_substeps(
        dt, stencil.longest_step(order, steps, max(fastest, tuned_to))
    )
    problem = Problem(
        vp=vp,
        spacing=steps,
        dt=dt / substeps,
        sources=source_points[:, None, :],
        receivers=receiver_points,
        order=order,
        boundary=boundary,
        free_surface=free_surface,
        boundary_frequency=boundary_frequency,
        max_velocity=tuned_to,
        history=Snapshots(interval=1),
        illuminate=illuminate,
    )
    return _Task(problem, chosen, wavelet.to(vp), substeps)


def warm_up(engine: str, order: int, like: Tensor) -> None:
    """Compile what simulations with this engine and order need, by a tiny one and its gradient.

    like: a tensor with the model's number of axes, precision and device. Compiled code is kept
    where the engine has a place for it: a second time is quick. Raises ValueError as `simulate`.
    """
    vp = torch.full_like(like[(slice(0, 1),) * like.ndim], 2000.0)
    vp = vp.expand((stencil.FEWEST_POINTS,) * like.ndim).contiguous()
    origin = np.zeros((1, like.ndim))
    simulation = simulate(
        vp, 10.0, 1e-3, torch.ones(4).to(vp), origin, origin, order=order, boundary=1, engine=engine
    )
    simulation.backpropagate(simulation.data)


def acoustic(
    vp: Tensor,
    spacing: float | Sequence[float],
    dt: float,
    wavelet: Tensor,
    sources: Tensor | NDArray[np.float64],
    receivers: Tensor | NDArray[np.float64],
    *,
    order: int = 8,
    boundary: int = 20,
    free_surface: bool = False,
    boundary_frequency: float | None = None,
    max_velocity: float | None = None,
    engine: str = "auto",
    history: str | Auto | History = "auto",
) -> Tensor:
    """Pressure at the receivers of every shot, differentiable in `vp` and `wavelet`.

    Parameters
    ----------
    vp
        (nz, nx) or (nz, ny, nx), m/s, float32 or float64; the result is of its type and device.
    spacing
        Of the grid, m: one for all axes or one for each.
    dt
        Of the wavelet and of the traces, s. Where it is too long for a stable scheme, each step
        is divided into the smallest sufficient number of substeps.
    wavelet
        (time,) for all shots or (shot, time).
    sources, receivers
        (shot, ndim) and (shot, receiver, ndim) or (receiver, ndim), m from the grid's first point.
    order
        Of the differences in space: 2, 4, 6 or 8.
    boundary
        Cells of absorbing boundary (CPML) around the model.
    free_surface
        Whether p = 0 at z = 0, in place of the absorbing boundary above.
    boundary_frequency, max_velocity
        Hz and m/s that the boundary is tuned to; the wavelet's peak and the model's maximum
        where not given. Give both and gradients do not depend on `vp.max()`.
    engine
        "auto", "eager", "cpu", "gpu" or "deepwave".
    history
        "auto", "snapshots", "boundary", "recompute", or an object of `hpcfwi.wave.history`, such as
        `Snapshots(interval=1)`, which gives the exact gradient of the discrete scheme.

    Returns
    -------
    (shot, receiver, time); sample n is p at n dt, and p is 0 up to the first sample.

    Raises
    ------
    ValueError
        Where an argument has the wrong shape or an impossible value.
    MemoryError
        Where no history fits into the memory at hand, or that given.
    """
    options = {
        "order": order,
        "boundary": boundary,
        "free_surface": free_surface,
        "boundary_frequency": boundary_frequency,
        "max_velocity": max_velocity,
        "engine": engine,
        "history": history,
    }
    data: Tensor = _Acoustic.apply(vp, wavelet, spacing, dt, sources, receivers, options)  # type: ignore[no-untyped-call]
    return data


class _Acoustic(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        vp: Tensor,
        wavelet: Tensor,
        spacing: float | Sequence[float],
        dt: float,
        sources: Tensor | NDArray[np.float64],
        receivers: Tensor | NDArray[np.float64],
        options: dict[str, Any],
    ) -> Tensor:
        keep = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        simulation = simulate(
            vp, spacing, dt, wavelet, sources, receivers, keep=keep, illuminate=False, **options
        )
        ctx.simulation, ctx.wavelet_ndim, ctx.wavelet_dtype = (
            simulation,
            wavelet.ndim,
            wavelet.dtype,
        )
        # Not the tensor that the simulation holds: this one will hold the simulation by its graph.
        return simulation.data.detach()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, residual: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.simulation.backpropagate(residual)
        wavelet = gradients.wavelet.sum(0) if ctx.wavelet_ndim == 1 else gradients.wavelet
        return gradients.vp.sum(0), wavelet.to(ctx.wavelet_dtype), None, None, None, None, None


def _ask(wanted: str | Auto | History, task: _Task, dt: float) -> Auto | History:
    """What `wanted` stands for, its interval resolved; ValueError where the engine has none."""
    asked = histories.parse(wanted)
    kind = asked.kind if isinstance(asked, Auto) else histories.kind_of(asked)
    kinds = task.engine.HISTORIES
    if kind is not None and kind not in kinds:
        raise ValueError(
            f"history is {kind}; this engine has {', '.join(kinds)}: choose one of them"
        )
    interval = histories.sampling_interval(asked, task.wavelet.cpu().numpy(), dt, task.substeps)
    if isinstance(asked, Auto) and asked.exact is None:
        is_double = task.problem.vp.dtype == torch.float64
        asked = replace(asked, exact=interval == 1 or is_double)
    return replace(asked, interval=interval)


def _choose(asked: Auto | History, task: _Task) -> History:
    """The fastest that fits the memory given or at hand, where there is a choice."""
    if not isinstance(asked, Auto):
        return asked
    memory = asked.memory
    if memory is None:
        memory = memory_at_hand(task.problem.vp.device) + task.engine.idle()
    return histories.choose(asked, task.engine.HISTORIES, memory, task.footprint)


def _check_model(vp: Tensor) -> None:
    if vp.ndim not in (2, 3) or not vp.is_floating_point():
        raise ValueError(
            f"vp is {vp.dtype} {tuple(vp.shape)}; expected floating point (nz, nx) or (nz, ny, nx)"
        )
    if min(vp.shape) < stencil.FEWEST_POINTS:
        raise ValueError(
            f"vp is {tuple(vp.shape)}; expected at least {stencil.FEWEST_POINTS} points along "
            "each axis"
        )
    if not bool(torch.isfinite(vp).all()) or float(vp.min()) <= 0.0:
        raise ValueError("vp has values that are not finite or not positive; expected m/s above 0")


def _as_spacing(spacing: float | Sequence[float], ndim: int) -> tuple[float, ...]:
    steps = (
        (float(spacing),) * ndim
        if isinstance(spacing, (int, float))
        else tuple(map(float, spacing))
    )
    if len(steps) != ndim or not all(0.0 < h < np.inf for h in steps):
        raise ValueError(
            f"spacing is {spacing}; expected a positive length (m), or one for each axis"
        )
    return steps


def _as_positions(
    positions: Tensor | NDArray[np.float64], name: str, ndim: int
) -> NDArray[np.float64]:
    if isinstance(positions, Tensor):
        positions = positions.detach().cpu().numpy()
    array = np.asarray(positions, dtype=np.float64)
    if array.ndim not in (2, 3) or array.shape[-1] != ndim or not np.isfinite(array).all():
        raise ValueError(
            f"{name} is {array.shape}; expected finite positions (..., {ndim}) in m "
            f"for a {ndim}-D model"
        )
    return array


def _align(
    wavelet: Tensor, sources: NDArray[np.float64], receivers: NDArray[np.float64]
) -> tuple[Tensor, NDArray[np.float64], NDArray[np.float64]]:
    """All with their shots written out: (shot, time), (shot, ndim), (shot, receiver, ndim)."""
    if sources.ndim != 2:
        raise ValueError(f"sources is {sources.shape}; expected (shot, ndim)")
    shots = sources.shape[0]
    if receivers.ndim == 2:
        receivers = np.broadcast_to(receivers, (shots, *receivers.shape))
    if wavelet.ndim == 1:
        wavelet = wavelet.expand(shots, -1)
    if receivers.shape[0] != shots or wavelet.ndim != 2 or wavelet.shape[0] != shots:
        raise ValueError(
            f"sources has {shots} shots, receivers {receivers.shape[0]} and wavelet is "
            f"{tuple(wavelet.shape)}; expected the same number of shots"
        )
    return wavelet, sources, receivers


def _check_scheme(
    vp: Tensor,
    spacing: tuple[float, ...],
    dt: float,
    wavelet: Tensor,
    order: int,
    boundary: int,
    points: Sequence[NDArray[np.float64]],
) -> None:
    if order not in stencil.ORDERS:
        raise ValueError(f"order is {order}; expected one of {stencil.ORDERS}")
    if boundary < 0:
        raise ValueError(f"boundary is {boundary}; expected a number of cells, 0 or more")
    if not 0.0 < dt < np.inf:
        raise ValueError(f"dt is {dt}; expected a positive time (s)")
    if wavelet.shape[-1] < 2:
        raise ValueError(f"wavelet has {wavelet.shape[-1]} samples; expected at least 2")
    last = (np.asarray(vp.shape) - 1) * np.asarray(spacing)
    slack = 1e-6 * np.asarray(spacing)
    for positions, name in zip(points, ("source", "receiver"), strict=True):
        outside = ((positions < -slack) | (positions > last + slack)).any(axis=-1)
        if outside.any():
            first = positions[outside][0]
            raise ValueError(
                f"{outside.sum()} {name} positions lie outside the model, the first at "
                f"{first.tolist()} m; expected 0 to {last.tolist()} m"
            )
