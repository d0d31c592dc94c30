"""What the bits of a run depend on beside its config: the engine, and the history it has chosen.

A checkpoint holds it, so that a run that goes on computes as it has begun.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch

from hpcfwi.inversion.experiment import Experiment
from hpcfwi.operators.simulator import Simulator
from hpcfwi.parallel.context import Context
from hpcfwi.wave.engines import choose
from hpcfwi.wave.history import (
    Auto,
    Boundary,
    History,
    Recompute,
    Snapshots,
    from_table,
    to_table,
)

# Frequencies (Hz) beyond which a history is not one of a run
LOWEST, HIGHEST = 1e-6, 1e9

log = logging.getLogger("hpcfwi")


@dataclass(frozen=True)
class Numerics:
    """engine: its name; history: whose interval is what the config says of it."""

    engine: str
    history: History

    @classmethod
    def of(cls, simulator: Simulator, device: torch.device) -> Self:
        """That of simulations with these simulator."""
        engine = choose(simulator.method.engine, device).NAME
        history = simulator.method.history
        assert isinstance(history, Snapshots | Boundary | Recompute), "chosen in resources"
        return cls(engine, history)

    def to_table(self) -> dict[str, Any]:
        """As plain values."""
        return {"engine": self.engine, "history": to_table(self.history)}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Return the numerics of a table that `to_table` has made.

        Raises as `history.from_table` does, and `ValueError` for a frequency that no waves have.
        """
        history = from_table(table["history"])
        if history.frequency is not None and not LOWEST <= history.frequency <= HIGHEST:
            raise ValueError(f"no waves of a survey have {history.frequency} Hz")
        return cls(table["engine"], history)

    def continue_with(self, experiment: Experiment, context: Context) -> Simulator:
        """Simulator of an experiment that keep to this history, whatever memory is at hand now.

        Rank 0 warns where the engine is another one.
        """
        simulator = experiment.compared()
        engine = choose(simulator.method.engine, context.device).NAME
        if engine != self.engine and context.is_root:
            log.warning(
                "This run goes on with the %s engine, and was computed by %s so far: "
                "from here on its last digits are others than they would have been",
                engine,
                self.engine,
            )
        if not experiment.config.inversion.reproducible:
            return simulator
        history = self.history
        kept = (
            Auto(history.interval, history.frequency, kind="recompute")
            if isinstance(history, Recompute)
            else history
        )
        return simulator.with_history(kept)
