"""Synthetic observed data: every shot of the survey simulated in the true model."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.errors import InputError, InversionFailure, Stopped
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.memory import fit_forward
from hpcfwi.operators.batching import Chunks
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.replicas import once_a_host
from hpcfwi.parallel.watch import StopRequest, Watch
from hpcfwi.report.progress import Progress
from hpcfwi.storage.gathers import (
    GatherReader,
    GatherWriter,
    create_gathers,
    read_labels,
    read_layout,
)
from hpcfwi.system import is_there

log = logging.getLogger("hpcfwi")


def check_observed(experiment: Experiment, context: Context) -> None:
    """Raise `InputError` on all ranks where a file of other data is in the way; collective."""
    if experiment.is_synthetic and context.from_root(partial(is_there, experiment.observed)):
        open_observed(experiment, context).close()


def open_observed(experiment: Experiment, context: Context) -> GatherReader:
    """The observed data; collective. Raises `InputError` on all ranks where they are other data."""
    if experiment.is_synthetic:
        context.from_root(partial(_check_made, experiment))
    return GatherReader(experiment.observed, context, experiment.survey)


def _check_made(experiment: Experiment) -> None:
    """Raise `InputError` where hpcfwi has made the observed data of something else."""
    shape, attributes = read_layout(experiment.observed)
    found = attributes.get("fingerprint")
    same = isinstance(found, str) and found == experiment.fingerprint
    if not same or shape != experiment.survey.shape:
        raise InputError(
            str(experiment.observed),
            "these data were made from another model or survey, or by another program",
            "Choose another output.directory, or another name with --to, or remove the file.",
        )


def observe(
    experiment: Experiment, context: Context, stop: StopRequest, quiet: bool = False
) -> None:
    """Simulate the observed data where they are not there yet; collective.

    Every rank simulates its shots and writes them into the one file, which has its name only when
    it is whole. What an earlier job has written of it is taken over. The waves run through the
    whole model and to all receivers, as those of the earth do, whatever windows the inversion has.

    Raises `Stopped` after a signal, with the shots so far on disk, `InputError` where a shot does
    not fit the memory, and `InversionFailure` where traces are not finite or memory runs out all
    the same: on all ranks.
    """
    if not experiment.is_synthetic:
        return
    path, n_shots = experiment.observed, experiment.survey.n_shots
    if context.from_root(partial(is_there, path)):
        log.info("Observed data: %s", path)
        return
    file = experiment.config.survey.file
    labels = {} if file is None else once_a_host(partial(read_labels, Path(file)), context)
    extras = {**labels, "fingerprint": context.from_root(lambda: experiment.fingerprint)}
    with create_gathers(path, experiment.survey, context, extras) as writer:
        before = n_shots - writer.left.size
        if before:
            there = f"{before} of {n_shots} shots are in {writer.part} already"
            log.info("Going on with the simulation: %s", there)
        else:
            log.info("Simulating %d shots into %s", n_shots, path)
        with Progress(
            n_shots, "shot", done=before, every=0.1, enabled=context.is_root, quiet=quiet
        ) as progress:
            signal, done = _simulate(experiment, writer, stop, progress, context)
        if signal is not None:
            writer.close()
            context.raise_alike(
                Stopped(
                    f"stopped by {signal} after {done} of {n_shots} shots were simulated; "
                    f"the same command goes on from shot {done}"
                )
            )


def _simulate(
    experiment: Experiment,
    writer: GatherWriter,
    stop: StopRequest,
    progress: Progress,
    context: Context,
) -> tuple[str | None, int]:
    """The shots that are left; the signal that stopped them, if any, and how many are done."""
    survey, true = experiment.survey, experiment.true
    assert true is not None
    simulator = experiment.simulator(true)
    model = true.as_tensors(context.device)
    mine = np.array_split(writer.left, context.size)[context.rank]
    most = fit_forward(experiment, context, is_loaded=True)
    chunks = Chunks(most, context)
    rounds = [mine[i : i + most] for i in range(0, mine.size, most)]
    none = np.empty((0, survey.n_receivers, survey.n_samples), dtype=np.float32)
    done, signal = survey.n_shots - writer.left.size, None

    def simulate(shots: NDArray[np.int64], part: slice) -> NDArray[np.float32]:
        traces: Tensor = simulator.simulate(model, survey.select(shots[part]), keep=False).data
        return traces.cpu().numpy()

    context.heartbeat.begin("the simulation of the observed data")
    with Watch(context, stop, lambda: f"shot {done}"):
        for k in range(max(context.all_gather(len(rounds)))):
            shots = rounds[k] if k < len(rounds) else mine[:0]
            traces = np.concatenate([none, *chunks.each(shots.size, partial(simulate, shots))])
            chunks.check()
            # What is in the file is not looked at again
            _check_finite(context.all_gather(shots[~np.isfinite(traces).all(axis=(1, 2))]))
            writer.write(shots, traces)
            count = sum(context.all_gather(int(shots.size)))
            done += count
            progress.advance(count)
            if done < survey.n_shots:
                signal = stop.agreed()
                if signal is not None:
                    break
    return signal, done


def _check_finite(failed: list[NDArray[np.int64]]) -> None:
    shots = np.concatenate(failed)
    if shots.size:
        raise InversionFailure(
            f"shots {shots.tolist()} gave traces that are not finite: the model or wavelet has "
            "values that the simulation cannot carry"
        )
