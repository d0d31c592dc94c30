"""The misfit of a model for some shots, and its gradient, summed over all ranks.

Shots are distributed over ranks, simulated in chunks with their observed traces, and summed
exactly; `operators.simulator` decides the size of chunks. The times and the memory of an epoch are
measured here and combined over ranks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import fsum, isfinite
from time import perf_counter
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import forward_ad

from hpcfwi.errors import InversionFailure
from hpcfwi.inversion.conditioning import NO_CONDITIONING, Conditioned, Conditioning
from hpcfwi.inversion.misfits import Misfit
from hpcfwi.inversion.regularizers import Regularizer
from hpcfwi.inversion.stages import Batch, Part
from hpcfwi.inversion.wavelets import CrossSpectra, Estimate, Wavelet
from hpcfwi.model import Model
from hpcfwi.operators.simulator import (
    TOLERATED,
    Aperture,
    Chunks,
    Simulator,
    Window,
    limit_to_history,
)
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.exact import NO_MAGNITUDES, Magnitudes, Sums, update_magnitudes
from hpcfwi.parallel.recovery import Salvage, raise_if_rank_failed
from hpcfwi.parallel.shards import WHOLE, Shards
from hpcfwi.survey import Survey
from hpcfwi.system import peak_resident_bytes

# Names of the fields for the energies of the forward and the adjoint wave.
ILLUMINATIONS = ("source_illumination", "receiver_illumination")
# Name of the field for the gradient with respect to the wavelets.
WAVELET = "wavelet"
# Number of simulations that a shot counts as in a product.
PRODUCT = 2

T = TypeVar("T")


@dataclass(frozen=True)
class Evaluation:
    """Means over the shots of a batch; they are the same on every rank, except for the times.

    misfit: of the data; penalty: of the regularizer, 0 without one; gradient: of both with respect
    to the model; illuminations: those of `wave.Gradients`, by name, zero if they were not requested
    or the engine has none; failed: shots that are left out because their results are not finite;
    magnitudes: the largest absolute value of a shot's term in each sum, from which the next
    evaluation takes the unit of its exact sums; times: of this rank; simulations: number of
    simulated shots, where the forward and the backward pass together count once, and a derivative
    twice; wavelet_gradient: with respect to the wavelet of the survey, (time,), if that is an
    unknown.
    """

    misfit: float
    penalty: float
    gradient: Model
    illuminations: Mapping[str, Tensor]
    failed: tuple[int, ...]
    magnitudes: Magnitudes
    times: Times
    simulations: int
    wavelet_gradient: NDArray[np.float64] | None = None

    @property
    def loss(self) -> float:
        """The value that the optimizer minimizes."""
        return self.misfit + self.penalty


@dataclass
class Objective:
    """The misfit of models to the observed data, evaluated on all ranks.

    regularizer: a penalty of models; reproducible: True if results have the same bits for any
    number of ranks and any schedule; conditioning: of the traces before they are compared;
    wavelet_samples: number of samples of the survey's wavelet if that is an unknown, otherwise 0;
    direction: see `along`; shards: the division of sums over ranks.

    If a death interrupts the first evaluation of an epoch, the remaining ranks keep the shots that
    they have finished. Later evaluations, products and cross-spectra are repeated as a whole.
    """

    simulator: Simulator
    misfit: Misfit
    context: Context
    chunks: Chunks
    regularizer: Regularizer | None = None
    reproducible: bool = True
    conditioning: Conditioning = NO_CONDITIONING
    wavelet_samples: int = 0
    direction: Model | None = None
    shards: Shards = WHOLE

    def __post_init__(self) -> None:
        self._salvage: Salvage[_Partial] = Salvage(self.context)

    def along(self, direction: Model) -> Objective:
        """Return an objective whose gradient is replaced by its derivative in a direction.

        This is the product of the Gauss-Newton matrix and the direction, (J^T H J + R) d, where J
        is the derivative of the traces with respect to the model, H that of the adjoint source with
        respect to the traces, and R that of the gradient of the penalty with respect to the model.
        """
        return replace(self, direction=direction, wavelet_samples=0)

    @cached_property
    def _coarse_direction(self) -> Model | None:
        return None if self.direction is None else self.simulator.restrict(self.direction)

    @property
    def _cost(self) -> int:
        return self.simulator.simulations_per_shot + (0 if self.direction is None else PRODUCT - 1)

    def evaluate(
        self,
        model: Model,
        batch: Batch,
        magnitudes: Magnitudes | None = None,
        illuminate: bool = True,
    ) -> Evaluation:
        """Simulate shots, propagate their adjoint sources back, and add up over ranks; collective.

        model: of tensors; magnitudes: of the previous evaluation; if there are none, a shot is
        simulated first to find them; illuminate: True if illuminations are wanted, which lengthen
        the backward pass by a third.

        Raises `InversionFailure` on all ranks if memory does not suffice for one shot, or if no
        shot gives finite results.
        """
        times, simulations = Times(), 0
        coarse_model = self.simulator.restrict(model)
        if magnitudes is None:
            magnitudes, simulations = self._find_magnitudes(coarse_model, batch, times)
        # Repeated if a term does not fit the scale of the integers, which is rare.
        while True:
            simulations += batch.shots.size * self._cost
            mine = self._add_up(coarse_model, batch, magnitudes, illuminate, times)
            with times.spent_on("wait"):
                self.chunks.check()
                ranks = self.context.all_gather((mine.misfits, mine.failed, mine.sums.largest))
            holds, magnitudes = mine.sums.check_scales(rank[2] for rank in ranks)
            if holds:
                break
        misfits = [misfit for rank in ranks for misfit in rank[0].values()]
        failed = tuple(sorted(shot for rank in ranks for shot in rank[1]))
        if not misfits:
            raise InversionFailure(
                f"none of the shots {list(failed)} gives a finite misfit and gradient, so no step "
                "is possible: check their data, and whether the last step led to extreme "
                "velocities (use a smaller inversion.optimizer.lr or step, or inversion.bounds)"
            )
        like = coarse_model.any
        # Zeros that take no memory
        means = dict.fromkeys(ILLUMINATIONS, like.new_zeros(()).expand_as(like))
        with times.spent_on("reduce"):
            for name, total in mine.sums.totals(self.context, self.shards):
                mean = total.div_(len(misfits))
                means[name] = mean.double() if name == WAVELET else mean.to(like.dtype)
        gradient = Model(coarse_model.grid, {name: means[name] for name in coarse_model.arrays})
        penalty, gradient = 0.0, self.simulator.transpose(gradient)
        if self.regularizer is not None:
            penalty, term = self._regularize(self.regularizer, model)
            gradient = gradient + term
        return Evaluation(
            misfit=fsum(misfits) / len(misfits),
            penalty=penalty,
            gradient=gradient,
            illuminations={name: self.simulator.refine(means[name]) for name in ILLUMINATIONS},
            failed=failed,
            magnitudes=magnitudes,
            times=times,
            simulations=simulations,
            wavelet_gradient=means[WAVELET].cpu().numpy() if self.wavelet_samples else None,
        )

    def _find_magnitudes(self, model: Model, batch: Batch, times: Times) -> tuple[Magnitudes, int]:
        """Return the largest magnitudes of one shot's results, and the number of simulations.

        This is the first shot with finite results. Every rank simulates it; the magnitudes are
        those of rank 0, because another device may round differently. Collective.
        """
        for tries, shot in enumerate(batch.shots, start=1):
            largest: dict[str, float] = {}
            for _, tried in self._simulate(model, batch.part(np.array([shot])), True, times):
                if tried.is_finite:
                    largest = {
                        name: float(term.abs().max())
                        for name, term in tried.fields.items()
                        if term is not None
                    }
            with times.spent_on("wait"):
                self.chunks.check()
                largest = self.context.broadcast(largest)
            if largest:
                return update_magnitudes(NO_MAGNITUDES, largest), tries * self._cost
        return NO_MAGNITUDES, batch.shots.size * self._cost

    def _regularize(self, regularizer: Regularizer, model: Model) -> tuple[float, Model]:
        if self.direction is None:
            return regularizer(model)
        with forward_ad.dual_level():
            penalty, gradient = regularizer(model.map(forward_ad.make_dual, self.direction))
            return penalty, gradient.map(forward_ad.unpack_dual).map(operator.attrgetter("tangent"))

    def _add_up(
        self, model: Model, batch: Batch, magnitudes: Magnitudes, illuminate: bool, times: Times
    ) -> _Partial:
        """Add up the results of this rank's shots.

        Calls, from here to the waves: `Batch.deal`, `_simulate`, `work_on`,
        `Chunks.for_each_shot`, `evaluate_shots`, `Simulator.simulate`.
        """
        names = [*model.arrays, *(ILLUMINATIONS if illuminate else ())]
        shapes, device = dict.fromkeys(names, model.grid.shape), model.any.device
        if self.wavelet_samples:
            shapes[WAVELET] = (self.wavelet_samples,)
        sums = Sums(shapes, magnitudes, batch.shots.size, device, self.reproducible)
        along = () if self.direction is None else self.direction.arrays.values()
        # The epoch is included, because encoded shots of other epochs have other data.
        numbers = batch.epoch, batch.shots.tolist()
        what = (*numbers, magnitudes, names, *model.arrays.values(), *along)
        mine = self._salvage.take_up(_Partial(sums), *what)
        done = self._salvage.gather(mine.shots)
        for part in batch.deal(batch.shots[~np.isin(batch.shots, done)]):
            for shot, result in self._simulate(model, part, illuminate, times):
                with times.spent_on("reduce"):
                    mine.add(shot, result)
                raise_if_rank_failed(self.context)
            if self.chunks.exhausted:
                break
        return mine

    def _simulate(
        self, model: Model, part: Part, illuminate: bool, times: Times
    ) -> Iterator[tuple[int, ShotResult]]:
        """Yield the results of a part's shots, with their numbers."""
        work = partial(
            evaluate_shots,
            model=model,
            misfit=self.misfit,
            illuminate=illuminate,
            direction=self._coarse_direction,
            solves_wavelet=bool(self.wavelet_samples),
        )
        for shot, result in self.work_on(part, work, times):
            gradient, fields = result.fields.get(WAVELET), result.fields
            if gradient is not None:
                collected = torch.from_numpy(part.collect(shot, gradient.cpu().numpy()))
                fields = {**fields, WAVELET: collected.to(gradient.device)}
            yield shot, replace(result, fields=fields)

    def work_on(
        self, part: Part, work: Callable[[AlikeShots], list[T]], times: Times
    ) -> Iterator[tuple[int, T]]:
        """Yield the result of `work` for each shot of a part, with its number.

        work: a function that returns a value for each shot. The iterator ends early if memory does
        not suffice for a single shot: call `chunks.check` after it.
        """
        simulator, conditioning = self.simulator, self.conditioning

        def read_traces(places: NDArray[np.int64]) -> NDArray[np.float32]:
            with times.spent_on("read"), self.context.heartbeat.waiting():
                return part.traces()[places]

        def work_alike(places: NDArray[np.int64], survey: Survey, window: Window) -> list[T]:
            read, numbers = partial(read_traces, places), part.shots[places]
            with times.spent_on("compute"):
                return work(AlikeShots(numbers, survey, window, read, simulator, conditioning))

        for place, found in self.chunks.for_each_shot(part.survey, simulator, work_alike):
            yield int(part.shots[place]), found

    def find_each(
        self, work: Callable[..., list[T]], model: Model, batch: Batch, times: Times
    ) -> list[T]:
        """Return the results of `work` for the shots of a batch, in their order; collective.

        work: `relate_shots` or `estimate_shots`. Every rank gets all results. Raises
        `InversionFailure` on all ranks if memory does not suffice for one shot.
        """
        mine: dict[int, T] = {}
        bound = partial(work, model=self.simulator.restrict(model))
        for part in batch.deal(batch.shots):
            mine |= self.work_on(part, bound, times)
            raise_if_rank_failed(self.context)
            if self.chunks.exhausted:
                break
        self.chunks.check()
        ranks = self.context.all_gather(mine)
        found = {shot: each for rank in ranks for shot, each in rank.items()}
        return [found[shot] for shot in batch.shots.tolist()]


