"""What the loop tells of its epochs, and what it wants to be told. Files are `run.recorder`'s."""

from __future__ import annotations

from typing import Any, Protocol

from hpcfwi.inversion.objective import Evaluation
from hpcfwi.inversion.sampler import Batch
from hpcfwi.inversion.state import State
from hpcfwi.inversion.timings import Timings
from hpcfwi.model import Model


class Journal(Protocol):
    """Keeps what a run leaves behind; the same calls on every rank."""

    def draws(self, epoch: int) -> bool:
        """Whether figures are due after this epoch."""

    def describe(
        self, epoch: int, batch: Batch, model: Model, evaluation: Evaluation, timings: Timings
    ) -> tuple[float, dict[str, Any]]:
        """How good a model is, less is better, and what the metrics say of the epoch."""

    def keep(self, state: State, evaluation: Evaluation, last: bool) -> None:
        """Have written what is due after an epoch, and all of it if it is the last; collective."""
