"""What an optimiser asks for in one epoch, and what that took."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import frexp, ldexp

from hpcfwi.inversion.objective import Evaluation, Objective, References
from hpcfwi.inversion.sampler import Batch
from hpcfwi.inversion.state import State
from hpcfwi.inversion.timings import Times
from hpcfwi.model import Model


@dataclass
class Evaluations:
    """Evaluates models with the shots of the epoch after a state, and adds up what that took.

    illuminate: whether the illuminations of the model that the epoch begins with are wanted; times:
    of this rank; simulations: as `Evaluation` counts them.
    """

    objective: Objective
    batch: Batch
    state: State
    illuminate: bool
    times: Times = field(default_factory=Times)
    simulations: int = 0

    def __post_init__(self) -> None:
        self._references = self.state.references
        self._references_along: References | None = None

    def __call__(self, model: Model) -> Evaluation:
        """The misfit of a model and its gradient; collective."""
        illuminate = self.illuminate and model is self.state.model
        found = self.objective.evaluate(model, self.batch, self._references, illuminate)
        self._references = found.references
        self._count(found)
        return found

    def product(self, model: Model, direction: Model, shots: int | None = None) -> Model:
        """What `Objective.along` finds of a model in a direction that is not zero; collective.

        shots: so many of the batch, which are in no order, or all of them. In double precision, as
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