@dataclass
class _Partial:
    """The sums over the shots of a batch on one rank."""

    sums: Sums
    misfits: dict[int, float] = field(default_factory=dict)
    failed: list[int] = field(default_factory=list)

    def add(self, shot: int, result: ShotResult) -> None:
        if not result.is_finite:
            self.failed.append(shot)
            return
        self.misfits[shot] = result.misfit
        fields = dict(result.fields)
        self.sums.add({WAVELET: fields.pop(WAVELET, None)})
        self.sums.add(fields, result.window.slices)

    @property
    def shots(self) -> list[int]:
        return [*self.misfits, *self.failed]


@dataclass(frozen=True)
class AlikeShots:
    """Some shots with the same window, which are simulated together.

    numbers: in the whole survey; survey: of these shots; read_traces: waits for their observed
    traces (shot, receiver, time), and is called after the simulation; conditioning: of observed and
    simulated traces.
    """

    numbers: NDArray[np.int64]
    survey: Survey
    window: Window
    read_traces: Callable[[], NDArray[np.float32]]
    simulator: Simulator
    conditioning: Conditioning

    def simulate(self, model: Model) -> Tensor:
        """Return traces that are simulated without a history, on the CPU."""
        simulation = self.simulator.simulate(model, self.survey, False, False, self.window)
        return simulation.data.cpu()

    def condition(self) -> Conditioned:
        """Return the observed traces in the window, conditioned for the comparison."""
        survey, chosen = self.survey, self.window.trace_mask
        shots = replace(
            survey,
            receivers=survey.receivers[:, chosen],
            mask=None if survey.mask is None else survey.mask[:, chosen],
            components=survey.components.select_receivers(chosen),
        )
        given = self.conditioning.apply(self.read_traces()[:, chosen], shots)
        near = self.simulator.aperture.within_offsets(shots.sources, shots.receivers)
        return replace(given, counts=given.counts & near)


