"""The loop of an inversion, in which each epoch improves the model.

Every rank runs the whole loop. It has an `Optimizer`, possibly with wrappers, and in each epoch an
`EpochEvaluator`, which the optimizer calls. It reports its epochs to a `Journal`; `run.recorder`,
which implements it, writes files. `run.session` assembles the parts and handles signals and ranks
that die.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from math import frexp, ldexp
from operator import add
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.config import Config
from hpcfwi.config.values import find_plugin
from hpcfwi.errors import InversionFailure
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.networks import NetworkModel
from hpcfwi.inversion.objective import (
    Evaluation,
    Objective,
    Times,
    Timings,
    estimate_shots,
    measure_timings,
    relate_shots,
)
from hpcfwi.inversion.optimizers import Optimizer, OptimizerCost
from hpcfwi.inversion.parameters import Limits
from hpcfwi.inversion.stages import Batch, EncodedSampler, Sampler, Stage
from hpcfwi.inversion.state import KnownEvaluation, State
from hpcfwi.inversion.wavelets import (
    Estimate,
    Optimize,
    Wavelet,
    WaveletEstimate,
    check_estimates,
)
from hpcfwi.inversion.wrappers import Denoised, OptimizerOfUnknowns, OptimizerOfWeights
from hpcfwi.model import Model
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.exact import Magnitudes
from hpcfwi.parallel.replicas import find_differing
from hpcfwi.parallel.shards import WHOLE, Shards
from hpcfwi.parallel.watch import StopRequest
from hpcfwi.registry import DENOISERS


class Journal(Protocol):
    """The interface to which the loop reports its epochs; every rank makes the same calls."""

    def figures_due(self, epoch: int) -> bool:
        """Return True if figures are due after this epoch."""

    def measure(
        self, epoch: int, batch: Batch, model: Model, evaluation: Evaluation, timings: Timings
    ) -> tuple[float, dict[str, Any]]:
        """Return the score of a model, where lower is better, and the metrics.

        Collective; called once in each epoch, before `keep`.
        """

    def keep(self, state: State, evaluation: Evaluation, last: bool) -> None:
        """Write the files that are due after an epoch, or all if it is the last; collective."""


def make_optimizer(
    experiment: Experiment, context: Context, before: Mapping[str, Any] | None = None
) -> Optimizer:
    """Return a new optimizer for an experiment.

    before: state of the optimizer of the previous stage; the weights of a network are kept.
    """
    config, initial = experiment.config, experiment.inverted.as_tensors(context.device)
    section, limits = config.inversion, experiment.limits(initial)
    make = section.optimizer.bind()
    if section.optimizer.sharded:
        make = partial(make, shards=find_shards(config, context))
    if config.model.network is not None:
        network_model = NetworkModel(config.model.network, limits, context, section.reproducible)
        return OptimizerOfWeights(network_model, make, before and before["weights"])
    keep = limits.apply
    if section.changes_variables:
        make = partial(OptimizerOfUnknowns, make, partial(experiment.find_unknowns, initial))
        keep = experiment.find_unknowns(initial, limits).keep
    if section.prior is not None:
        key, prior = "inversion.prior.denoiser", section.prior
        denoiser = find_plugin(key, prior.denoiser, DENOISERS, prior.folder)
        inner = make(initial, limits)
        return Denoised(inner, limits, keep, prior, denoiser, context, section.reproducible)
    optimizer: Optimizer = make(initial, limits)
    return optimizer


def find_optimizer_cost(experiment: Experiment) -> Callable[[int], OptimizerCost]:
    """Return the cost of an epoch of the optimizer, as a function of the number of shots.

    Costs are per cell, so that they are those of an optimizer of a single cell.
    """
    section, grid = experiment.config.inversion, experiment.initial.grid
    cell = replace(grid, shape=(1,) * grid.ndim)
    initial = Model(cell, {name: torch.zeros(cell.shape) for name in section.parameters})
    fixed = {name: torch.zeros(cell.shape, dtype=torch.bool) for name in section.parameters}
    limits = Limits(initial, fixed, section.bounds_by_name)
    return cast(Optimizer, section.optimizer.bind()(initial, limits)).cost


def size_unknowns(experiment: Experiment) -> list[int]:
    """Return the sizes of the arrays that the optimizer updates: unknowns, or weights."""
    initial, network = experiment.inverted, experiment.config.model.network
    if network is None:
        return [initial[name].size for name in experiment.config.inversion.parameters]
    limits = experiment.limits(initial.as_tensors(torch.device("cpu")))
    return NetworkModel(network, limits, Context.alone(), reproducible=True).sizes


def find_shards(config: Config, context: Context) -> Shards:
    """Return the shards in which the ranks keep the optimizer's state."""
    return Shards(context) if config.inversion.optimizer.sharded else WHOLE


