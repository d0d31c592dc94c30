"""What a stage simulates: counted from what its optimiser says that an epoch asks for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from hpcfwi.inversion.draws import Draws
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.fit import SHOTS, choose_shots
from hpcfwi.inversion.objective import PRODUCT


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
    initial = experiment.initial.as_tensors(torch.device("cpu"))
    optimizer = section.optimizer.make()(initial, experiment.limits(initial))
    find_price = cache(optimizer.price)
    draws, wavelets = Draws.of(section, n_shots), section.wavelet.make()()
    asked = section.precondition
    always = asked is not None and asked.illumination is not None
    gradients = illuminated = products = forwards = 0.0
    before: object = None
    for place in range(section.epochs):
        number = draws.number(place)
        shots = draws.sizes[number]
        is_whole = shots == n_shots and section.encoding == "none"
        sample = "all" if is_whole else number
        price, is_due = find_price(shots), wavelets.is_due(place)
        if always or (place + 1) % every == 0 or place + 1 == section.epochs:
            illuminated += shots
        elif is_due or sample != before or not price.carries:
            gradients += shots
        gradients += price.tries[which] * shots
        products += price.products[which]
        forwards += shots * is_due
        before = sample
    return Simulations(gradients, illuminated, products, forwards)
