"""The constant-density acoustic wave equation as a differentiable operator.

(1 / v^2) p_tt - laplacian(p) = s(t) delta(x - x_s). `acoustic` is the function for autograd;
`simulate` gives the same result as an object that can be propagated back shot by shot, with
illuminations, which is what an inversion wants. What is asked for is checked in `task`, the
numerics are in `engines`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.wave import sampling, stencil
from hpcfwi.wave.history import Auto, History
from hpcfwi.wave.task import Acquisition, Method, Task, set_up

Array = TypeVar("Array")


@dataclass(frozen=True)
class ShotGradients:
    """What goes back from a misfit, shot by shot.

    model: with respect to the model's arrays, by name, each (shot, ...); wavelet: (shot, source,
    time), as the wavelet is sampled; source_illumination and receiver_illumination: (shot, ...),
    the time sums of the squared forward and adjoint fields, or None where they are not wanted or
    the engine has none.
    """

    model: Mapping[str, Tensor]
    wavelet: Tensor
    source_illumination: Tensor | None
    receiver_illumination: Tensor | None


class Simulation:
    """One batch of shots, simulated; its derivative and the transpose of that can be applied.

    data: (shot, receiver, time), sampled as the wavelet is; substeps: steps of the simulation
    for each sample; history: what it keeps, or would.
    """

    def __init__(self, task: Task, keep: bool) -> None:
        problem, wavelet, substeps = task.problem, task.wavelet, task.substeps
        if keep:
            problem = replace(problem, history=task.choose_history())
        self._problem, self._engine, self._wavelet = problem, task.engine, wavelet
        self.substeps = substeps
        self.history = problem.history
        refined = sampling.refine(wavelet, substeps)
        traces, self._state = self._engine.forward(problem, refined, keep)
        self._traces_like = traces[..., :1].expand_as(traces)
        self.data = sampling.coarsen(traces, substeps, wavelet.shape[-1])

    def backpropagate(self, residual: Tensor) -> ShotGradients:
        """Gradients, shot by shot, of a misfit whose gradient with respect to data this is.

        residual: (shot, receiver, time). Raises RuntimeError where the simulation kept no history.
        """
        self._require_history()
        n = self._wavelet.shape[-1]
        fine = sampling.transpose(
            partial(sampling.coarsen, substeps=self.substeps, n=n), self._traces_like, residual
        )
        gradients = self._engine.backward(self._problem, self._state, fine)
        wavelet = sampling.transpose(
            partial(sampling.refine, substeps=self.substeps), self._wavelet, gradients.wavelet
        )
        return ShotGradients(
            {"vp": gradients.speed},
            wavelet,
            gradients.source_illumination,
            gradients.receiver_illumination,
        )

    def scatter(self, direction: Mapping[str, Tensor]) -> Tensor:
        """How the data change with the model in a direction: the Born approximation.

        direction: arrays by name, in the shape of the gradients and the parameter's unit. Returns
        (shot, receiver, time): the derivative of `data`, exact where the history keeps every step.
        Whatever it keeps, this is the transpose of `backpropagate`, but for the digits that a
        shorter format loses; the engines eager and deepwave keep every step. Raises RuntimeError
        where the simulation kept no history.
        """
        self._require_history()
        speed = self._problem.speed
        traces = self._engine.scatter(self._problem, self._state, direction["vp"].to(speed))
        return sampling.coarsen(traces, self.substeps, self._wavelet.shape[-1])

    def _require_history(self) -> None:
        if self._state is None:
            raise RuntimeError("this simulation kept no history; simulate with keep=True")


def simulate(
    model: Mapping[str, Tensor],
    spacing: float | Sequence[float],
    acquisition: Acquisition,
    method: Method,
    *,
    keep: bool = True,
    illuminate: bool = True,
    window: tuple[slice, ...] | None = None,
) -> Simulation:
    """Simulate shots; the parameters are those of `task.set_up`.

    keep: whether to keep what `Simulation.backpropagate` needs.
    """
    task = set_up(model, spacing, acquisition, method, window=window, illuminate=illuminate)
    return Simulation(task, keep)


def wave_speed(model: Mapping[str, Array]) -> Array:
    """The speed of the waves in each cell of a model, m/s."""
    return model["vp"]


def warm_up(engine: str, order: int, like: Tensor) -> None:
    """Compile what simulations with this engine and order need, by a tiny one and its gradient.

    like: a tensor with the model's number of axes, precision and device. Compiled code is kept
    where the engine has a place for it: a second time is quick. Raises ValueError as `simulate`.
    """
    vp = torch.full_like(like[(slice(0, 1),) * like.ndim], 2000.0)
    vp = vp.expand((stencil.FEWEST_POINTS,) * like.ndim).contiguous()
    origin = np.zeros((1, like.ndim))
    shot = Acquisition(1e-3, torch.ones(4).to(vp), origin, origin)
    simulation = simulate({"vp": vp}, 10.0, shot, Method(order=order, boundary=1, engine=engine))
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
        (time,) for all shots, (shot, time), or (shot, source, time).
    sources, receivers
        (shot, ndim), or (shot, source, ndim) where several sources of a shot act at once, and
        (shot, receiver, ndim) or (receiver, ndim), m from the grid's first point.
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
        Where an argument has the wrong shape or an impossible value, velocities seem to be in km/s,
        or a gradient with respect to positions is asked for.
    MemoryError
        Where no history fits into the memory at hand, or that given.

    Notes
    -----
    A source is a point of the equation above: v^2 dt^2 s(t) / (volume of a cell) is added to p at
    its cell, and traces do not depend on the spacing. Deepwave's `scalar` adds -v^2 dt^2 s(t): its
    traces times -1 / h^2 in 2-D, -1 / h^3 in 3-D, are those of `acoustic`.
    """
    for positions, name in ((sources, "sources"), (receivers, "receivers")):
        if isinstance(positions, Tensor) and positions.requires_grad:
            raise ValueError(
                f"{name} requires a gradient, and there is none with respect to positions; "
                f"expected {name}.detach()"
            )
    method = Method(
        order, boundary, free_surface, boundary_frequency, max_velocity, engine, history
    )
    data: Tensor = _Acoustic.apply(vp, wavelet, spacing, dt, sources, receivers, method)  # type: ignore[no-untyped-call]
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
        method: Method,
    ) -> Tensor:
        keep = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        shots = Acquisition(dt, wavelet, sources, receivers)
        simulation = simulate({"vp": vp}, spacing, shots, method, keep=keep, illuminate=False)
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
        wavelet = gradients.wavelet
        if ctx.wavelet_ndim == 2:
            wavelet = wavelet.sum(1)
        elif ctx.wavelet_ndim == 1:
            wavelet = wavelet.flatten(0, 1).sum(0)
        model = gradients.model["vp"].sum(0)
        return model, wavelet.to(ctx.wavelet_dtype), None, None, None, None, None