def divide(state: Mapping[str, Any], config: Config, context: Context) -> Mapping[str, Any]:
    """Return this rank's part of an optimizer's state, given the whole state of a checkpoint.

    Every rank keeps all weights of a network, because it computes models from them.
    """
    shards = find_shards(config, context)
    if config.model.network is not None:
        return {**state, "optimizer": shards.divide(state["optimizer"])}
    divided: Mapping[str, Any] = shards.divide(state)
    return divided


def first_state(experiment: Experiment, stage: Experiment, context: Context) -> State:
    """Return the state before the first epoch; stage: experiment of the first stage; collective."""
    optimizer = make_optimizer(stage, context)
    model = experiment.inverted.as_tensors(context.device)
    if isinstance(optimizer, OptimizerOfWeights):
        model = optimizer.make_model()
    return State(0, model, optimizer.state())


@dataclass
class EpochEvaluator:
    """The `Evaluator` of one epoch, which evaluates models with its shots and counts the cost.

    illuminate: True to compute the illuminations of the epoch's first model; times: those of this
    rank; simulations: as in `Evaluation`; model: the arrays of the state that the stage changes.
    """

    objective: Objective
    stage: Stage
    batch: Batch
    state: State
    illuminate: bool
    times: Times = field(default_factory=Times)
    simulations: int = 0

    def __post_init__(self) -> None:
        self.model = self.state.model.select(self.stage.experiment.inverted.arrays)
        self._preconditioner = self.stage.preconditioner
        self._needs_illuminations = bool(
            self._preconditioner and self._preconditioner.section.illumination
        )
        self._illuminations: Mapping[str, Tensor] = {}
        self._estimated = self.state.estimated
        self._wavelet_gradient: NDArray[np.float64] | None = None
        if self._estimated is not None:
            self.batch = self.batch.with_wavelet(self._estimated.wavelet)
        self._magnitudes = self.state.magnitudes
        self._magnitudes_along: Magnitudes | None = None
        self._known: Evaluation | None = None
        self._last: tuple[Model, Evaluation] | None = None
        known = self.state.evaluated
        if known is not None and known.key == self.batch.key:
            self._known, self._magnitudes = known.evaluation, known.evaluation.magnitudes

    def renew_wavelet(self, epoch: int) -> None:
        """Estimate the wavelet for this epoch and later ones, if that is due; collective.

        Raises `InversionFailure` on all ranks if the estimate is zero or not finite.
        """
        stage, wavelets = self.stage, self.stage.wavelets()
        if not isinstance(wavelets, Estimate):
            return
        if wavelets.per == "shot":
            self._renew_each(wavelets, epoch)
            return
        if not wavelets.is_due(stage.epoch_in_stage(epoch)):
            return
        self._known = None
        before = stage.wavelet if self._estimated is None else self._estimated.wavelet
        batch = self.batch.with_wavelet(before)
        relate = partial(relate_shots, furthest=wavelets.furthest)
        spectra = self.objective.find_each(relate, self.model, batch, self.times)
        self.simulations += batch.shots.size
        found = wavelets.estimate(before, reduce(add, spectra), stage.experiment.survey.dt)
        check_estimates(found[None], ["the survey"])
        self._estimated = WaveletEstimate(found)
        self.batch = batch.with_wavelet(found)

    def _renew_each(self, wavelets: Estimate, epoch: int) -> None:
        """Estimate the wavelets of those shots of the epoch that are due; collective."""
        survey, shots = self.stage.experiment.survey, self.batch.shots
        estimated = self._estimated or WaveletEstimate.unknown(survey.n_shots, survey.n_samples)
        assert estimated.epochs is not None, "a stage has wavelets of one kind"
        due = shots[wavelets.find_due(epoch, estimated.epochs[shots])]
        if not due.size:
            return
        self._known = None
        before = np.where(estimated.epochs[:, None] > 0, estimated.wavelet, survey.wavelet)
        batch = replace(self.batch, shots=due).with_wavelet(before)
        estimate = partial(estimate_shots, wavelets=wavelets)
        each: list[Wavelet] = self.objective.find_each(estimate, self.model, batch, self.times)
        found = np.stack(each)
        self.simulations += due.size
        check_estimates(found, [f"shot {shot}" for shot in due])
        self._estimated = estimated.having(due, found, epoch)
        self.batch = self.batch.with_wavelet(self._estimated.wavelet)

    def __call__(self, model: Model) -> Evaluation:
        """Return the misfit of a model and its gradient; collective.

        The first model of the epoch is recognized as the object `model`. If its evaluation
        with the same shots is known from the epoch before, the model is only simulated again if
        illuminations are missing.
        """
        begins = model is self.model
        if begins and self._known is not None:
            found = self._known
            if self.illuminate and not found.illuminations:
                # Only these are added, so that figures do not change bits.
                lit = self.objective.evaluate(model, self.batch, found.magnitudes)
                self._count(lit)
                found = replace(found, illuminations=lit.illuminations)
        else:
            illuminate = self._needs_illuminations or (self.illuminate and begins)
            found = self.objective.evaluate(model, self.batch, self._magnitudes, illuminate)
            self._magnitudes = found.magnitudes
            self._count(found)
            self._last = model, found
        if begins:
            self._illuminations = found.illuminations
            self._wavelet_gradient = found.wavelet_gradient
        return found

    def remember(self, model: Model, evaluation: Evaluation) -> None:
        """Store the evaluation of a model, so that it need not be simulated."""
        self._last = model, evaluation

    def precondition(self, gradient: Model) -> Model:
        """Return the gradient, preconditioned with the epoch's first model."""
        if self._preconditioner is None:
            return gradient
        model = self.stage.experiment.complete(self.model)
        return self._preconditioner.apply(gradient, self._illuminations, model)

    def carry_over(self, model: Model) -> tuple[WaveletEstimate | None, KnownEvaluation | None]:
        """Return what the next epoch takes over: wavelets, and the evaluation of its first model.

        The evaluation is None if the last one was not that of this model.
        """
        wavelets = self.stage.wavelets()
        if isinstance(wavelets, Optimize):
            assert self._estimated is not None, "estimated at the beginning of the stage"
            assert self._wavelet_gradient is not None, "optimizers evaluate their first model"
            return wavelets.step(self._estimated, self._wavelet_gradient), None
        known = None
        if self._last is not None and self._last[0] is model:
            known = KnownEvaluation(self.batch.key, self._last[1])
            if not self._needs_illuminations:
                known = replace(known, evaluation=replace(known.evaluation, illuminations={}))
        return self._estimated, known

    def product(self, model: Model, direction: Model, shots: int | None = None) -> Model:
        """Return the product of the Gauss-Newton matrix and a direction other than 0; collective.

        shots: number of shots of the batch that are simulated, the first ones; by default all.

        The product is in double precision, because it may be too small for single precision. The
        exact sums take their resolution from the first direction of the epoch, so that directions
        are divided by a power of two to about the same size.
        """
        largest = max(float(array.abs().max()) for array in direction.arrays.values())
        size = ldexp(1.0, frexp(largest)[1])
        scaled = direction.map(lambda array, like: (array / size).to(like.dtype), model)
        objective = self.objective.along(scaled)
        batch = replace(self.batch, shots=self.batch.shots[:shots])
        found = objective.evaluate(model, batch, self._magnitudes_along, illuminate=False)
        self._magnitudes_along = found.magnitudes
        self._count(found)
        return found.gradient.map(lambda array: array.double() * size)

    def _count(self, found: Evaluation) -> None:
        self.times.add(found.times)
        self.simulations += found.simulations


