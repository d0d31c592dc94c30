"""Stages, which are parts of an inversion with different settings, and the batch of each epoch.

A stage has an experiment with its settings; `config` decides which keys may differ between stages.
The sampler gives each rank the shots of a batch that it simulates, with their data.

The shots of an epoch are a function of the settings, among them the seed, and of the epoch's
number. Every rank therefore draws the same shots, and a continued run draws the same shots as a run
without a break, without any state. An encoded shot has all sources of a survey at once, with random
signs. Its gradient is that of the whole survey plus cross-talk between shots, which has a mean of
zero (Krebs et al. 2009, doi:10.1190/1.3230502). It is simulated like any shot with several sources.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate
from math import ceil, frexp, ldexp, log2
from typing import Self, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.config import Config
from hpcfwi.config.inversion import InversionSection
from hpcfwi.errors import InputError
from hpcfwi.inversion.conditioning import Band
from hpcfwi.inversion.experiment import Experiment, find_costs, find_taper, limit_survey
from hpcfwi.inversion.layers import refuse_layers
from hpcfwi.inversion.preconditioning import Preconditioner
from hpcfwi.inversion.wavelets import Wavelet, Wavelets
from hpcfwi.operators.simulator import Chunks
from hpcfwi.operators.vectors import Coarsening
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.shards import Schedule
from hpcfwi.registry import SAMPLINGS, find
from hpcfwi.storage.gathers import Prefetcher, Traces
from hpcfwi.survey import Survey

ShotNumbers = NDArray[np.int64]


@dataclass(frozen=True)
class Stage:
    """A part of an inversion.

    number: from 0; before: number of epochs of all earlier stages; experiment: with the settings of
    this stage; taper: factors of cells around sources and receivers, which `ready` computes.
    """

    number: int
    name: str
    before: int
    experiment: Experiment
    taper: NDArray[np.float64] | None = None

    @property
    def section(self) -> InversionSection:
        return self.experiment.config.inversion

    @property
    def last(self) -> int:
        """The number of the last epoch of the stage."""
        return self.before + self.section.epochs

    def epoch_in_stage(self, epoch: int) -> int:
        """Return the number of an epoch within the stage, from 0."""
        return epoch - self.before - 1

    def progress(self, epoch: int) -> float:
        """Return the progress of the stage at an epoch: 0 for its first, 1 for its last."""
        return self.epoch_in_stage(epoch) / max(1, self.section.epochs - 1)

    @property
    def wavelet(self) -> Wavelet:
        """The wavelet of the survey, (time,); the mean if shots have different ones."""
        return np.atleast_2d(self.experiment.survey.wavelet).mean(axis=0, dtype=np.float32)

    def wavelets(self) -> Wavelets:
        """Return the method by which the wavelet is found."""
        return cast(Wavelets, self.section.wavelet.bind()())

    @cached_property
    def preconditioner(self) -> Preconditioner | None:
        """The preconditioner of the stage's gradients, None if there is none."""
        asked = self.section.precondition
        if asked is None:
            return None
        assert asked.taper is None or self.taper is not None, "the stage is ready"
        peak, equation = self.experiment.survey.spectrum.peak, self.experiment.equation
        return Preconditioner(asked, peak, equation.slowest, self.taper)

    def ready(self, context: Context) -> Stage:
        """Return the stage with its taper, if its settings have one; collective."""
        asked, experiment = self.section.precondition, self.experiment
        if asked is None or asked.taper is None:
            return self
        taper = find_taper(experiment.survey, asked.taper, experiment.initial.grid, context)
        return replace(self, taper=taper)

    @cached_property
    def draws(self) -> Draws:
        """The draws of the stage's shots."""
        return Draws.of(self.section, self.experiment.survey.n_shots, self.number)

    def shots(self, epoch: int) -> ShotNumbers:
        """Return the numbers of an epoch's shots, unordered; encoded shots are numbered from 0."""
        number = self.draws.number(self.epoch_in_stage(epoch))
        if self.section.encoding != "none":
            return np.arange(self.draws.sizes[number])
        return cast(Choose, find(SAMPLINGS[self.section.sampling]))(self.draws, number)


