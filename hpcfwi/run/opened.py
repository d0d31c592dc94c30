"""An input file opened by a program: its shots as an operator, its models and its observed data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hpcfwi.config import load_config
from hpcfwi.errors import InputError
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.preparation import prepare
from hpcfwi.inversion.stages import make_stages
from hpcfwi.model import Model
from hpcfwi.operators.shots import Shots
from hpcfwi.parallel.context import Context
from hpcfwi.run.session import open_observed
from hpcfwi.system import is_there


@dataclass(frozen=True)
class Opened:
    """An input file, or one stage of it, ready to be simulated on the ranks of a context.

    Attributes
    ----------
    experiment : Experiment
        Everything that the input describes, as the stage has it.
    whole : Experiment
        The same without what the stage changes: the survey as it was recorded.
    context : Context
        The ranks.
    stage : int
        The number of the stage, from 1.
    """

    experiment: Experiment
    whole: Experiment
    context: Context
    stage: int

    @cached_property
    def shots(self) -> Shots:
        """The simulations of the survey, with the numerics of a run; see `operators.Shots`."""
        return self.experiment.shots(self.context)

    @cached_property
    def model(self) -> Model[Tensor]:
        """The model that the inversion starts with, for `shots`."""
        return self.see(self.experiment.initial)

    @cached_property
    def true(self) -> Model[Tensor] | None:
        """The true model, for `shots`; None where it is not known."""
        return None if self.experiment.true is None else self.see(self.experiment.true)

    def see(self, model: Model) -> Model[Tensor]:
        """Return a model of the inversion's grid as tensors on the grid of `shots`."""
        coarsening = self.experiment.coarsening
        tensors = model.as_tensors(self.context.device)
        return tensors if coarsening is None else coarsening.restrict(tensors)

    def observed(self) -> Tensor:
        """Return the observed traces (shot, receiver, time), as `shots` gives simulated ones.

        They are in the band of the stage and zero where they do not count. Every rank has all of
        them. Collective.

        Raises
        ------
        InputError
            If the data are still to be simulated, or were made from another model or survey.
        """
        self.context.from_root(self._check_there)
        survey, band = self.experiment.survey, self.experiment.band
        with open_observed(self.whole, self.context) as reader:
            traces = reader.read(np.arange(survey.n_shots))
        if band is not None:
            traces = np.stack([band.filter(gather) for gather in traces])
        counts = self.experiment.aperture.trace_mask(survey.sources, survey.receivers)
        traces *= np.broadcast_to(counts, survey.shape[:2])[..., None]
        return torch.from_numpy(traces).to(self.context.device)

    def _check_there(self) -> None:
        path = self.whole.observed
        if self.whole.is_synthetic and not is_there(path):
            raise InputError(
                str(path),
                "the observed data are not simulated yet",
                "Run `hpcfwi forward` with this input first.",
            )


def open_input(
    path: str | Path, context: Context, settings: Sequence[str] = (), stage: int | None = None
) -> Opened:
    """Open an input file or a run directory, so that a program can simulate its shots; collective.

    Parameters
    ----------
    path : str or Path
        The input file (TOML), or a run directory.
    context : Context
        The ranks, from `hpcfwi.launch`.
    settings : sequence of str
        Changes of keys, "section.key=value", as `--set` takes them.
    stage : int, optional
        The number of the stage, from 1, whose band, offsets and grid are wanted; the last one
        where not given.

    Raises
    ------
    InputError
        On all ranks, for what a run would refuse, and for a stage that there is not.
    """
    config = context.from_root(partial(load_config, Path(path), settings))
    whole = prepare(config, context)
    stages = make_stages(whole, context)
    number = len(stages) if stage is None else stage
    if not 1 <= number <= len(stages):
        raise InputError(
            f"{path}: stage {number}",
            f"there is none, as the input has {len(stages)}",
            f"Give a number from 1 to {len(stages)}, or leave it out.",
        )
    return Opened(stages[number - 1].experiment, whole, context, number)