@dataclass(frozen=True)
class Inversion:
    """The parts of an inversion: shots of an epoch, their misfit, the next model, the records."""

    sampler: Sampler | EncodedSampler
    objective: Objective
    optimizer: Optimizer
    journal: Journal


def run_epochs(
    state: State, stage: Stage, parts: Inversion, stop: StopRequest, context: Context
) -> str | None:
    """Run epochs to the end of a stage, or until a signal, whose name is returned; collective.

    Raises `InversionFailure` on all ranks if no shot gives finite results, a step leads to an
    impossible model, replicas differ, or memory runs out.
    """
    signal = None
    parts.optimizer.restore(state.optimizer)
    while state.epoch < stage.last and signal is None:
        state, signal = _run_epoch(state, stage, parts, stop, context)
    return signal


def _run_epoch(
    state: State, stage: Stage, parts: Inversion, stop: StopRequest, context: Context
) -> tuple[State, str | None]:
    """Run an epoch; return the state after it and the name of a signal, if there was one.

    The evaluation of the epoch is released before the next one takes memory for its waves.
    """
    journal, epoch, started = parts.journal, state.epoch + 1, time.monotonic()
    context.heartbeat.begin(f"epoch {epoch}")
    batch = parts.sampler.take(epoch)
    evaluate = EpochEvaluator(parts.objective, stage, batch, state, journal.figures_due(epoch))
    evaluate.renew_wavelet(epoch)
    model, evaluation = parts.optimizer.step(evaluate.model, evaluate, stage.progress(epoch))
    _compare_replicas(model, epoch, context)
    seconds = time.monotonic() - started
    timings = measure_timings(evaluate.times, evaluate.simulations, seconds, context)
    whole = Model(model.grid, {**state.model.arrays, **model.arrays})
    score, entry = journal.measure(epoch, batch, whole, evaluation, timings)
    optimizer, carried = parts.optimizer.state(), evaluate.carry_over(model)
    state = state.after(whole, optimizer, evaluation, score, entry, *carried)
    signal = stop.agree_to_stop()
    journal.keep(state, evaluation, last=signal is not None or epoch == stage.last)
    return state, signal


def _compare_replicas(model: Model, epoch: int, context: Context) -> None:
    differing = find_differing(model.arrays.values(), context)
    if differing:
        context.raise_on_all_ranks(
            InversionFailure(
                f"after epoch {epoch} the models of ranks {differing} differ from that of rank 0: "
                "a rank computes wrongly (faulty memory, or another processor or library than on "
                "the other ranks)"
            )
        )