# Grid points per shortest wavelength, for each order of the differences, with which differences in
# space make phase velocities too low by at most 1.4 per cent. The longest stable steps make them
# too high by up to 3.2 per cent.
POINTS = {2: 11.0, 4: 5.5, 6: 4.5, 8: 4.0}
# Amplitude at the highest frequency that is considered, as a share of the wavelet's largest.
FAINT = 0.01


def make_stages(experiment: Experiment, context: Context) -> list[Stage]:
    """Return the stages of an experiment, a single one if its config has none; collective.

    They are kept for the whole run, because examining all shots takes long. Raises `InputError` on
    all ranks if the grid of a stage has too few planes for `wave.ranks_per_shot`.
    """
    stages: list[Stage] = []
    for number, (name, config) in enumerate(experiment.config.stages()):
        before = stages[-1].last if stages else 0
        stage = Stage(number, name, before, _as_in(config, experiment, context))
        where = f"stage.{number + 1}." if experiment.config.stage else ""
        refuse_layers(stage.experiment, where, context)
        stages.append(stage)
    return stages


def _as_in(config: Config, experiment: Experiment, context: Context) -> Experiment:
    """Return the experiment of a stage with this config; collective."""
    survey, band = experiment.survey, None
    if config.data.band is not None:
        band = Band(*config.data.band, survey.n_samples, survey.dt)
        survey = limit_survey(survey, band, context)
    changed = replace(experiment, config=config, survey=survey, band=band)
    spacing = config.wave.spacing
    if spacing == "auto":
        # The coarsest one that carries the wavelet in the slowest initial cells.
        slowest = float(changed.equation.slowest(experiment.initial.arrays).min())
        spacing = slowest / (survey.spectrum.highest(FAINT) * POINTS[config.wave.order])
    if spacing is not None:
        changed = replace(changed, coarsening=Coarsening.to(experiment.initial.grid, spacing))
    costs = find_costs(changed.aperture, changed.wave_grid, survey, context)
    return replace(changed, costs=costs)


