"""Stages, which are parts of an inversion with keys of their own, and the batch of each epoch.

The experiment of a stage has what differs from the whole; `config` decides what may differ. The
sampler gives each rank the shots of a batch that it simulates, with their data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hpcfwi.config import Config
from hpcfwi.config.inversion import InversionSection
from hpcfwi.inversion.conditioning import Band
from hpcfwi.inversion.draws import Choose, Draws, EncodedData, Shots, Signs, draw_signs, encode
from hpcfwi.inversion.experiment import Experiment, find_costs, find_taper, limit_survey
from hpcfwi.inversion.preconditioning import Preconditioner
from hpcfwi.inversion.wavelets import Wavelet, Wavelets
from hpcfwi.operators.batching import Chunks
from hpcfwi.operators.simulator import Coarsening
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.shards import Schedule
from hpcfwi.registry import SAMPLINGS, find
from hpcfwi.storage.background import Prefetcher, Traces
from hpcfwi.survey import Survey
from hpcfwi.wave.simulation import wave_speed


@dataclass(frozen=True)
class Stage:
    """A part of an inversion.

    number: from 0; before: epochs of the stages before it, so that its first is the one after;
    experiment: as this stage has it; taper: factors of cells around sources and receivers, of a
    stage that is ready for its epochs.
    """

    number: int
    name: str
    before: int
    experiment: Experiment
    taper: NDArray[np.float64] | None = None
    _draws: dict[int, Draws] = field(default_factory=dict, repr=False, compare=False)

    @property
    def section(self) -> InversionSection:
        """The section [inversion] of the stage."""
        return self.experiment.config.inversion

    @property
    def last(self) -> int:
        """The number of its last epoch."""
        return self.before + self.section.epochs

    def place(self, epoch: int) -> int:
        """The number of an epoch among its own, from 0."""
        return epoch - self.before - 1

    def progress(self, epoch: int) -> float:
        """Return the progress of the stage at an epoch: 0 for its first, 1 for its last."""
        return self.place(epoch) / max(1, self.section.epochs - 1)

    @property
    def wavelet(self) -> Wavelet:
        """The wavelet of the survey, (time,); the mean if shots have different ones."""
        return np.atleast_2d(self.experiment.survey.wavelet).mean(axis=0, dtype=np.float32)

    def wavelets(self) -> Wavelets:
        """Return the method by which the wavelet is found."""
        return cast(Wavelets, self.section.wavelet.make()())

    @cached_property
    def preconditioner(self) -> Preconditioner | None:
        """The preconditioner of its gradients, None if there is none."""
        asked = self.section.precondition
        if asked is None:
            return None
        assert asked.taper is None or self.taper is not None, "the stage is ready"
        return Preconditioner(asked, self.experiment.survey.spectrum.peak, self.taper)

    def ready(self, context: Context) -> Stage:
        """The same with its taper, where it asks for one; collective."""
        asked, experiment = self.section.precondition, self.experiment
        if asked is None or asked.taper is None:
            return self
        taper = find_taper(experiment.survey, asked.taper, experiment.initial.grid, context)
        return replace(self, taper=taper)

    def draws(self, epochs: int | None = None) -> Draws:
        """The draws of its shots, the same at every call; epochs: that it was to have then."""
        epochs = self.section.epochs if epochs is None else epochs
        if epochs not in self._draws:
            section = self.section.model_copy(update={"epochs": epochs})
            draws = Draws.of(section, self.experiment.survey.n_shots, self.number)
            self._draws[epochs] = draws
        return self._draws[epochs]

    def shots(self, epoch: int, epochs: int | None = None) -> Shots:
        """Return the numbers of an epoch's shots in no order; encoded shots count from 0.

        epochs: number of epochs that the stage had then, on which growing batches depend.
        """
        draws = self.draws(epochs)
        number = draws.number(self.place(epoch))
        if self.section.encoding != "none":
            return np.arange(draws.sizes[number])
        return cast(Choose, find(SAMPLINGS[self.section.sampling]))(draws, number)


# Points a shortest wavelength, for each order of the differences: phase velocities are then off by
# less than a hundredth
POINTS = {2: 11.0, 4: 5.5, 6: 4.5, 8: 4.0}
# Amplitude, of the wavelet's largest, at the highest frequency that counts
FAINT = 0.01


def make_stages(experiment: Experiment, context: Context) -> list[Stage]:
    """The stages of an experiment, one where its config has none; collective.

    They are for the whole run: what each has of all shots takes long to find.
    """
    stages: list[Stage] = []
    for number, (name, config) in enumerate(experiment.config.stages()):
        before = stages[-1].last if stages else 0
        stages.append(Stage(number, name, before, _as_in(config, experiment, context)))
    return stages


def _as_in(config: Config, experiment: Experiment, context: Context) -> Experiment:
    """The experiment as a stage with this config has it; collective."""
    survey, band = experiment.survey, None
    if config.data.band is not None:
        band = Band(*config.data.band, survey.n_samples, survey.dt)
        survey = limit_survey(survey, band, context)
    changed = replace(experiment, config=config, survey=survey, band=band)
    spacing = config.wave.spacing
    if spacing == "auto":
        spacing = _widest_spacing(changed)
    if spacing is not None:
        changed = replace(changed, coarsening=Coarsening.to(experiment.initial.grid, spacing))
    costs = find_costs(changed.aperture, changed.wave_grid, survey, context)
    return replace(changed, costs=costs)


def _widest_spacing(experiment: Experiment) -> float:
    """Return the coarsest spacing (m) that carries the wavelet in the slowest initial cells."""
    slowest = float(wave_speed(experiment.initial.arrays).min())
    survey, order = experiment.survey, experiment.config.wave.order
    return slowest / (survey.spectrum.highest(FAINT) * POINTS[order])


@dataclass(frozen=True)
class Part:
    """Some shots of a batch.

    shots: their numbers in the survey; survey: of these; traces: observed, (shot, receiver, time);
    to ask for them is to wait until they are read; signs: of the sources, where shots are encoded.
    """

    shots: Shots
    survey: Survey
    traces: Traces
    signs: Signs | None = None

    def emitting(self, wavelet: Wavelet) -> Part:
        """The same, of sources that emit this wavelet: all of them, or each its own."""
        if self.signs is not None:
            wavelets = self.signs[:, :, None].astype(np.float32) * wavelet
        elif wavelet.ndim == 1:
            wavelets = np.broadcast_to(wavelet, (self.shots.size, wavelet.size))
        else:
            wavelets = wavelet[self.shots]
        return replace(self, survey=replace(self.survey, wavelet=wavelets))

    def collect(self, shot: int, gradient: NDArray[np.floating]) -> NDArray[np.float64]:
        """The gradient with respect to the wavelet of all, (time,), from that of a shot.

        Which is with respect to what its sources emit, (source, time). Transpose of `emitting`.
        """
        signs = np.ones(1) if self.signs is None else self.signs[self.shots == shot][0]
        return (signs[:, None] * gradient.astype(np.float64)).sum(axis=0)


@dataclass(frozen=True)
class Batch:
    """The shots of an epoch.

    epoch: its number, from 1; shots: all of them, in no order; sample: what tells whether another
    epoch of the stage has the same; part: of the batch, given by shots; deal: of all shots, or of
    those that are left to do, this rank's, part by part as the schedule has it, anew at every call,
    which all ranks make.
    """

    epoch: int
    shots: Shots
    sample: tuple[int, ...]
    part: Callable[[Shots], Part]
    deal: Callable[[Shots], Iterator[Part]]

    def emitting(self, wavelet: Wavelet) -> Batch:
        """The same, of sources that emit this wavelet: all of them, or each its own."""

        def part(shots: Shots) -> Part:
            return self.part(shots).emitting(wavelet)

        def deal(left: Shots) -> Iterator[Part]:
            return (part.emitting(wavelet) for part in self.deal(left))

        return replace(self, part=part, deal=deal)


class Sampler:
    """Hands out one batch an epoch, and reads what the next begins with meanwhile.

    Every rank draws the same shots.

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
        self._chosen: dict[int, Shots] = {}
        self._begun: dict[int, Part] = {}

    def take(self, epoch: int) -> Batch:
        """The batch of `epoch`; reads the beginning of the one after it, if there is one."""
        following = range(epoch, min(epoch + 1, self._stage.last) + 1)
        chosen = self._chosen
        self._chosen = {e: chosen[e] if e in chosen else self._stage.shots(e) for e in following}
        shots = self._chosen[epoch]
        sample = tuple(sorted(shots.tolist()))
        return Batch(epoch, shots, sample, self._part, partial(self._deal, epoch))

    def _deal(self, epoch: int, left: Shots) -> Iterator[Part]:
        if left.size < self._chosen[epoch].size:
            self._begun[epoch] = self._begin(left)
        before = self._begun
        self._begun = {e: before.get(e) or self._begin(s) for e, s in self._chosen.items()}
        first = self._begun.pop(epoch)
        yield from _deal_all(self._in_order(left), first, self._part, self._schedule, self._chunks)

    def _begin(self, shots: Shots) -> Part:
        shots = self._in_order(shots)
        return self._part(shots[self._schedule.first(shots.size)])

    def _in_order(self, shots: Shots) -> Shots:
        return shots[self._schedule.order(self._costs[shots])]

    def _part(self, shots: Shots) -> Part:
        return Part(shots, self._survey.select(shots), self._prefetcher.request(shots))


