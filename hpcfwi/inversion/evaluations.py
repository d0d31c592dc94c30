"""What an optimiser asks for in one epoch, and what that took."""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcfwi.inversion.objective import Evaluation, Objective
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

    def __call__(self, model: Model) -> Evaluation:
        """The misfit of a model and its gradient; collective."""
        illuminate = self.illuminate and model is self.state.model
        found = self.objective.evaluate(model, self.batch, self._references, illuminate)
        self._references = found.references
        self.times.add(found.times)
        self.simulations += found.simulations
        return found
