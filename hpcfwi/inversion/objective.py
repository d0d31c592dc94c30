"""The misfit of a model for some shots, and its gradient: global results on every rank.

Shots are dealt to ranks, simulated some at a time with their observed traces, and added up exactly;
`operators.batching` says how many at a time. Times and memory of an epoch are measured here and
added up over ranks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial, reduce
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
from hpcfwi.inversion.wavelets import Estimate, Products, Wavelet
from hpcfwi.model import Model
from hpcfwi.operators.batching import Chunks, work_by_window
from hpcfwi.operators.simulator import Aperture, Simulator, Window, limit_residual
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.exact import NO_REFERENCES, References, Sums, renew_references
from hpcfwi.parallel.recovery import Salvage, poll_deaths
from hpcfwi.parallel.shards import WHOLE, Slabs
from hpcfwi.survey import Survey
from hpcfwi.system import peak_resident_bytes


@dataclass
class Times:
    """Seconds of a rank: its shots, waiting for their data, for other ranks, and sums."""

    compute: float = 0.0
    read: float = 0.0
    wait: float = 0.0
    reduce: float = 0.0

    @contextmanager
    def spent_on(self, what: str) -> Iterator[None]:
        """Count the time of a block for `what`, and not for blocks around it."""
        others = self._sum() - getattr(self, what)
        started = perf_counter()
        try:
            yield
        finally:
            within = self._sum() - getattr(self, what) - others
            spent = perf_counter() - started - within
            setattr(self, what, getattr(self, what) + spent)

    def add(self, other: Times) -> None:
        """Add what was measured of something else."""
        for what, part in asdict(other).items():
            setattr(self, what, getattr(self, what) + part)

    def _sum(self) -> float:
        return sum(asdict(self).values())


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
        """The parts of the time in percent."""
        parts = asdict(self.times)
        whole = sum(parts.values()) or 1.0
        return ", ".join(f"{what} {100.0 * part / whole:.0f} %" for what, part in parts.items())


def measure_timings(times: Times, simulations: int, seconds: float, context: Context) -> Timings:
    """Return the timings of an epoch from the times of each rank; collective."""
    ranks = context.all_gather((asdict(times), peak_resident_bytes()))
    means = {
        part.name: sum(rank[part.name] for rank, _ in ranks) / context.size
        for part in fields(times)
    }
    return Timings(Times(**means), simulations, seconds, max(peak for _, peak in ranks) / 2**20)


# The energies of the forward and the adjoint wave, beside the gradients by their parameters' names.
ILLUMINATIONS = ("source_illumination", "receiver_illumination")
# The gradient with respect to what sources emit, beside them
WAVELET = "wavelet"


@dataclass(frozen=True)
class ShotResult:
    """The misfit of one shot, and its gradients and illuminations in its window, by name.

    fields: None for one that is not finite. The gradient with respect to the wavelets of its
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
    """Estimate the wavelet (time,) of each of these shots from its own traces."""
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
    """Return the observed traces of shots in their window, conditioned for the comparison."""
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
    """Return whether the fields of each shot are finite, in one transfer from the device."""
    flags = [torch.stack([each.isfinite().all() for each in term]) for term in fields.values()]
    return dict(zip(fields, torch.stack(flags).tolist(), strict=True))


T = TypeVar("T")

Observe = Callable[[], NDArray[np.float32]]
"""Waits for observed traces (shot, receiver, time)."""

Work = Callable[[Survey, Window, Observe], list[T]]
"""A function of some shots with the same window that returns one value for each."""


def work_through(
    part: Part,
    work: Work[T],
    simulator: Simulator,
    chunks: Chunks,
    context: Context,
    times: Times,
) -> Iterator[tuple[int, T]]:
    """Yield the result of `work` for each shot of a part, with its number.

    The iterator ends early if memory does not suffice for a single shot: call `chunks.check` after
    it.
    """

    def observe(places: NDArray[np.int64]) -> NDArray[np.float32]:
        with times.spent_on("read"), context.heartbeat.waiting():
            return part.traces()[places]

    def work_alike(places: NDArray[np.int64], survey: Survey, window: Window) -> list[T]:
        with times.spent_on("compute"):
            return work(survey, window, partial(observe, places))

    for place, found in work_by_window(part.survey, work_alike, simulator, chunks):
        yield int(part.shots[place]), found


# Simulations that a shot of a product counts for
PRODUCT = 2


