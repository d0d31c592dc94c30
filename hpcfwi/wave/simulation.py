"""Shots simulated in an acoustic model of constant density, and what is done with that.

`simulate` gives an object that can be propagated back shot by shot, with illuminations, which is
what an inversion wants; `acoustic` is the function for autograd. What is asked for is checked in
`task`, the numerics are in `engines`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from hpcfwi.wave import sampling, stencil
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
