"""Synthetic observed data: every shot of the survey simulated in the true model."""

from __future__ import annotations

import logging
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.errors import InputError, InversionFailure
from hpcfwi.host import is_there
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.portions import Portions
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.schedule import split_shots
from hpcfwi.report.progress import Progress
from hpcfwi.storage.gathers import GatherReader, create_gathers

log = logging.getLogger("hpcfwi")


def check_observed(experiment: Experiment, context: Context) -> None:
    """Raise `InputError` on all ranks where a file of other data is in the way; collective."""
    if not experiment.is_synthetic or not context.from_root(partial(is_there, experiment.observed)):
        return
    with GatherReader(experiment.observed, context) as reader:
        found, survey = reader.attributes.get("fingerprint"), reader.survey
    same = isinstance(found, str) and found == experiment.fingerprint()
    if not same or survey.shape != experiment.survey.shape:
        raise InputError(
            str(experiment.observed),
            "these data were made from another model or survey",
            "Choose another output.directory, remove the file, or name it as survey.file.",
        )


def observe(experiment: Experiment, context: Context, quiet: bool = False) -> None:
    """Simulate the observed data where they are not there yet; collective.

    Every rank simulates its shots and writes them into the one file, which has its name only when
    it is whole. The waves run through the whole model and to all receivers, as those of the earth
    do, whatever windows the inversion has.
    """
    if not experiment.is_synthetic:
        return
    path, fingerprint = experiment.observed, experiment.fingerprint()
    if context.from_root(partial(is_there, path)):
        log.info("Observed data: %s", path)
        return
    survey, true = experiment.survey, experiment.true
    assert true is not None
    physics = experiment.physics(true)
    vp = torch.from_numpy(true.vp).to(context.device)
    mine = split_shots(np.arange(survey.n_shots), context.size)[context.rank]
    portions = Portions(context.threads, context)
    rounds = [mine[i : i + context.threads] for i in range(0, mine.size, context.threads)]

    def simulate(shots: NDArray[np.int64], part: slice) -> NDArray[np.float32]:
        traces: Tensor = physics.simulate(vp, survey.select(shots[part]), keep=False).data
        return traces.cpu().numpy()

    log.info("Simulating %d shots into %s", survey.n_shots, path)
    with (
        create_gathers(path, survey, context, {"fingerprint": fingerprint}) as writer,
        Progress(
            survey.n_shots, "shot", every=0.1, enabled=context.is_root, quiet=quiet
        ) as progress,
    ):
        for k in range(max(context.all_gather(len(rounds)))):
            shots = rounds[k] if k < len(rounds) else mine[:0]
            none = np.empty((0, survey.n_receivers, survey.n_samples), dtype=np.float32)
            traces = np.concatenate([none, *portions.each(shots.size, partial(simulate, shots))])
            portions.check()
            writer.write(shots, traces)
            _check_finite(context.all_gather(shots[~np.isfinite(traces).all(axis=(1, 2))]))
            progress.advance(sum(context.all_gather(int(shots.size))))


def _check_finite(failed: list[NDArray[np.int64]]) -> None:
    shots = np.concatenate(failed)
    if shots.size:
        raise InversionFailure(
            f"shots {shots.tolist()} gave traces that are not finite: the model or wavelet has "
            "values that the simulation cannot carry"
        )
