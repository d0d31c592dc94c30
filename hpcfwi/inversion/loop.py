"""The inversion: from a model to a better one, epoch after epoch.

Every rank runs all of it. The loop sees one `Optimizer`, which is an optimizer of `optimizers` with
what is put around it, and an `Evaluations`, which answers what the optimizer asks for in one epoch.
It tells a `Journal` of its epochs; `run.recorder` writes files from that. `run.session` puts the
parts together and deals with signals and ranks that die.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import frexp, ldexp
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.config import Config
from hpcfwi.config.values import find_own
from hpcfwi.errors import InversionFailure
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.networks import Represented
from hpcfwi.inversion.objective import Evaluation, Objective, Times, Timings, measure_timings
from hpcfwi.inversion.optimizers import Optimizer, Price
from hpcfwi.inversion.optimizers.wrappers import Denoised, Reparametrized
from hpcfwi.inversion.parameters import Limits
from hpcfwi.inversion.stages import Batch, EncodedSampler, Sampler, Stage
from hpcfwi.inversion.state import Evaluated, State
from hpcfwi.inversion.wavelets import Emission, Estimate, Optimize, check_estimates
from hpcfwi.model import Model
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.exact import References
from hpcfwi.parallel.replicas import find_differing
from hpcfwi.parallel.shards import WHOLE, Slabs
from hpcfwi.parallel.watch import StopRequest
from hpcfwi.registry import DENOISERS


class Journal(Protocol):
    """The interface to which the loop reports its epochs; every rank makes the same calls."""

    def draws(self, epoch: int) -> bool:
        """Return True if figures are due after this epoch."""

    def describe(
        self, epoch: int, batch: Batch, model: Model, evaluation: Evaluation, timings: Timings
    ) -> tuple[float, dict[str, Any]]:
        """Return the score of a model, less is better, and the metrics of the epoch."""

    def keep(self, state: State, evaluation: Evaluation, last: bool) -> None:
        """Write the files that are due after an epoch, all of them after the last; collective."""


def make_optimizer(
    experiment: Experiment, context: Context, before: Mapping[str, Any] | None = None
) -> Optimizer:
    """Return a new optimizer for an experiment.

    before: state of the optimizer of the stage before, of which the weights of a network are kept.
    """
    config, initial = experiment.config, experiment.initial.as_tensors(context.device)
    section, limits = config.inversion, experiment.limits(initial)
    make = section.optimizer.make()
    if section.optimizer.sharded:
        make = partial(make, slabs=find_slabs(config, context))
    if config.model.network is not None:
        represented = Represented(config.model.network, limits, context, section.reproducible)
        return Reparametrized(represented, make, before and before["weights"])
    if section.prior is not None:
        key, prior = "inversion.prior.denoiser", section.prior
        denoiser = find_own(key, prior.denoiser, DENOISERS, prior.folder)
        inner = make(initial, limits)
        return Denoised(inner, limits, prior, denoiser, context, section.reproducible)
    optimizer: Optimizer = make(initial, limits)
    return optimizer


def find_price(experiment: Experiment) -> Callable[[int], Price]:
    """Return the cost of an epoch of the optimizer, as a function of the number of shots.

    The cost is one for each cell, so that an optimizer of a single cell is asked.
    """
    section, grid = experiment.config.inversion, experiment.initial.grid
    first = (slice(1),) * grid.ndim
    cell = replace(grid, shape=(1,) * grid.ndim)
    initial = Model(cell, {n: torch.tensor(a[first]) for n, a in experiment.initial.arrays.items()})
    fixed = dict.fromkeys(initial.arrays, torch.tensor(experiment.fixed[first]))
    limits = Limits(initial, fixed, section.bounds_by_name)
    return cast(Optimizer, section.optimizer.make()(initial, limits)).price


def size_unknowns(experiment: Experiment) -> list[int]:
    """Return the sizes of the arrays that the optimizer updates: parameters, or weights."""
    initial, network = experiment.initial, experiment.config.model.network
    if network is None:
        return [array.size for array in initial.arrays.values()]
    limits = experiment.limits(initial.as_tensors(torch.device("cpu")))
    return Represented(network, limits, Context.alone(), reproducible=True).sizes


def find_slabs(config: Config, context: Context) -> Slabs:
    """Return the slabs in which the ranks keep the optimizer's state."""
    return Slabs(context) if config.inversion.optimizer.sharded else WHOLE


