"""One shot's misfit and gradient, and nothing else.

Which shots, on which rank, with how much memory, and what becomes of the results is `objective`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import forward_ad

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
    misfit: Misfit,
    illuminate: bool,
    direction: Model | None = None,
) -> list[ShotResult]:
    """Simulate shots, compare them with what was observed, and propagate the difference back.

    model: of tensors; survey: of these shots, which all have this window; observe: their traces
    (shot, receiver, time), asked for when the simulation is done; illuminate: whether
    illuminations are wanted; direction: of the model, in which gradients are differentiated, to
    first order in the waves, and what is propagated back is the adjoint source's derivative. What a
    shot gives depends on no other.
    """
    aperture = simulator.aperture
    simulation = simulator.simulate(model, survey, True, illuminate, window)
    observed = torch.from_numpy(observe()[:, window.trace_mask]).to(simulation.data)
    heard = torch.from_numpy(aperture.trace_mask(survey.sources, survey.receivers))
    heard = heard[:, window.trace_mask, None].to(model.any.device)

    def compare(simulated: Tensor) -> tuple[Tensor, Tensor]:
        # A trace that does not count is met as it is, whatever was recorded.
        return misfit(simulated, torch.where(heard, observed, simulated), survey.dt)

    if direction is None:
        misfits, residual = compare(simulation.data)
    else:
        part = {name: array[window.slices] for name, array in direction.arrays.items()}
        misfits, residual = _differentiate(compare, simulation.data, simulation.scatter(part))
    residual[~misfits.isfinite().to(model.any.device)] = 0.0
    found = simulation.backpropagate(residual)
    fields = {**found.model, **{name: getattr(found, name) for name in ILLUMINATIONS}}
    return [
        ShotResult(
            window,
            float(misfits[shot]),
            {name: _finite(term[shot]) for name, term in fields.items() if term is not None},
        )
        for shot in range(survey.n_shots)
    ]


def _differentiate(
    compare: Callable[[Tensor], tuple[Tensor, Tensor]], simulated: Tensor, change: Tensor
) -> tuple[Tensor, Tensor]:
    """The misfits, and how their adjoint sources change with the traces, to first order."""
    with forward_ad.dual_level():
        changing = forward_ad.make_dual(simulated, change)  # type: ignore[no-untyped-call]
        misfits, residual = compare(changing)
        found = forward_ad.unpack_dual(residual).tangent  # type: ignore[no-untyped-call]
        # There is none where no trace counts
        found = torch.zeros_like(simulated) if found is None else found
        return misfits.detach(), found


def _finite(term: Tensor) -> Tensor | None:
    return term if bool(term.isfinite().all()) else None
