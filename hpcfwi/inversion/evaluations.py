"""What an optimiser asks for in one epoch, and what that took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import frexp, ldexp

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.inversion.objective import Evaluation, Objective
from hpcfwi.inversion.sampler import Batch
from hpcfwi.inversion.stages import Stage
from hpcfwi.inversion.state import Evaluated, State
from hpcfwi.inversion.timings import Times
from hpcfwi.inversion.wavelets import Emission, Estimate, Optimize, check_estimates
from hpcfwi.model import Model
from hpcfwi.parallel.exact import References


@dataclass
class Evaluations:
    """Evaluates models with the shots of the epoch after a state, and adds up what that took.

    illuminate: whether the illuminations of the model that the epoch begins with are wanted; times:
    of this rank; simulations: as `Evaluation` counts them.
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
        """Estimate what sources emit from this epoch on, where that is due; collective.

        Raises `InversionFailure` on all ranks where that is nothing, or not finite.
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
        """Estimate what those shots of the epoch emit whose own wavelets are due; collective."""
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
        """The misfit of a model and its gradient; collective.

        Nothing is simulated of a model of which the same shots have told already, but for
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
        """Take for known what a model would give, so that it need not be simulated."""
        self._last = model, evaluation

    def precondition(self, gradient: Model) -> Model:
        """As its stage asks for, in the model that the epoch begins with."""
        if self._preconditioner is None:
            return gradient
        return self._preconditioner.apply(gradient, self._illuminations, self.state.model)

    def _look_again(self, model: Model, known: Evaluation) -> Evaluation:
        """What is known of a model, with illuminations; so that figures do not change the bits."""
        found = self.objective.evaluate(model, self.batch, known.references)
        self._count(found)
        return replace(known, illuminations=found.illuminations)

    def learnt(self, model: Model) -> tuple[Emission | None, Evaluated | None]:
        """The emission, and what is known of a model, where it is the last that was evaluated."""
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
        """What `Objective.along` finds of a model in a direction that is not zero; collective.

        shots: so many of the batch, or all of them. In double precision, as
        the direction and its product may be too small for single.

        The sums take their resolution from the epoch's first direction. Those of all have the same
        size there, to a power of two, as their products have then about the same.
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