def divide(state: Mapping[str, Any], config: Config, context: Context) -> Mapping[str, Any]:
    """Return this rank's part of an optimizer's state, which a checkpoint has as a whole.

    Every rank keeps all weights of a network, because it makes models from them.
    """
    slabs = find_slabs(config, context)
    if config.model.network is not None:
        return {**state, "optimizer": slabs.divide(state["optimizer"])}
    divided: Mapping[str, Any] = slabs.divide(state)
    return divided


def first_state(experiment: Experiment, context: Context) -> State:
    """Return the state before the first epoch of an experiment's first stage; collective."""
    optimizer, initial = make_optimizer(experiment, context), experiment.initial
    model = initial.as_tensors(context.device)
    if isinstance(optimizer, Reparametrized):
        model = optimizer.make_model()
    return State(0, model, optimizer.state())


@dataclass
class Evaluations:
    """Evaluations of models with the shots of one epoch, and what they cost.

    illuminate: compute the illuminations of the model with which the epoch begins; times: those of
    this rank; simulations: as `Evaluation` counts them.
    """

    objective: Objective
    stage: Stage
    batch: Batch
    state: State
    illuminate: bool
    times: Times = field(default_factory=Times)
    simulations: int = 0

    def __post_init__(self) -> None:
        self._preconditioner = self.stage.preconditioner
        self._weighs_by_light = bool(
            self._preconditioner and self._preconditioner.needs_illuminations
        )
        self._illuminations: Mapping[str, Tensor] = {}
        self._emission = self.state.emission
        self._slope: NDArray[np.float64] | None = None
        if self._emission is not None:
            self.batch = self.batch.emitting(self._emission.wavelet)
        self._references = self.state.references
        self._references_along: References | None = None
        self._known: Evaluation | None = None
        self._last: tuple[Model, Evaluation] | None = None
        known = self.state.evaluated
        if known is not None and known.sample == self.batch.sample:
            self._known, self._references = known.evaluation, known.evaluation.references

    def renew_wavelet(self, epoch: int) -> None:
        """Estimate the wavelet from this epoch on, if that is due; collective.

        Raises `InversionFailure` on all ranks if the estimate is zero or not finite.
        """
        stage, wavelets = self.stage, self.stage.wavelets()
        if isinstance(wavelets, Estimate) and wavelets.per == "shot":
            self._renew_each(wavelets, epoch)
            return
        if not wavelets.is_due(stage.place(epoch)):
            return
        self._known = None
        before = stage.wavelet if self._emission is None else self._emission.wavelet
        batch = self.batch.emitting(before)
        products = self.objective.relate(self.state.model, batch, self.times, wavelets.furthest)
        self.simulations += batch.shots.size
        found = wavelets.estimate(before, products, stage.experiment.survey.dt)
        check_estimates(found[None], ["the survey"])
        self._emission = Emission(found)
        self.batch = batch.emitting(found)

    def _renew_each(self, wavelets: Estimate, epoch: int) -> None:
        """Estimate the wavelets of those shots of the epoch for which it is due; collective."""
        survey, shots = self.stage.experiment.survey, self.batch.shots
        emission = self._emission or Emission.unknown(survey.n_shots, survey.n_samples)
        assert emission.epochs is not None, "a stage has wavelets of one kind"
        due = shots[wavelets.find_due(epoch, emission.epochs[shots])]
        if not due.size:
            return
        self._known = None
        before = np.where(emission.epochs[:, None] > 0, emission.wavelet, survey.wavelet)
        batch = replace(self.batch, shots=due).emitting(before)
        found = self.objective.estimate_each(self.state.model, batch, self.times, wavelets)
        self.simulations += due.size
        check_estimates(found, [f"shot {shot}" for shot in due])
        self._emission = emission.having(due, found, epoch)
        self.batch = self.batch.emitting(self._emission.wavelet)

    def __call__(self, model: Model) -> Evaluation:
        """Return the misfit of a model and its gradient; collective.

        A model that was evaluated with the same shots before is not simulated again, except for
        illuminations.
        """
        begins = model is self.state.model
        if begins and self._known is not None:
            look = self.illuminate and not self._known.illuminations
            found = self._look_again(model, self._known) if look else self._known
        else:
            illuminate = self._weighs_by_light or (self.illuminate and begins)
            found = self.objective.evaluate(model, self.batch, self._references, illuminate)
            self._references = found.references
            self._count(found)
            self._last = model, found
        if begins:
            self._illuminations, self._slope = found.illuminations, found.wavelet
        return found

    def remember(self, model: Model, evaluation: Evaluation) -> None:
        """Store the evaluation of a model, so that it need not be simulated."""
        self._last = model, evaluation

    def precondition(self, gradient: Model) -> Model:
        """Return the gradient, preconditioned as the stage says in the epoch's first model."""
        if self._preconditioner is None:
            return gradient
        return self._preconditioner.apply(gradient, self._illuminations, self.state.model)

    def _look_again(self, model: Model, known: Evaluation) -> Evaluation:
        """Add illuminations to an evaluation, so that figures do not change the bits."""
        found = self.objective.evaluate(model, self.batch, known.references)
        self._count(found)
        return replace(known, illuminations=found.illuminations)

    def learnt(self, model: Model) -> tuple[Emission | None, Evaluated | None]:
        """Return the wavelets, and the evaluation of a model if it was the last."""
        wavelets = self.stage.wavelets()
        if isinstance(wavelets, Optimize):
            assert self._emission is not None, "estimated at the beginning of the stage"
            assert self._slope is not None, "optimisers evaluate the model that they begin with"
            return wavelets.step(self._emission, self._slope), None
        known = None
        if self._last is not None and self._last[0] is model:
            known = Evaluated(self.batch.sample, self._last[1])
            if not self._weighs_by_light:
                known = replace(known, evaluation=replace(known.evaluation, illuminations={}))
        return self._emission, known

    def product(self, model: Model, direction: Model, shots: int | None = None) -> Model:
        """Return the product of the Gauss-Newton matrix and a direction other than 0; collective.

        shots: number of shots of the batch, by default all. The product is in double precision, as
        the direction and the product may be too small for single.

        The exact sums take their resolution from the first direction of the epoch. Directions are
        scaled to the same size, up to a power of two, so that all products have about the same.
        """
        largest = max(float(array.abs().max()) for array in direction.arrays.values())
        size = ldexp(1.0, frexp(largest)[1])
        scaled = direction.map(lambda array, like: (array / size).to(like.dtype), model)
        objective = self.objective.along(scaled)
        batch = replace(self.batch, shots=self.batch.shots[:shots])
        found = objective.evaluate(model, batch, self._references_along, illuminate=False)
        self._references_along = found.references
        self._count(found)
        return found.gradient.map(lambda array: array.double() * size)

    def _count(self, found: Evaluation) -> None:
        self.times.add(found.times)
        self.simulations += found.simulations


