"""Stages: parts of an inversion, one after the other, each with keys of its own.

What a stage has otherwise than the whole is in its experiment; what may differ is decided in
`config`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hpcfwi.config import Config
from hpcfwi.config.inversion import InversionSection
from hpcfwi.inversion.bands import Band
from hpcfwi.inversion.draws import Choose, Draws, Shots
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.preconditioning import Preconditioner
from hpcfwi.inversion.surveying import find_costs, find_taper, limit_survey
from hpcfwi.inversion.wavelets import Wavelet, Wavelets
from hpcfwi.operators.coarsening import Coarsening
from hpcfwi.parallel.context import Context
from hpcfwi.registry import SAMPLINGS, find
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
        """What it has of the updates."""
        return self.experiment.config.inversion

    @property
    def last(self) -> int:
        """The number of its last epoch."""
        return self.before + self.section.epochs

    def place(self, epoch: int) -> int:
        """The number of an epoch among its own, from 0."""
        return epoch - self.before - 1

    def progress(self, epoch: int) -> float:
        """How far through it an epoch is: 0 for its first, 1 for its last."""
        return self.place(epoch) / max(1, self.section.epochs - 1)

    @property
    def wavelet(self) -> Wavelet:
        """That of its survey, (time,); the mean where shots have different ones."""
        return np.atleast_2d(self.experiment.survey.wavelet).mean(axis=0, dtype=np.float32)

    def wavelets(self) -> Wavelets:
        """How the sources' wavelet is found."""
        return cast(Wavelets, self.section.wavelet.make()())

    @cached_property
    def preconditioner(self) -> Preconditioner | None:
        """What is done to its gradients."""
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
        """The numbers of an epoch's shots, in no order; of encoded ones among themselves.

        epochs: how many the stage was to have then, on which growing batches depend.
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
    """Of a grid that carries the wavelet in the slowest cells that the inversion begins with, m."""
    slowest = float(wave_speed(experiment.initial.arrays).min())
    survey, order = experiment.survey, experiment.config.wave.order
    return slowest / (survey.spectrum.highest(FAINT) * POINTS[order])
