"""The state of an inversion: everything on which the next epoch depends, in one value.

It is made, saved and restored here alone. Every rank has the same state, but for shards of what the
optimizer remembers. A checkpoint also holds what the bits depend on beside the config, which are
the engine and the history that it has chosen, so that a run that goes on computes as it has begun.
`storage.checkpoint` makes a file of it, and the recorder decides when.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Self

import torch

from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.objective import Evaluation, Times
from hpcfwi.inversion.wavelets import Emission
from hpcfwi.model import Grid, Model
from hpcfwi.operators.simulator import Simulator
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.exact import References
from hpcfwi.parallel.shards import gather_to_root, has_slabs
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
        """Return the numerics of this simulator."""
        engine = choose(simulator.method.engine, device).NAME
        history = simulator.method.history
        assert isinstance(history, Snapshots | Boundary | Recompute), "chosen in resources"
        return cls(engine, history)

    def to_table(self) -> dict[str, Any]:
        """Return a table of plain values."""
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


@dataclass(frozen=True)
class Best:
    """The best model so far: the nearest to the truth or, where that is not known, to the data."""

    score: float
    epoch: int
    model: Model


@dataclass(frozen=True)
class Evaluated:
    """The evaluation of a model that is known already, as at the end of a line search.

    sample: that of the batch. The evaluation has illuminations if steps need them, and counts no
    simulations.
    """

    sample: tuple[int, ...]
    evaluation: Evaluation

    def to_table(self) -> dict[str, Any]:
        """Return a table for a checkpoint."""
        found = self.evaluation
        return {
            "sample": self.sample,
            "misfit": found.misfit,
            "penalty": found.penalty,
            "gradient": _to_cpu(found.gradient),
            "illuminations": {name: field.cpu() for name, field in found.illuminations.items()},
            "failed": found.failed,
            "references": dict(found.references),
        }

    @classmethod
    def from_table(cls, table: Mapping[str, Any], model: Model) -> Self:
        """Return the evaluation of a model from the table of `to_table`."""
        device = model.any.device
        gradient = _to_device(table["gradient"], model.grid, device)
        illuminations = table.get("illuminations", {})
        _check_finite([table["misfit"], table["penalty"], illuminations])
        _check_all_counts([*table["sample"], *table["failed"]])
        evaluation = Evaluation(
            table["misfit"],
            table["penalty"],
            gradient,
            {name: field.to(device) for name, field in illuminations.items()},
            tuple(table["failed"]),
            table["references"],
            Times(),
            0,
        )
        return cls(tuple(table["sample"]), evaluation)


@dataclass(frozen=True)
class State:
    """The state of an inversion after an epoch; it is never changed.

    epoch: 0 before the first; stage: number of the current one; model: of tensors; optimizer: see
    `Optimizer.state`; numerics: None until they are chosen; references: for the next evaluation;
    history: the metrics of each epoch, with None for its shots, and "planned", the number of epochs
    of its stage, with which the shots are drawn again; failed: shots that were set aside, and in
    how many epochs; emission: estimated wavelets, None for those of the survey; evaluated: the
    known evaluation of the model.
    """

    epoch: int
    model: Model
    optimizer: Mapping[str, Any]
    numerics: Numerics | None = None
    references: References | None = None
    history: tuple[dict[str, Any], ...] = ()
    best: Best | None = None
    failed: Mapping[int, int] = field(default_factory=dict)
    stage: int = 0
    emission: Emission | None = None
    evaluated: Evaluated | None = None

    def after(
        self,
        model: Model,
        optimizer: Mapping[str, Any],
        evaluation: Evaluation,
        score: float,
        entry: dict[str, Any],
        emission: Emission | None = None,
        evaluated: Evaluated | None = None,
    ) -> State:
        """The state after one epoch more.

        score: of the model, less is better; entry: what the metrics say of the epoch; evaluated:
        what is known of this model.
        """
        epoch, failed = self.epoch + 1, dict(self.failed)
        for shot in evaluation.failed:
            failed[shot] = failed.get(shot, 0) + 1
        best = self.best
        if best is None or score < best.score:
            best = Best(score, epoch, model)
        return replace(
            self,
            epoch=epoch,
            model=model,
            optimizer=optimizer,
            references=evaluation.references,
            history=(*self.history, entry),
            best=best,
            failed=failed,
            emission=emission,
            evaluated=evaluated,
        )

    def enter(self, stage: int, optimizer: Mapping[str, Any], keeps_best: bool) -> State:
        """The state at the beginning of a stage, whose optimiser begins with this state.

        keeps_best: whether scores of this stage and of those before are of the same kind.
        """
        best = self.best if keeps_best else None
        return replace(
            self,
            stage=stage,
            optimizer=optimizer,
            numerics=None,
            references=None,
            best=best,
            emission=None,
            evaluated=None,
        )

    @property
    def is_shared(self) -> bool:
        """True if other ranks have parts of it."""
        return has_slabs(self.optimizer)

    def gather(self, context: Context) -> State:
        """All of it on rank 0, where it can be saved; itself on the others; collective."""
        return replace(self, optimizer=gather_to_root(self.optimizer, context))

    def to_table(self) -> dict[str, Any]:
        """Return a table for a checkpoint: tensors on the CPU, and plain values."""
        assert self.numerics is not None, "chosen before the first epoch"
        assert not self.is_shared, "gathered before it is saved"
        best = self.best
        return {
            "epoch": self.epoch,
            "stage": self.stage,
            "model": _to_cpu(self.model),
            "optimizer": dict(self.optimizer),
            "numerics": self.numerics.to_table(),
            "references": None if self.references is None else dict(self.references),
            "history": list(self.history),
            "best": None if best is None else (best.score, best.epoch, _to_cpu(best.model)),
            "failed": dict(self.failed),
            **({} if self.emission is None else self.emission.to_table()),
            "evaluated": None if self.evaluated is None else self.evaluated.to_table(),
        }

    @classmethod
    def from_table(cls, table: Mapping[str, Any], grid: Grid, device: torch.device) -> Self:
        """Make the state of which `to_table` has made a table.

        Raises
        ------
        ValueError, TypeError, LookupError, AttributeError
            Where the table is not one of a state on this grid.
        """
        best, evaluated = table["best"], table.get("evaluated")
        is_estimated = table.get("wavelet") is not None
        model = _to_device(table["model"], grid, device)
        _check_finite(table["optimizer"])
        _check_counts(table)
        return cls(
            table["epoch"],
            model,
            table["optimizer"],
            Numerics.from_table(table["numerics"]),
            table["references"],
            tuple(table["history"]),
            None if best is None else Best(best[0], best[1], _to_device(best[2], grid, device)),
            table["failed"],
            table.get("stage", 0),
            Emission.from_table(table) if is_estimated else None,
            None if evaluated is None else Evaluated.from_table(evaluated, model),
        )


def _to_device(arrays: Mapping[str, torch.Tensor], grid: Grid, device: torch.device) -> Model:
    for name, array in arrays.items():
        if tuple(array.shape) != grid.shape or not array.is_floating_point():
            raise ValueError(f"{name} is {tuple(array.shape)} of {array.dtype}, not {grid.shape}")
    _check_finite(arrays)
    return Model(grid, {name: array.to(device) for name, array in arrays.items()})


def _check_finite(tree: Any) -> None:
    """Raise ValueError or TypeError where nested dicts and lists hold more than finite numbers."""
    if isinstance(tree, torch.Tensor):
        if not torch.isfinite(tree).all():
            raise ValueError("a value is not finite")
    elif isinstance(tree, Mapping | list | tuple):
        for branch in tree.values() if isinstance(tree, Mapping) else tree:
            _check_finite(branch)
    elif tree is not None and not isfinite(tree):
        raise ValueError(f"{tree} is not finite")


def _check_counts(table: Mapping[str, Any]) -> None:
    """Raise ValueError or TypeError if numbers of epochs and shots are none."""
    if not isinstance(table["failed"], Mapping):
        raise TypeError("what has failed is no table")
    _check_all_counts([table["epoch"], table.get("stage", 0)])
    _check_all_counts([*table["failed"], *table["failed"].values()])
    needed = {"epoch", "planned"}
    if not all(isinstance(entry, dict) and needed <= entry.keys() for entry in table["history"]):
        raise TypeError("an entry of its history is not one of an epoch")
    _check_all_counts([entry["planned"] for entry in table["history"]])
    if table["best"] is not None:
        score, epoch, _ = table["best"]
        float(score), int(epoch)
    references = {} if table["references"] is None else table["references"]
    for name, reference in references.items():
        if not isinstance(name, str) or not isfinite(reference):
            raise ValueError(f"{name} refers to {reference}")


def _check_all_counts(counts: list[Any]) -> None:
    if any(type(count) is not int or count < 0 for count in counts):
        raise ValueError(f"one of {counts[:9]} is not a count")


def _to_cpu(model: Model) -> dict[str, torch.Tensor]:
    return {name: array.cpu() for name, array in model.arrays.items()}