@dataclass(frozen=True)
class Evaluation:
    """Means over the shots of a batch, the same on every rank, but for the times.

    misfit: to the data; penalty: what the regulariser adds, 0 where there is none; gradient: of
    both with respect to the model; illuminations: time sums of the squared
    forward and adjoint fields, by name, zero where they were not asked for or the engine has none.
    Arrays have the model's shape and precision. failed: shots that are not in the means, as what
    they gave is not finite. references: for the next evaluation. simulations: shots that were
    simulated for it, forwards and backwards once, as one rank alone would; of a derivative twice.
    wavelet: the gradient with respect to that of the survey, (time,), where it is an unknown.
    """

    misfit: float
    penalty: float
    gradient: Model
    illuminations: Mapping[str, Tensor]
    failed: tuple[int, ...]
    references: References
    times: Times
    simulations: int
    wavelet: NDArray[np.float64] | None = None

    @property
    def loss(self) -> float:
        """The value that the optimizer minimizes."""
        return self.misfit + self.penalty


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


@dataclass
class Objective:
    """The misfit of models to the observed data, evaluated on all ranks.

    regularizer: what is asked of models beside; reproducible: whether results have the same bits
    for any number of ranks and any schedule; conditioning: of the traces before they are compared;
    samples: of the survey's wavelet, where that is an unknown, or 0; direction: of models, where
    gradients are to be differentiated, see `along`; slabs: in which sums over ranks arrive.

    An evaluation that was interrupted by a death, and is called for again, only simulates what the
    dead had.
    """

    simulator: Simulator
    misfit: Misfit
    context: Context
    chunks: Chunks
    regularizer: Regularizer | None = None
    reproducible: bool = True
    conditioning: Conditioning = NO_CONDITIONING
    samples: int = 0
    direction: Model | None = None
    slabs: Slabs = WHOLE

    def __post_init__(self) -> None:
        self._salvage: Salvage[_Partial] = Salvage(self.context)

    def along(self, direction: Model) -> Objective:
        """The same, but in place of a gradient is its derivative in a direction.

        It is the product of Gauss's and Newton's matrix with the direction: J^T H J d, of traces
        that change with the model by J, and a misfit and a penalty whose gradients change with
        these by H. A shot counts as two: a wave, and what it scatters with the way back.
        """
        return replace(self, direction=direction, samples=0)

    @cached_property
    def _seen_direction(self) -> Model | None:
        return None if self.direction is None else self.simulator.restrict(self.direction)

    @property
    def _cost(self) -> int:
        """Number of simulations that a shot counts for."""
        return self.simulator.cost + (0 if self.direction is None else PRODUCT - 1)

    def evaluate(
        self,
        model: Model,
        batch: Batch,
        references: References | None = None,
        illuminate: bool = True,
    ) -> Evaluation:
        """Simulate this rank's shots, propagate their residuals back, and add up; collective.

        model: of tensors; references: of the evaluation before, from which sums take their
        resolution; where there is none, a shot is simulated beforehand to find them. illuminate:
        whether illuminations are wanted, which make the way back a third longer.

        Raises `InversionFailure` on all ranks where memory does not suffice for one shot, or none
        gives finite numbers.
        """
        times, simulations = Times(), 0
        seen = self.simulator.restrict(model)
        if references is None:
            references, simulations = self._find_references(seen, batch, times)
        while True:
            simulations += batch.shots.size * self._cost
            mine = self._add_up(seen, batch, references, illuminate, times)
            with times.spent_on("wait"):
                self.chunks.check()
                ranks = self.context.all_gather((mine.misfits, mine.failed, mine.sums.largest))
            holds, references = mine.sums.judge(rank[2] for rank in ranks)
            if holds:
                break
        misfits = [misfit for rank in ranks for misfit in rank[0].values()]
        failed = tuple(sorted(shot for rank in ranks for shot in rank[1]))
        if not misfits:
            raise InversionFailure(
                f"none of the shots {list(failed)} gives a finite misfit and gradient, and no step "
                "was made from them: check their data, and the model for velocities that the last "
                "step drove away (a smaller inversion.optimizer.lr or step, inversion.bounds)"
            )
        like = seen.any
        means = {name: torch.zeros_like(like) for name in ILLUMINATIONS}
        with times.spent_on("reduce"):
            for name, total in mine.sums.totals(self.context, self.slabs):
                mean = total / len(misfits)
                means[name] = mean.double() if name == WAVELET else mean.to(like.dtype)
        gradient = Model(seen.grid, {name: means[name] for name in seen.arrays})
        penalty, gradient = 0.0, self.simulator.transpose(gradient)
        if self.regularizer is not None:
            penalty, term = self._regularize(self.regularizer, model)
            gradient = gradient + term
        return Evaluation(
            fsum(misfits) / len(misfits),
            penalty,
            gradient,
            {name: self.simulator.refine(means[name]) for name in ILLUMINATIONS},
            failed,
            references,
            times,
            simulations,
            means[WAVELET].cpu().numpy() if self.samples else None,
        )

    def _find_references(self, model: Model, batch: Batch, times: Times) -> tuple[References, int]:
        """The largest magnitudes of the first shot that is good, which every rank simulates.

        And how many shots it took to find one.
        """
        for tries, shot in enumerate(batch.shots, start=1):
            for _, tried in self._simulate(model, batch.part(np.array([shot])), True, times):
                if tried.is_finite:
                    found = {
                        name: float(term.abs().max())
                        for name, term in tried.fields.items()
                        if term is not None
                    }
                    return renew_references(NO_REFERENCES, found), tries * self._cost
            self.chunks.check()
        return NO_REFERENCES, batch.shots.size * self._cost

    def _regularize(self, regularizer: Regularizer, model: Model) -> tuple[float, Model]:
        if self.direction is None:
            return regularizer(model)
        with forward_ad.dual_level():
            penalty, gradient = regularizer(model.map(forward_ad.make_dual, self.direction))
            return penalty, gradient.map(forward_ad.unpack_dual).map(operator.attrgetter("tangent"))

    def _add_up(
        self, model: Model, batch: Batch, references: References, illuminate: bool, times: Times
    ) -> _Partial:
        names = [*model.arrays, *(ILLUMINATIONS if illuminate else ())]
        shapes, device = dict.fromkeys(names, model.grid.shape), model.any.device
        if self.samples:
            shapes[WAVELET] = (self.samples,)
        sums = Sums(shapes, references, batch.shots.size, device, self.reproducible)
        along = () if self.direction is None else self.direction.arrays.values()
        # Shots of the same numbers have other data in another epoch, where they are encoded
        numbers = batch.epoch, batch.shots.tolist()
        what = (*numbers, references, names, *model.arrays.values(), *along)
        mine = self._salvage.take_up(_Partial(sums), *what)
        done = self._salvage.gather(mine.shots)
        for part in batch.deal(batch.shots[~np.isin(batch.shots, done)]):
            for shot, result in self._simulate(model, part, illuminate, times):
                with times.spent_on("reduce"):
                    mine.add(shot, result)
                poll_deaths(self.context)
            if self.chunks.exhausted:
                break
        return mine

    def _simulate(
        self, model: Model, part: Part, illuminate: bool, times: Times
    ) -> Iterator[tuple[int, ShotResult]]:
        """The results of a part's shots, with their numbers."""
        work = partial(
            evaluate_shots,
            model,
            simulator=self.simulator,
            conditioning=self.conditioning,
            misfit=self.misfit,
            illuminate=illuminate,
            direction=self._seen_direction,
            solves_wavelet=bool(self.samples),
        )
        found = work_through(part, work, self.simulator, self.chunks, self.context, times)
        for shot, result in found:
            yield shot, _collect(result, shot, part)

    def relate(
        self, model: Model, batch: Batch, times: Times, furthest: float | None = None
    ) -> Products:
        """Return products of simulated and observed traces of a batch, by frequency; collective.

        furthest: largest offset of the traces, m, None for all. The sums have the same bits on any
        number of ranks. Raises `InversionFailure` on all ranks if memory does not suffice for one
        shot.
        """
        work = partial(relate_shots, furthest=furthest)
        return reduce(operator.add, self._find_each(work, model, batch, times))

    def estimate_each(
        self, model: Model, batch: Batch, times: Times, wavelets: Estimate
    ) -> Wavelet:
        """Estimate the wavelet of each shot of a batch, (shot, time) in its order; collective.

        The batch has the wavelets with which the shots are simulated. Raises as `relate`.
        """
        work = partial(estimate_shots, wavelets=wavelets)
        found: list[Wavelet] = self._find_each(work, model, batch, times)
        return np.stack(found)

    def _find_each(
        self, work: Callable[..., list[T]], model: Model, batch: Batch, times: Times
    ) -> list[T]:
        """Return the results of `work` for all shots of a batch, on every rank; collective."""
        mine: dict[int, T] = {}
        bound = partial(
            work,
            self.simulator.restrict(model),
            simulator=self.simulator,
            conditioning=self.conditioning,
        )
        for part in batch.deal(batch.shots):
            mine |= work_through(part, bound, self.simulator, self.chunks, self.context, times)
            poll_deaths(self.context)
            if self.chunks.exhausted:
                break
        self.chunks.check()
        ranks = self.context.all_gather(mine)
        found = {shot: each for rank in ranks for shot, each in rank.items()}
        return [found[shot] for shot in batch.shots.tolist()]


def _collect(result: ShotResult, shot: int, part: Part) -> ShotResult:
    """Return a result with the gradient of the wavelets of its shot added up, if there is one."""
    gradient = result.fields.get(WAVELET)
    if gradient is None:
        return result
    collected = torch.from_numpy(part.collect(shot, gradient.cpu().numpy()))
    return replace(result, fields={**result.fields, WAVELET: collected.to(gradient.device)})