@dataclass(frozen=True)
class Inversion:
    """The parts of an inversion: the shots of an epoch, their misfit, the next model, the files."""

    sampler: Sampler | EncodedSampler
    objective: Objective
    optimizer: Optimizer
    journal: Journal


def run_epochs(
    state: State, stage: Stage, parts: Inversion, stop: StopRequest, context: Context
) -> str | None:
    """Run epochs to the end of a stage, or until a signal, whose name is returned; collective.

    Raises `InversionFailure` on all ranks if shots give no finite results, a step leads to no
    model, replicas differ or memory runs out.
    """
    journal, signal = parts.journal, None
    parts.optimizer.restore(state.optimizer)
    while state.epoch < stage.last and signal is None:
        epoch, started = state.epoch + 1, time.monotonic()
        context.heartbeat.begin(f"epoch {epoch}")
        batch = parts.sampler.take(epoch)
        evaluate = Evaluations(parts.objective, stage, batch, state, journal.draws(epoch))
        evaluate.renew_wavelet(epoch)
        model, evaluation = parts.optimizer.step(state.model, evaluate, stage.progress(epoch))
        _compare_replicas(model, epoch, context)
        seconds = time.monotonic() - started
        timings = measure_timings(evaluate.times, evaluate.simulations, seconds, context)
        score, entry = journal.describe(epoch, batch, model, evaluation, timings)
        optimizer, learnt = parts.optimizer.state(), evaluate.learnt(model)
        state = state.after(model, optimizer, evaluation, score, entry, *learnt)
        signal = stop.agreed()
        journal.keep(state, evaluation, last=signal is not None or epoch == stage.last)
    return signal


def _compare_replicas(model: Model, epoch: int, context: Context) -> None:
    differing = find_differing(model.arrays.values(), context)
    if differing:
        context.raise_alike(
            InversionFailure(
                f"after epoch {epoch} the models of ranks {differing} differ from that of rank 0: "
                "a rank computes wrongly (its memory, or another processor or library than the "
                "others')"
            )
        )
