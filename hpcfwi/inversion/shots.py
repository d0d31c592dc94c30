"""One shot's misfit and gradient, and how its traces go with the observed ones.

Which shots, on which rank, with how much memory, and what becomes of the results is `objective`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isfinite

import torch
from torch import Tensor
from torch.autograd import forward_ad

from hpcfwi.inversion.conditioning import Conditioned, Conditioning
from hpcfwi.inversion.misfits import Misfit
from hpcfwi.inversion.portions import Observe
from hpcfwi.inversion.wavelets import Estimate, Products, Wavelet
from hpcfwi.model import Model
from hpcfwi.operators.band_limit import limit_residual
from hpcfwi.operators.simulator import Simulator
from hpcfwi.operators.window import Aperture, Window
from hpcfwi.survey import Survey

# The energies of the forward and the adjoint wave, beside the gradients by their parameters' names.
ILLUMINATIONS = ("source_illumination", "receiver_illumination")
# The gradient with respect to what sources emit, beside them
WAVELET = "wavelet"


@dataclass(frozen=True)
class ShotResult:
    """Of one shot: its misfit, and its gradients and illuminations in its window, by name.

    fields: those that there are, None for one that is not finite. That with respect to what its
    sources emit, where it was asked for, is (source, time).
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
    observe: Observe,
    simulator: Simulator,
    conditioning: Conditioning,
    misfit: Misfit,
    illuminate: bool,
    direction: Model | None = None,
    solves_wavelet: bool = False,
) -> list[ShotResult]:
    """Simulate shots, compare them with what was observed, and propagate the difference back.

    model: of tensors; survey: of these shots, which all have this window; observe: their traces
    (shot, receiver, time), asked for when the simulation is done; conditioning: of both, before
    they are compared; illuminate: whether illuminations are wanted; direction: of the model, in
    which gradients are differentiated, to first order in the waves, and what is propagated back is
    the adjoint source's derivative; solves_wavelet: whether the gradient with respect to the
    wavelet is wanted. What a shot gives depends on no other.
    """
    simulation = simulator.simulate(model, survey, True, illuminate, window)
    given = condition(survey, window, observe, simulator, conditioning)

    def compare(simulated: Tensor) -> tuple[Tensor, Tensor]:
        misfits, residual = misfit(*given.meet(simulated), survey.dt)
        return misfits, given.weigh(residual)

    if direction is None:
        misfits, residual = compare(simulation.data)
    else:
        part = {name: array[window.slices] for name, array in direction.arrays.items()}
        misfits, residual = _differentiate(compare, simulation.data, simulation.scatter(part))
    residual[~misfits.isfinite().to(model.any.device)] = 0.0
    found = simulation.backpropagate(limit_residual(residual, simulation, survey.dt))
    others = (*ILLUMINATIONS, WAVELET) if solves_wavelet else ILLUMINATIONS
    fields = {**found.model, **{name: getattr(found, name) for name in others}}
    fields = {name: term for name, term in fields.items() if term is not None}
    sound = _find_finite(fields)

    def fields_of(shot: int) -> dict[str, Tensor | None]:
        return {name: term[shot] if sound[name][shot] else None for name, term in fields.items()}

    return [
        ShotResult(window, value, fields_of(shot)) for shot, value in enumerate(misfits.tolist())
    ]


def relate_shots(
    model: Model,
    survey: Survey,
    window: Window,
    observe: Observe,
    simulator: Simulator,
    conditioning: Conditioning,
    furthest: float | None = None,
) -> list[Products]:
    """Simulate shots, and relate the traces that count to what was observed, by frequency.

    As `evaluate_shots`, but without factors: a filter makes no other traces of muted ones.
    furthest: offset of these traces, m; None: of all.
    """
    simulated = simulator.simulate(model, survey, False, False, window).data.cpu().numpy()
    given = condition(survey, window, observe, simulator, conditioning)
    counts = given.counts
    if furthest is not None:
        receivers = survey.receivers[:, window.trace_mask]
        counts = counts & Aperture(max_offset=furthest).trace_mask(survey.sources, receivers)
    return [
        Products.of(simulated[shot][counts[shot]], given.observed[shot][counts[shot]])
        for shot in range(survey.n_shots)
    ]


def estimate_shots(
    model: Model,
    survey: Survey,
    window: Window,
    observe: Observe,
    simulator: Simulator,
    conditioning: Conditioning,
    wavelets: Estimate,
) -> list[Wavelet]:
    """What each of these shots has emitted (time,), by its own traces; as `relate_shots`."""
    related = relate_shots(
        model, survey, window, observe, simulator, conditioning, wavelets.furthest
    )
    pairs = zip(survey.wavelet, related, strict=True)
    return [wavelets.estimate(*pair, survey.dt) for pair in pairs]


def condition(
    survey: Survey,
    window: Window,
    observe: Observe,
    simulator: Simulator,
    conditioning: Conditioning,
) -> Conditioned:
    """What was observed of shots in their window, and is compared with what is simulated."""
    chosen = window.trace_mask
    mask = None if survey.mask is None else survey.mask[:, chosen]
    shots = replace(survey, receivers=survey.receivers[:, chosen], mask=mask)
    given = conditioning.apply(observe()[:, chosen], shots)
    counts = simulator.aperture.trace_mask(shots.sources, shots.receivers) & given.counts
    if mask is not None:
        counts = counts & mask
    return replace(given, counts=counts)


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


def _find_finite(fields: Mapping[str, Tensor]) -> dict[str, list[bool]]:
    """Whether the fields of each shot are, by name; a device is asked once for all of them."""
    flags = [torch.stack([each.isfinite().all() for each in term]) for term in fields.values()]
    return dict(zip(fields, torch.stack(flags).tolist(), strict=True))
