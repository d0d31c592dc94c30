"""The misfit of a model for some shots, and its gradient: global results on every rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.errors import InversionFailure
from hpcfwi.inversion.experiment import Physics
from hpcfwi.inversion.misfit import least_squares
from hpcfwi.inversion.portions import Portions
from hpcfwi.inversion.sampler import Batch
from hpcfwi.inversion.window import Window, group_shots
from hpcfwi.parallel.context import Context


@dataclass(frozen=True)
class Evaluation:
    """Means over the shots of a batch, the same on every rank.

    gradient: of the misfit with respect to vp; illuminations: time sums of the squared
    forward and adjoint fields, zero where they were not asked for or the engine has none. Arrays
    have the model's shape and precision.
    """

    misfit: float
    gradient: Tensor
    source_illumination: Tensor
    receiver_illumination: Tensor


@dataclass(frozen=True)
class _Shot:
    """One shot's misfit, and its gradient and illuminations in its window."""

    number: int
    window: Window
    misfit: float
    parts: tuple[Tensor | None, ...]
    is_finite: bool


def evaluate(
    vp: Tensor,
    batch: Batch,
    physics: Physics,
    context: Context,
    portions: Portions,
    illuminate: bool = True,
) -> Evaluation:
    """Simulate this rank's shots, propagate their residuals back, and add up; collective.

    illuminate: whether illuminations are wanted, which make the way back a third longer.

    Shots are summed in float64, whose rounding is far below that of the float32 results: their
    order and the number of ranks do not show. Raises `InversionFailure` on all ranks where a
    shot's misfit or gradient is not finite, or memory does not suffice for one.
    """
    sums = torch.zeros(3, *vp.shape, dtype=torch.float64, device=vp.device)
    misfits: list[float] = []
    failed: list[int] = []
    for shots in portions.each(batch.mine.size, partial(_evaluate, vp, batch, physics, illuminate)):
        for shot in shots:
            for total, part in zip(sums, shot.parts, strict=True):
                if part is not None:
                    total[shot.window.slices] += part
            misfits.append(shot.misfit)
            if not shot.is_finite:
                failed.append(shot.number)
    portions.check()
    _check_finite(context.all_gather(failed))
    total = context.sum(torch.tensor([sum(misfits)], dtype=torch.float64))
    count = batch.shots.size
    gradient, source, receiver = (context.sum(sums) / count).to(vp.dtype)
    return Evaluation(float(total) / count, gradient, source, receiver)


def _evaluate(
    vp: Tensor, batch: Batch, physics: Physics, illuminate: bool, portion: slice
) -> list[_Shot]:
    """Some of a rank's shots, those that have the same window in one simulation."""
    places = np.arange(batch.mine.size)[portion]
    windows = list(physics.reach.find_windows(physics.grid, batch.survey.select(places)))
    groups = group_shots(windows)
    return [
        shot
        for group in groups
        for shot in _evaluate_in(windows[group[0]], vp, batch, places[group], physics, illuminate)
    ]


def _evaluate_in(
    window: Window,
    vp: Tensor,
    batch: Batch,
    shots: NDArray[np.int64],
    physics: Physics,
    illuminate: bool,
) -> list[_Shot]:
    """Shots of a window, given by their places in the rank's part of the batch."""
    survey = batch.survey.select(shots)
    simulation = physics.simulate(vp, survey, True, illuminate, window)
    observed = torch.from_numpy(batch.observed[shots][:, window.listening]).to(vp)
    heard = torch.from_numpy(physics.reach.hears(survey.sources, survey.receivers))
    heard = heard[:, window.listening, None].to(vp.device)
    # A trace that does not count is met as it is, whatever was recorded.
    observed = torch.where(heard, observed, simulation.data)
    misfits, residual = least_squares(simulation.data, observed, survey.dt)
    found = simulation.backpropagate(residual)
    fields = (found.vp, found.source_illumination, found.receiver_illumination)
    finite = misfits.isfinite() & found.vp.flatten(1).isfinite().all(dim=1)
    return [
        _Shot(
            int(batch.mine[shot]),
            window,
            float(misfits[k]),
            tuple(None if field is None else field[k] for field in fields),
            bool(finite[k]),
        )
        for k, shot in enumerate(shots)
    ]


def _check_finite(failed: list[list[int]]) -> None:
    shots = sorted(shot for part in failed for shot in part)
    if shots:
        raise InversionFailure(
            f"the misfit or gradient of shots {shots} is not finite, and no step was made from it: "
            "check these shots' data, and the model for velocities that the last step drove away "
            "(a smaller inversion.optimizer.lr, inversion.bounds)"
        )