@dataclass(frozen=True)
class ShotResult:
    """The misfit of one shot, and its gradients and illuminations in its window, by name.

    fields: None for a field that is not finite. The gradient with respect to the wavelets of the
    sources, if requested, is (source, time).
    """

    window: Window
    misfit: float
    fields: Mapping[str, Tensor | None]

    @property
    def is_finite(self) -> bool:
        """True if the misfit and the gradients are finite; illuminations do not matter."""
        gradient = (field for name, field in self.fields.items() if name not in ILLUMINATIONS)
        return isfinite(self.misfit) and all(field is not None for field in gradient)


def evaluate_shots(
    shots: AlikeShots,
    model: Model,
    misfit: Misfit,
    illuminate: bool,
    direction: Model | None = None,
    solves_wavelet: bool = False,
) -> list[ShotResult]:
    """Simulate shots, compare them with the observed data, and propagate adjoint sources back.

    model: of tensors; illuminate: True if illuminations are wanted; direction: a change of the
    model, with which the derivative of the adjoint source along the scattered traces is propagated
    back, see `Objective.along`; solves_wavelet: True if the gradient with respect to the wavelet is
    wanted. The result of a shot does not depend on others.
    """
    survey, window = shots.survey, shots.window
    simulation = shots.simulator.simulate(model, survey, True, illuminate, window)
    conditioned = shots.condition()

    def compare(simulated: Tensor) -> tuple[Tensor, Tensor]:
        misfits, adjoint_source = misfit(*conditioned.pair_traces(simulated), survey.dt)
        return misfits, conditioned.weigh(adjoint_source)

    if direction is None:
        misfits, adjoint_source = compare(simulation.data)
    else:
        part = {name: array[window.slices] for name, array in direction.arrays.items()}
        misfits, adjoint_source = _differentiate(compare, simulation.data, simulation.scatter(part))
    adjoint_source[~misfits.isfinite().to(model.any.device)] = 0.0
    adjoint_source = limit_to_history(adjoint_source, simulation, survey.dt, TOLERATED)
    gradients = simulation.backpropagate(adjoint_source)
    others = (*ILLUMINATIONS, WAVELET) if solves_wavelet else ILLUMINATIONS
    wanted = {name: gradients.model[name] for name in model.arrays}
    fields = {**wanted, **{name: getattr(gradients, name) for name in others}}
    fields = {name: term for name, term in fields.items() if term is not None}
    # A single transfer from the device tells which fields of which shots are finite.
    flags = [torch.stack([each.isfinite().all() for each in term]) for term in fields.values()]
    results = []
    for shot, finite in enumerate(torch.stack(flags, dim=1).tolist()):
        each = {
            name: term[shot] if is_finite else None
            for (name, term), is_finite in zip(fields.items(), finite, strict=True)
        }
        results.append(ShotResult(window, float(misfits[shot]), each))
    return results


