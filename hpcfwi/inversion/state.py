"""The state of an inversion: one value with everything on which the next epoch depends.

Every rank has the same state, except for shards of the optimizer's state. A checkpoint also holds
the engine and the chosen history, on which the bits depend, so that a continued run computes as
before. `storage.checkpoint` writes the file, and the recorder decides when.
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
from hpcfwi.inversion.wavelets import WaveletEstimate
from hpcfwi.model import Grid, Model
from hpcfwi.operators.simulator import Simulator
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.exact import Magnitudes
from hpcfwi.parallel.shards import gather_to_root, has_shards, replace_leaves
from hpcfwi.wave.history import (
    Auto,
    Boundary,
    History,
    Recompute,
    Snapshots,
    from_table,
    to_table,
)

# Range of possible frequencies (Hz) of a history in a checkpoint.
LOWEST, HIGHEST = 1e-6, 1e9

log = logging.getLogger("hpcfwi")


@dataclass(frozen=True)
class EngineChoice:
    """The engine and the history of a run; the interval of the history is that of the config."""

    engine: str
    history: History

    @classmethod
    def of(cls, simulator: Simulator, device: torch.device) -> Self:
        engine = simulator.method.choose_engine(device).NAME
        history = simulator.method.history
        assert isinstance(history, Snapshots | Boundary | Recompute), "chosen in inversion.memory"
        return cls(engine, history)

    def to_table(self) -> dict[str, Any]:
        return {"engine": self.engine, "history": to_table(self.history)}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Return the choice in a table of `to_table`; raises as `history.from_table` does."""
        history = from_table(table["history"])
        if history.frequency is not None and not LOWEST <= history.frequency <= HIGHEST:
            raise ValueError(f"no survey has waves of {history.frequency} Hz")
        return cls(table["engine"], history)

    def continue_with(self, experiment: Experiment, context: Context) -> Simulator:
        """Return the simulator of an experiment with this history, whatever memory is free.

        Rank 0 warns if the engine differs.
        """
        simulator = experiment.make_simulator()
        engine = simulator.method.choose_engine(context.device).NAME
        if engine != self.engine and context.is_root:
            log.warning(
                "This run continues with the %s engine, but was computed with %s so far: "
                "from here on, the last digits differ from those of %s",
                engine,
                self.engine,
                self.engine,
            )
        if not experiment.config.inversion.reproducible:
            return simulator
        history: History | Auto = self.history
        if isinstance(history, Recompute):
            history = Auto(history.interval, history.frequency, kind="recompute")
        return simulator.with_history(history)


@dataclass(frozen=True)
class Best:
    """The best model so far: the closest to the true model or, if that is unknown, to the data."""

    score: float
    epoch: int
    model: Model


@dataclass(frozen=True)
class KnownEvaluation:
    """An evaluation of a model that is already known, for example from the end of a line search.

    key: that of the batch, see `Batch`. The evaluation has illuminations if steps need them, and
    counts no simulations.
    """

    key: tuple[int, ...]
    evaluation: Evaluation

    def to_table(self) -> dict[str, Any]:
        found = self.evaluation
        return {
            "sample": self.key,
            "misfit": found.misfit,
            "penalty": found.penalty,
            "gradient": _to_cpu(found.gradient),
            "illuminations": {name: field.cpu() for name, field in found.illuminations.items()},
            "failed": found.failed,
            "references": dict(found.magnitudes),
        }

    @classmethod
    def from_table(cls, table: Mapping[str, Any], model: Model) -> Self:
        """Return the evaluation of a model in a table of `to_table`."""
        device = model.any.device
        gradient = _to_device(table["gradient"], model.grid, device)
        illuminations = table["illuminations"]
        _check_finite([table["misfit"], table["penalty"], illuminations])
        _check_all_counts([*table["sample"], *table["failed"]])
        evaluation = Evaluation(
            misfit=table["misfit"],
            penalty=table["penalty"],
            gradient=gradient,
            illuminations={name: field.to(device) for name, field in illuminations.items()},
            failed=tuple(table["failed"]),
            magnitudes=table["references"],
            times=Times(),
            simulations=0,
        )
        return cls(tuple(table["sample"]), evaluation)


