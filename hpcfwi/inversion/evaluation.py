"""The misfit of a model for some shots, and its gradient: global results on every rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcfwi.errors import InversionFailure
from hpcfwi.inversion.experiment import Physics
from hpcfwi.inversion.misfit import least_squares
from hpcfwi.inversion.sampler import Batch
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


def evaluate(
    vp: Tensor, batch: Batch, physics: Physics, context: Context, illuminate: bool = True
) -> Evaluation:
    """Simulate this rank's shots, propagate their residuals back, and add up; collective.

    illuminate: whether illuminations are wanted, which make the way back a third longer.

    Shots are summed in float64, whose rounding is far below that of the float32 results: their
    order and the number of ranks do not show. Raises `InversionFailure` on all ranks where a
    shot's misfit or gradient is not finite.
    """
    sums = torch.zeros(3, *vp.shape, dtype=torch.float64, device=vp.device)
    misfits: list[float] = []
    failed: list[int] = []
    for first in range(0, batch.mine.size, context.threads):
        part = slice(first, first + context.threads)
        simulation = physics.simulate(
            vp,
            batch.survey.select(np.arange(batch.mine.size)[part]),
            keep=True,
            illuminate=illuminate,
        )
        observed = torch.from_numpy(batch.observed[part]).to(vp)
        misfit, residual = least_squares(simulation.data, observed, batch.survey.dt)
        gradients = simulation.backpropagate(residual)
        for k, shot in enumerate(batch.mine[part]):
            sums[0] += gradients.vp[k]
            if gradients.source_illumination is not None:
                sums[1] += gradients.source_illumination[k]
            if gradients.receiver_illumination is not None:
                sums[2] += gradients.receiver_illumination[k]
            misfits.append(float(misfit[k]))
            if not (torch.isfinite(misfit[k]) and torch.isfinite(gradients.vp[k]).all()):
                failed.append(int(shot))
    _check_finite(context.all_gather(failed))
    total = context.sum(torch.tensor([sum(misfits)], dtype=torch.float64))
    count = batch.shots.size
    gradient, source, receiver = (context.sum(sums) / count).to(vp.dtype)
    return Evaluation(float(total) / count, gradient, source, receiver)


def _check_finite(failed: list[list[int]]) -> None:
    shots = sorted(shot for part in failed for shot in part)
    if shots:
        raise InversionFailure(
            f"the misfit or gradient of shots {shots} is not finite, and no step was made from it: "
            "check these shots' data, and the model for velocities that the last step drove away "
            "(a smaller inversion.optimizer.lr, inversion.bounds)"
        )