class EncodedSampler:
    """Hands out one batch of encoded shots an epoch."""

    def __init__(self, stage: Stage, data: EncodedData, schedule: Schedule, chunks: Chunks) -> None:
        self._stage, self._data = stage, data
        self._schedule, self._chunks = schedule, chunks
        self._draws, self._number = stage.draws(), -1

    def take(self, epoch: int) -> Batch:
        """The batch of `epoch`; collective."""
        number = self._draws.number(self._stage.place(epoch))
        if number != self._number:
            signs = draw_signs(self._draws, number)
            self._signs, self._traces = signs, self._data.combine(signs)
            self._number = number
        shots = self._stage.shots(epoch)
        return Batch(epoch, shots, (number, shots.size), self._part, self._deal)

    def _deal(self, left: Shots) -> Iterator[Part]:
        first = self._part(left[self._schedule.first(left.size)])
        return _deal_all(left, first, self._part, self._schedule, self._chunks)

    def _part(self, shots: Shots) -> Part:
        traces, signs = partial(self._traces.__getitem__, shots), self._signs[shots]
        # Of these alone: each has the wavelets of all shots
        encoded = encode(self._stage.experiment.survey, signs)
        return Part(shots, encoded.select(np.arange(shots.size)), traces, signs)


def _deal_all(
    shots: Shots,
    first: Part,
    make_part: Callable[[Shots], Part],
    schedule: Schedule,
    chunks: Chunks,
) -> Iterator[Part]:
    """This rank's parts of shots that are in the schedule's order; `first` is that with its first.

    All ranks call this together, and each goes on as it gets through.
    """
    schedule.begin()
    part = first
    while part.shots.size:
        yield part
        part = make_part(shots[schedule.more(shots.size, chunks.size)])