@dataclass(frozen=True)
class State:
    """The state of an inversion after an epoch, which is immutable.

    epoch: 0 before the first; stage: number of the current one; model: the arrays, as tensors, that
    any stage changes; optimizer: see `Optimizer.state`; engine: None until they are chosen;
    magnitudes: for the next evaluation; metrics: those of each epoch; only the last has its shots,
    because there may be many; failed: shots that were left out, with the number of epochs;
    estimated: estimated wavelets, None for those of the survey; evaluated: the evaluation of the
    stage's model, if it is known.
    """

    epoch: int
    model: Model
    optimizer: Mapping[str, Any]
    engine: EngineChoice | None = None
    magnitudes: Magnitudes | None = None
    metrics: tuple[dict[str, Any], ...] = ()
    best: Best | None = None
    failed: Mapping[int, int] = field(default_factory=dict)
    stage: int = 0
    estimated: WaveletEstimate | None = None
    evaluated: KnownEvaluation | None = None

    def after(
        self,
        model: Model,
        optimizer: Mapping[str, Any],
        evaluation: Evaluation,
        score: float,
        entry: dict[str, Any],
        estimated: WaveletEstimate | None = None,
        evaluated: KnownEvaluation | None = None,
    ) -> State:
        """Return the state after an epoch; score: lower is better; entry: metrics of the epoch."""
        epoch, failed = self.epoch + 1, dict(self.failed)
        for shot in evaluation.failed:
            failed[shot] = failed.get(shot, 0) + 1
        best = self.best
        if best is None or score < best.score:
            best = Best(score, epoch, model)
        earlier = (*self.metrics[:-1], *({**last, "shots": None} for last in self.metrics[-1:]))
        return replace(
            self,
            epoch=epoch,
            model=model,
            optimizer=optimizer,
            magnitudes=evaluation.magnitudes,
            metrics=(*earlier, entry),
            best=best,
            failed=failed,
            estimated=estimated,
            evaluated=evaluated,
        )

    def enter(self, stage: int, optimizer: Mapping[str, Any], keeps_best: bool) -> State:
        """Return the state at the beginning of a stage, with the first state of its optimizer.

        keeps_best: True if the scores of this stage and of earlier ones can be compared.
        """
        return State(
            self.epoch,
            self.model,
            optimizer,
            metrics=self.metrics,
            best=self.best if keeps_best else None,
            failed=self.failed,
            stage=stage,
        )

    def having(self, initial: Model) -> State:
        """Return the state with the arrays of an initial model that its models lack.

        They are those of stages that were added to a run.
        """

        def complete(model: Model) -> Model:
            return Model(model.grid, {**initial.arrays, **model.arrays})

        best = self.best and replace(self.best, model=complete(self.best.model))
        return replace(self, model=complete(self.model), best=best)

    @property
    def is_sharded(self) -> bool:
        """True if other ranks have parts of the state."""
        return has_shards(self.optimizer)

    def gather(self, context: Context) -> State:
        """Return the whole state on rank 0, for a checkpoint, and parts elsewhere; collective."""
        return replace(self, optimizer=gather_to_root(self.optimizer, context))

    def to_table(self) -> dict[str, Any]:
        """Return a table for a checkpoint: tensors on the CPU, and plain values."""
        assert self.engine is not None, "chosen before the first epoch"
        assert not self.is_sharded, "gathered before it is saved"
        best = self.best
        return {
            "epoch": self.epoch,
            "stage": self.stage,
            "model": _to_cpu(self.model),
            "optimizer": replace_leaves(
                self.optimizer, lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf
            ),
            "numerics": self.engine.to_table(),
            "references": None if self.magnitudes is None else dict(self.magnitudes),
            "history": list(self.metrics),
            "best": None if best is None else (best.score, best.epoch, _to_cpu(best.model)),
            "failed": dict(self.failed),
            **({} if self.estimated is None else self.estimated.to_table()),
            "evaluated": None if self.evaluated is None else self.evaluated.to_table(),
        }

    @classmethod
    def from_table(cls, table: Mapping[str, Any], grid: Grid, device: torch.device) -> Self:
        """Return the state in a table that `to_table` has made.

        Raises
        ------
        ValueError, TypeError, LookupError, AttributeError
            If the table is not that of a state on this grid.
        """
        best, evaluated = table["best"], table["evaluated"]
        model = _to_device(table["model"], grid, device)
        _check_finite(table["optimizer"])
        _check_counts(table)
        return cls(
            epoch=table["epoch"],
            model=model,
            optimizer=table["optimizer"],
            engine=EngineChoice.from_table(table["numerics"]),
            magnitudes=table["references"],
            metrics=tuple(table["history"]),
            best=None
            if best is None
            else Best(best[0], best[1], _to_device(best[2], grid, device)),
            failed=table["failed"],
            stage=table["stage"],
            estimated=WaveletEstimate.from_table(table) if "wavelet" in table else None,
            evaluated=None if evaluated is None else KnownEvaluation.from_table(evaluated, model),
        )


def _to_device(arrays: Mapping[str, torch.Tensor], grid: Grid, device: torch.device) -> Model:
    for name, array in arrays.items():
        if tuple(array.shape) != grid.shape or not array.is_floating_point():
            raise ValueError(f"{name} is {tuple(array.shape)} of {array.dtype}, not {grid.shape}")
    _check_finite(arrays)
    return Model(grid, {name: array.to(device) for name, array in arrays.items()})


def _check_finite(tree: Any) -> None:
    """Raise ValueError or TypeError if nested dicts and lists hold anything but finite numbers."""
    if isinstance(tree, torch.Tensor):
        if not torch.isfinite(tree).all():
            raise ValueError("a value is not finite")
    elif isinstance(tree, Mapping | list | tuple):
        for branch in tree.values() if isinstance(tree, Mapping) else tree:
            _check_finite(branch)
    elif tree is not None and not isfinite(tree):
        raise ValueError(f"{tree} is not finite")


def _check_counts(table: Mapping[str, Any]) -> None:
    """Raise ValueError or TypeError if numbers of epochs and shots are not counts."""
    failed, history = table["failed"], table["history"]
    if not isinstance(failed, Mapping):
        raise TypeError("the table of failed shots is not a table")
    if not all(isinstance(entry, dict) for entry in history):
        raise TypeError("an entry of its metrics is not that of an epoch")
    epochs = [table["epoch"], *(entry["epoch"] for entry in history)]
    _check_all_counts([*epochs, table["stage"], *failed, *failed.values()])
    if table["best"] is not None:
        score, epoch, _ = table["best"]
        float(score), int(epoch)
    magnitudes = {} if table["references"] is None else table["references"]
    for name, reference in magnitudes.items():
        if not isinstance(name, str) or not isfinite(reference):
            raise ValueError(f"{name} refers to {reference}")


def _check_all_counts(counts: list[Any]) -> None:
    if any(type(count) is not int or count < 0 for count in counts):
        raise ValueError(f"one of {counts[:9]} is not a count")


def _to_cpu(model: Model) -> dict[str, torch.Tensor]:
    return {name: array.cpu() for name, array in model.arrays.items()}
