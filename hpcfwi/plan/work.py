"""What a stage simulates: counted from what its optimiser says that an epoch asks for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import cast

import numpy as np

from hpcfwi.config.inversion import InversionSection
from hpcfwi.inversion.draws import Choose, Draws
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.loop import find_price
from hpcfwi.inversion.objective import PRODUCT
from hpcfwi.inversion.shot_qc import SHOTS, choose_shots
from hpcfwi.inversion.wavelets import Estimate
from hpcfwi.registry import SAMPLINGS, find


@dataclass(frozen=True)
class Simulations:
    """Shots of all epochs together.

    gradients: simulated forwards and backwards; illuminated: these with illuminations; products: of
    those; forwards: for estimates of the wavelet.
    """

    gradients: float
    illuminated: float
    products: float
    forwards: float

    @property
    def count(self) -> float:
        """As `simulations` in metrics.jsonl counts them."""
        return self.gradients + self.illuminated + PRODUCT * self.products + self.forwards


@dataclass(frozen=True)
class Work:
    """Of a stage: least, and what it is as a rule; ending: shots that are simulated after it."""

    optimizer: str
    least: Simulations
    likely: Simulations
    ending: int


def count_work(experiment: Experiment) -> Work:
    """Of all epochs of a stage, and of the look at its end."""
    section = experiment.config.inversion
    least, likely = (_count(experiment, which) for which in (0, 1))
    ending = choose_shots(experiment.survey.n_shots, SHOTS).size
    return Work(section.optimizer.name, least, likely, ending)


def _count(experiment: Experiment, which: int) -> Simulations:
    """which: of an optimiser's two numbers."""
    section, every = experiment.config.inversion, experiment.config.output.every
    n_shots = experiment.survey.n_shots
    find = cache(find_price(experiment))
    draws, estimates = Draws.of(section, n_shots), _count_estimates(section, n_shots)
    asked = section.precondition
    always = asked is not None and asked.illumination is not None
    # Of another wavelet nothing is known
    carries = not section.wavelet.make()().takes_steps
    counts = defaultdict[str, float](float)
    before: object = None
    for place, estimated in enumerate(estimates):
        number = draws.number(place)
        shots = draws.sizes[number]
        is_whole = shots == n_shots and section.encoding == "none"
        sample = "all" if is_whole else number
        price = find(shots)
        drawn = (place + 1) % every == 0 or place + 1 == section.epochs
        known = sample == before and price.carries and carries and not estimated
        # What a search ends with has illuminations where steps need them
        if not known or (drawn and not always):
            counts["illuminated" if always or drawn else "gradients"] += shots
        counts["illuminated" if always else "gradients"] += price.tries[which] * shots
        counts["products"] += price.products[which]
        counts["forwards"] += estimated
        before = sample
    return Simulations(**{field.name: float(counts[field.name]) for field in fields(Simulations)})


def _count_estimates(section: InversionSection, n_shots: int) -> Iterator[int]:
    """Shots of each epoch that are simulated for what sources emit."""
    wavelets, draws = section.wavelet.make()(), Draws.of(section, n_shots)
    draw = cast(Choose, find(SAMPLINGS[section.sampling]))
    found = np.zeros(n_shots, dtype=np.int64)
    for place in range(section.epochs):
        number, epoch = draws.number(place), place + 1
        if isinstance(wavelets, Estimate) and wavelets.per == "shot":
            shots = draw(draws, number)
            due = shots[wavelets.find_due(epoch, found[shots])]
            found[due] = epoch
            yield due.size
        else:
            yield draws.sizes[number] if wavelets.is_due(place) else 0