@dataclass(frozen=True)
class Part:
    """Some of the shots of a batch.

    shots: their numbers in the survey; survey: of these shots only; traces: waits for the observed
    traces (shot, receiver, time) and returns them; signs: of the sources of encoded shots.
    """

    shots: ShotNumbers
    survey: Survey
    traces: Traces
    signs: Signs | None = None

    def with_wavelet(self, wavelet: Wavelet) -> Part:
        """Return the part with this wavelet: (time,) for all sources, or (shot, time)."""
        if self.signs is not None:
            wavelets = self.signs[:, :, None].astype(np.float32) * wavelet
        elif wavelet.ndim == 1:
            wavelets = np.broadcast_to(wavelet, (self.shots.size, wavelet.size))
        else:
            wavelets = wavelet[self.shots]
        return replace(self, survey=replace(self.survey, wavelet=wavelets))

    def collect(self, shot: int, gradient: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the gradient of a shot with respect to the common wavelet, (time,).

        gradient: with respect to the wavelets of its sources, (source, time). This is the transpose
        of `with_wavelet`.
        """
        signs = np.ones(1) if self.signs is None else self.signs[self.shots == shot][0]
        return (signs[:, None] * gradient.astype(np.float64)).sum(axis=0)


@dataclass(frozen=True)
class Batch:
    """The shots of an epoch.

    epoch: its number, from 1; shots: the numbers of all its shots, unordered; key: equal for epochs
    of a stage with the same shots; part: returns the part with given shots; deal: yields the parts
    of this rank, of all shots or of the remaining ones, as the schedule decides; all ranks call it
    together. Both are those of the sampler that has drawn the batch, encoded or not.
    """

    epoch: int
    shots: ShotNumbers
    key: tuple[int, ...]
    part: Callable[[ShotNumbers], Part]
    deal: Callable[[ShotNumbers], Iterator[Part]]

    def with_wavelet(self, wavelet: Wavelet) -> Batch:
        """Return the batch with this wavelet, see `Part.with_wavelet`."""
        return replace(
            self,
            part=lambda shots: self.part(shots).with_wavelet(wavelet),
            deal=lambda left: (part.with_wavelet(wavelet) for part in self.deal(left)),
        )


class Sampler:
    """The draws of batches for the epochs of a stage, with data that are read in advance.

    costs: of simulating each shot of the survey, in any unit; chunks: of this rank's shots.
    """

    def __init__(
        self,
        stage: Stage,
        costs: NDArray[np.float64],
        schedule: Schedule,
        chunks: Chunks,
        prefetcher: Prefetcher,
    ) -> None:
        self._stage, self._survey, self._costs = stage, stage.experiment.survey, costs
        self._schedule, self._chunks, self._prefetcher = schedule, chunks, prefetcher
        self._chosen: dict[int, ShotNumbers] = {}
        self._begun: dict[int, Part] = {}

    def take(self, epoch: int) -> Batch:
        """Return the batch of an epoch, and draw the shots of the next one, to read them early."""
        following = range(epoch, min(epoch + 1, self._stage.last) + 1)
        self._chosen = {e: self._stage.shots(e) for e in following}
        shots = self._chosen[epoch]
        key = tuple(sorted(shots.tolist()))
        return Batch(epoch, shots, key, self._part, partial(self._deal, epoch))

    def _deal(self, epoch: int, left: ShotNumbers) -> Iterator[Part]:
        """Yield this rank's parts; begin to read the first ones of this epoch and of the next.

        The epoch before has begun to read the first part of this one, unless the epoch is evaluated
        again, or only the shots in `left` remain after a death.
        """
        if left.size < self._chosen[epoch].size:
            self._begun[epoch] = self._begin(left)
        before = self._begun
        self._begun = {e: before.get(e) or self._begin(s) for e, s in self._chosen.items()}
        first = self._begun.pop(epoch)
        yield from _deal_all(self._in_order(left), first, self._part, self._schedule, self._chunks)

    def _begin(self, shots: ShotNumbers) -> Part:
        shots = self._in_order(shots)
        return self._part(shots[self._schedule.first(shots.size)])

    def _in_order(self, shots: ShotNumbers) -> ShotNumbers:
        return shots[self._schedule.order(self._costs[shots])]

    def _part(self, shots: ShotNumbers) -> Part:
        return Part(shots, self._survey.select(shots), self._prefetcher.request(shots))


class EncodedSampler:
    """The draws of batches of encoded shots for the epochs of a stage."""

    def __init__(self, stage: Stage, data: EncodedData, schedule: Schedule, chunks: Chunks) -> None:
        self._stage, self._data, self._number = stage, data, -1
        self._schedule, self._chunks = schedule, chunks

    def take(self, epoch: int) -> Batch:
        """Return the batch of an epoch; collective."""
        draws = self._stage.draws
        number = draws.number(self._stage.epoch_in_stage(epoch))
        if number != self._number:
            self._signs, self._number = draw_signs(draws, number), number
            self._traces = self._data.combine(self._signs)
        shots = self._stage.shots(epoch)
        return Batch(epoch, shots, (number, shots.size), self._part, self._deal)

    def _deal(self, left: ShotNumbers) -> Iterator[Part]:
        first = self._part(left[self._schedule.first(left.size)])
        return _deal_all(left, first, self._part, self._schedule, self._chunks)

    def _part(self, shots: ShotNumbers) -> Part:
        traces, signs = partial(self._traces.__getitem__, shots), self._signs[shots]
        # Only these shots are encoded, because each of them has the wavelets of all shots.
        encoded = self._stage.experiment.survey.encoded(signs)
        return Part(shots, encoded.select(np.arange(shots.size)), traces, signs)


def _deal_all(
    shots: ShotNumbers,
    first: Part,
    make_part: Callable[[ShotNumbers], Part],
    schedule: Schedule,
    chunks: Chunks,
) -> Iterator[Part]:
    """Yield this rank's parts of the shots in the order of the schedule, beginning with `first`.

    All ranks call this together. Each rank takes its next part when it has finished one.
    """
    schedule.begin()
    part = first
    while part.shots.size:
        yield part
        part = make_part(shots[schedule.more(shots.size, chunks.size)])


@dataclass(frozen=True)
class Draws:
    """The draws of a stage, one after the other.

    stage: its number, from 0; n_shots: of the survey; sizes: number of shots of each draw; hold:
    number of epochs that share a draw. With `sampling = "sweep"` the draws go through all shots of
    the survey in passes, each in its own order.
    """

    seed: int
    stage: int
    n_shots: int
    sizes: tuple[int, ...]
    hold: int = 1
    _orders: list[ShotNumbers] = field(default_factory=list, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, section: InversionSection, n_shots: int, stage: int = 0) -> Self:
        """Return the draws that a section describes."""
        count = -(-section.epochs // section.hold)
        first, last = section.batch_ends(n_shots)
        sizes = np.linspace(first, last, count).round().astype(int)
        return cls(section.seed, stage, n_shots, tuple(sizes.tolist()), section.hold)

    @cached_property
    def starts(self) -> list[int]:
        """The total number of shots in the draws before each draw, and at the end in all draws."""
        return [0, *accumulate(self.sizes)]

    def number(self, epoch: int) -> int:
        """Return the number of an epoch's draw; both are numbered from 0."""
        return epoch // self.hold

    def generator(self, number: int) -> np.random.Generator:
        """Return the generator of random numbers for the draw of this number."""
        return np.random.default_rng([self.seed, number, self.stage])

    def shuffled(self, number: int) -> ShotNumbers:
        """Return all shots of the survey in random order."""
        return self.generator(number).permutation(self.n_shots).astype(np.int64)

    def order(self, index: int) -> ShotNumbers:
        """Return all shots of the survey in the order of a pass, numbered from 0.

        It depends on the pass before it. The orders of all passes are kept, 8 bytes for each shot.
        """
        while len(self._orders) <= index:
            self._orders.append(self._follow(len(self._orders)))
        return self._orders[index]

    def _follow(self, index: int) -> ShotNumbers:
        """Return the shuffled order of the next pass, but first shots that its first draw lacks."""
        shuffled = self.shuffled(index)
        draw = bisect_right(self.starts, index * self.n_shots) - 1
        # So many shots of the draw end the pass before.
        begun = index * self.n_shots - self.starts[draw]
        if begun == 0:
            return shuffled
        is_new = ~np.isin(shuffled, self._orders[index - 1][-begun:])
        first = shuffled[is_new][: self.sizes[draw] - begun]
        return np.concatenate([first, shuffled[~np.isin(shuffled, first)]])


Choose = Callable[[Draws, int], ShotNumbers]
"""A function that returns the distinct shots of draw `number`; see `registry.SAMPLINGS`."""


def take_all(draws: Draws, number: int) -> ShotNumbers:
    """Return every shot of the survey."""
    return draws.shuffled(number)


def draw_anew(draws: Draws, number: int) -> ShotNumbers:
    """Return shots drawn independently of other draws, so that a shot may be repeated early."""
    return draws.shuffled(number + 1)[: draws.sizes[number]]


def sweep(draws: Draws, number: int) -> ShotNumbers:
    """Return shots so that each is used once before any is repeated, in changing order.

    Passes through the survey follow each other without a gap. If a draw contains the end of one
    pass and the beginning of the next, the next begins with shots that the draw lacks.
    """
    n_shots, (begin, end) = draws.n_shots, draws.starts[number : number + 2]
    passes = range(begin // n_shots, -(-end // n_shots))
    orders = np.concatenate([draws.order(index) for index in passes])
    return orders[begin - passes.start * n_shots :][: end - begin]


Signs = NDArray[np.int8]
"""(encoded shot, shot of the survey), each -1 or 1."""

# Bits of the integers that double precision represents exactly.
EXACT = 53
# Number of shots that are read at a time.
AT_A_TIME = 4


def draw_signs(draws: Draws, number: int) -> Signs:
    """Return the signs of the encoded shots of a draw, numbered from 0."""
    shape = (draws.sizes[number], draws.n_shots)
    return draws.generator(number).choice(np.array([-1, 1], dtype=np.int8), shape)


@dataclass(frozen=True)
class Lattice:
    """The multiples of a power of two, `unit`, which double precision adds exactly in any order."""

    unit: float

    @classmethod
    def of(cls, largest: float, terms: int) -> Lattice:
        """Return the lattice on which sums of so many terms up to `largest` are exact."""
        spare = EXACT - 1 - ceil(log2(max(terms, 1)))
        return cls(ldexp(1.0, frexp(largest)[1] - spare))

    def round(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the multiples nearest to these values, in single precision."""
        return (np.rint(values.astype(np.float64) / self.unit) * self.unit).astype(np.float32)


class EncodedData:
    """The observed data of a survey, for sums over all shots; construction is collective.

    Each rank has the data of a part of the shots. They stay in memory if `holds`, and are otherwise
    read again each time. Raises `InputError` on all ranks if a value is not finite, because it
    would be in every sum.
    """

    def __init__(
        self, shape: tuple[int, int, int], prefetcher: Prefetcher, context: Context, holds: bool
    ) -> None:
        self._shape, self._prefetcher, self._context = shape, prefetcher, context
        self._mine = np.array_split(np.arange(shape[0]), context.size)[context.rank]
        largest, faulty = 0.0, []
        held: list[tuple[ShotNumbers, NDArray[np.float32]]] = []
        for shots, traces in self._read():
            finite = np.isfinite(traces).all(axis=(1, 2))
            faulty += shots[~finite].tolist()
            largest = max(largest, float(np.abs(traces[finite]).max(initial=0.0)))
            if holds:
                held.append((shots, traces))
        ranks = context.all_gather((largest, faulty))
        faults = sorted(shot for _, shots in ranks for shot in shots)
        if faults:
            context.raise_on_all_ranks(
                InputError(
                    'inversion.encoding = "signs"',
                    f"the observed data of shots {faults} have values that are not finite, which "
                    "every encoded shot would contain",
                    "Remove these shots from the data, or invert without an encoding.",
                )
            )
        self._lattice = Lattice.of(max(most for most, _ in ranks), shape[0])
        # Pieces are rounded one at a time, so that at most one of them is in memory twice.
        for k, (shots, traces) in enumerate(held):
            held[k] = shots, self._lattice.round(traces)
        self._held = held

    def combine(self, signs: Signs) -> NDArray[np.float32]:
        """Return the observed data of encoded shots (shot, receiver, time); collective.

        They have the same bits for any number of ranks.
        """
        total = torch.zeros((len(signs), *self._shape[1:]), dtype=torch.float64)
        read_again = ((shots, self._lattice.round(traces)) for shots, traces in self._read())
        for shots, traces in self._held or read_again:
            for shot, gather in zip(shots, torch.from_numpy(traces), strict=True):
                for k, encoded in enumerate(total):
                    encoded.add_(gather, alpha=int(signs[k, shot]))
        with self._context.heartbeat.waiting():
            whole = self._context.sum(total.to(self._context.device))
        return whole.to(torch.float32).cpu().numpy()

    def _read(self) -> Iterator[tuple[ShotNumbers, NDArray[np.float32]]]:
        """Yield this rank's shots and traces, a few at a time, while the next ones are read."""
        pieces = [self._mine[i : i + AT_A_TIME] for i in range(0, self._mine.size, AT_A_TIME)]
        requests = [self._prefetcher.request(shots) for shots in pieces[:1]]
        for following, shots in enumerate(pieces, start=1):
            requests += [self._prefetcher.request(after) for after in pieces[following:][:1]]
            self._context.heartbeat.beat()
            yield shots, requests.pop(0)()
