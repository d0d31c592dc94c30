"""One shot's misfit and gradient, and nothing else.

Which shots, on which rank, with how much memory, and what becomes of the results is `objective`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.inversion.band_limit import limit_residual
from hpcfwi.inversion.conditioning import Conditioning
from hpcfwi.inversion.misfits import Misfit
from hpcfwi.inversion.simulator import Simulator
from hpcfwi.inversion.window import Window
from hpcfwi.model import Model
from hpcfwi.survey import Survey

# The energies of the forward and the adjoint wave, beside the gradients by their parameters' names.
ILLUMINATIONS = ("source_illumination", "receiver_illumination")


@dataclass(frozen=True)
class ShotResult:
    """Of one shot: its misfit, and its gradient and illuminations in its window, by name.

    fields: those that there are, None for one that is not finite.
    """

    window: Window
    misfit: float
    fields: Mapping[str, Tensor | None]

    @property
    def is_finite(self) -> bool:
        """Whether it counts; illuminations are only looked at."""
        gradient = (field for name, field in self.fields.items() if name not in ILLUMINATIONS)
        return isfinite(self.misfit) and all(field is not None for field in gradient)


def evaluate_shots(
    model: Model,
    survey: Survey,
    window: Window,
    observe: Callable[[], NDArray[np.float32]],
    simulator: Simulator,
    conditioning: Conditioning,
    misfit: Misfit,
    illuminate: bool,
) -> list[ShotResult]:
    """Simulate shots, compare them with what was observed, and propagate the difference back.

    model: of tensors; survey: of these shots, which all have this window; observe: their traces
    (shot, receiver, time), asked for when the simulation is done; conditioning: of both, before
    they are compared; illuminate: whether illuminations are wanted. What a shot gives depends on
    no other.
    """
    aperture = simulator.aperture
    simulation = simulator.simulate(model, survey, True, illuminate, window)
    chosen = window.trace_mask
    mask = None if survey.mask is None else survey.mask[:, chosen]
    shots = replace(survey, receivers=survey.receivers[:, chosen], mask=mask)
    given = conditioning.apply(observe()[:, chosen], shots)
    heard = aperture.trace_mask(shots.sources, shots.receivers) & given.counts
    if mask is not None:
        heard = heard & mask
    # A trace that does not count is met as it is, whatever was recorded.
    observed = torch.where(
        torch.from_numpy(heard[..., None]).to(model.any.device),
        torch.from_numpy(given.observed).to(simulation.data),
        simulation.data,
    )
    if given.factors is None:
        misfits, residual = misfit(simulation.data, observed, survey.dt)
    else:
        factors = torch.from_numpy(given.factors).to(simulation.data)
        misfits, residual = misfit(factors * simulation.data, factors * observed, survey.dt)
        residual = factors * residual
    residual[~misfits.isfinite().to(model.any.device)] = 0.0
    found = simulation.backpropagate(limit_residual(residual, simulation, survey.dt))
    fields = {**found.model, **{name: getattr(found, name) for name in ILLUMINATIONS}}
    return [
        ShotResult(
            window,
            float(misfits[shot]),
            {name: _finite(term[shot]) for name, term in fields.items() if term is not None},
        )
        for shot in range(survey.n_shots)
    ]


def _finite(term: Tensor) -> Tensor | None:
    return term if bool(term.isfinite().all()) else None