def _differentiate(
    compare: Callable[[Tensor], tuple[Tensor, Tensor]], simulated: Tensor, change: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the misfits, and the first-order change of their adjoint sources with the traces."""
    with forward_ad.dual_level():
        changing = forward_ad.make_dual(simulated, change)  # type: ignore[no-untyped-call]
        misfits, adjoint_source = compare(changing)
        found = forward_ad.unpack_dual(adjoint_source).tangent  # type: ignore[no-untyped-call]
        # If no trace counts, there is no tangent.
        found = torch.zeros_like(simulated) if found is None else found
        return misfits.detach(), found


def relate_shots(
    shots: AlikeShots, model: Model, furthest: float | None = None
) -> list[CrossSpectra]:
    """Simulate shots, and return the cross-spectra of their traces.

    Traces are multiplied by their gains, but not by factors, because a filter does not map muted
    traces to muted traces. furthest: largest offset of the traces, m; None for all.
    """
    survey = shots.survey
    simulated, given = shots.simulate(model).numpy(), shots.condition()
    counts, observed = given.counts, given.observed
    if given.gains is not None:
        simulated, observed = given.gains * simulated, given.gains * observed
    if furthest is not None:
        receivers = survey.receivers[:, shots.window.trace_mask]
        counts = counts & Aperture(max_offset=furthest).within_offsets(survey.sources, receivers)
    return [
        CrossSpectra.of(simulated[shot][counts[shot]], observed[shot][counts[shot]])
        for shot in range(survey.n_shots)
    ]


def estimate_shots(shots: AlikeShots, model: Model, wavelets: Estimate) -> list[Wavelet]:
    """Estimate the wavelet (time,) of each of these shots from its own traces."""
    related = relate_shots(shots, model, wavelets.furthest)
    pairs = zip(shots.survey.wavelet, related, strict=True)
    return [wavelets.estimate(wavelet, spectra, shots.survey.dt) for wavelet, spectra in pairs]


@dataclass
class Times:
    """Times of a rank, s: simulating shots, waiting for data and for other ranks, and summing."""

    compute: float = 0.0
    read: float = 0.0
    wait: float = 0.0
    reduce: float = 0.0

    @contextmanager
    def spent_on(self, what: str) -> Iterator[None]:
        """Count the time of a block as `what`, and not for enclosing blocks."""
        times = vars(self)
        others = sum(times.values()) - times[what]
        started = perf_counter()
        try:
            yield
        finally:
            within = sum(times.values()) - times[what] - others
            times[what] += perf_counter() - started - within

    def add(self, other: Times) -> None:
        for what, part in vars(other).items():
            vars(self)[what] += part


@dataclass(frozen=True)
class Timings:
    """Timings of an epoch.

    times: means over ranks; simulations: shots simulated by all ranks together; seconds: duration
    of the epoch; memory: peak of any rank so far, MB.
    """

    times: Times
    simulations: int
    seconds: float
    memory: float

    def describe(self) -> str:
        """Return the parts of the time, in percent."""
        parts = vars(self.times)
        whole = sum(parts.values()) or 1.0
        return ", ".join(f"{what} {100.0 * part / whole:.0f} %" for what, part in parts.items())


def measure_timings(times: Times, simulations: int, seconds: float, context: Context) -> Timings:
    """Return the timings of an epoch from the times of each rank; collective."""
    ranks = context.all_gather((vars(times), peak_resident_bytes()))
    means = {what: sum(rank[what] for rank, _ in ranks) / context.size for what in vars(times)}
    return Timings(Times(**means), simulations, seconds, max(peak for _, peak in ranks) / 2**20)
