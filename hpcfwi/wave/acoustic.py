"""The constant-density acoustic wave equation as a differentiable operator.

(1 / v^2) p_tt - laplacian(p) = s(t) delta(x - x_s). `acoustic` is the function for autograd;
`simulate` gives the same result as an object that can be propagated back shot by shot, with
illuminations, which is what an inversion wants; `choose_history` says beforehand what that will
keep. What is asked for is checked in `task`, the numerics are in `engines`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.wave import engines, sampling, stencil
from hpcfwi.wave.history import Auto, History
from hpcfwi.wave.problem import Gradients, Problem
from hpcfwi.wave.task import set_up


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
    keep: bool = True,
    **options: Any,
) -> Simulation:
    """Simulate shots; the parameters are those of `acoustic`, and those that `task.set_up` adds.

    keep: whether to keep what `Simulation.backpropagate` needs.
    """
    task = set_up(vp, spacing, dt, wavelet, sources, receivers, **options)
    problem = task.problem
    if keep:
        problem = replace(problem, history=task.choose_history())
    return Simulation(problem, task.engine, task.wavelet, task.substeps, keep)


def choose_history(
    vp: Tensor,
    spacing: float | Sequence[float],
    dt: float,
    wavelet: Tensor,
    sources: Tensor | NDArray[np.float64],
    receivers: Tensor | NDArray[np.float64],
    **options: Any,
) -> tuple[History, int]:
    """What `simulate` keeps when it is given the same, and the bytes that this takes, about.

    Nothing is simulated. Raises ValueError and MemoryError as `acoustic` does.
    """
    task = set_up(vp, spacing, dt, wavelet, sources, receivers, **options)
    chosen = task.choose_history()
    return chosen, task.footprint(chosen)


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
