"""What a run leaves to look at: models, metrics and figures. Rank 0 only.

What the figures show is kept in files of its own, so that `show` draws them again without
computing. The state that a run goes on from is in `storage.checkpoint`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcfwi.config import load_config
from hpcfwi.errors import InputError
from hpcfwi.inversion.directory import RunDirectory
from hpcfwi.inversion.evaluation import Evaluation
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.model import Model
from hpcfwi.parallel.context import Context
from hpcfwi.report.figures import EpochPicture, draw_epoch, draw_gathers, draw_loss, draw_wavelet
from hpcfwi.report.metrics import read_metrics
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.storage.hdf5 import created_whole
from hpcfwi.storage.models import read_model, write_model
from hpcfwi.survey import Survey

SHOWN_GATHERS = 3
_ARRAYS = ("inverted", "gradient", "source_illumination", "receiver_illumination")

P = ParamSpec("P")


def keep_models(directory: RunDirectory, experiment: Experiment) -> None:
    """Write the true model, where it is known, and the initial one."""
    if experiment.true is not None:
        write_model(directory.true, experiment.true)
    write_model(directory.initial, experiment.initial)


def make_picture(
    epoch: int, experiment: Experiment, vp: NDArray[np.float32], evaluation: Evaluation
) -> EpochPicture:
    """What the figure of an epoch shows; copies, which nobody will change."""
    true, survey = experiment.true, experiment.survey
    return EpochPicture(
        epoch=epoch,
        grid=experiment.initial.grid,
        true=None if true is None else true.vp,
        inverted=vp.copy(),
        gradient=np.where(experiment.fixed, 0.0, evaluation.gradient.cpu().numpy()),
        source_illumination=evaluation.source_illumination.cpu().numpy(),
        receiver_illumination=evaluation.receiver_illumination.cpu().numpy(),
        start=experiment.initial.vp,
        sources=survey.sources,
        receivers=survey.receivers.reshape(-1, survey.receivers.shape[-1]),
    )


def keep_picture(directory: RunDirectory, picture: EpochPicture) -> None:
    """Write what changes from one epoch's figure to the next."""
    path = directory.epochs / f"epoch_{picture.epoch:04d}.h5"
    with created_whole(path) as file:
        file.attrs["epoch"] = picture.epoch
        for name in _ARRAYS:
            file[name] = getattr(picture, name)


def draw_survey(
    draw: Callable[..., None], directory: RunDirectory, survey: Survey, reader: GatherReader
) -> None:
    """The figures of the wavelet and of a few gathers along the line.

    draw(function, path, ...) draws now or later, as `Painter.submit` does.
    """
    count = min(SHOWN_GATHERS, survey.n_shots)
    shots = np.linspace(0, survey.n_shots - 1, count + 2)[1:-1].round().astype(np.int64)
    shown = survey.select(shots)
    draw(draw_wavelet, directory.figure("ricker"), shown.wavelet[0], survey.dt)
    draw(
        draw_gathers,
        directory.figure("observed_data"),
        reader.read(shots),
        shown.receivers,
        shown.sources,
        survey.dt,
        [f"Shot {shot}" for shot in shots],
    )


def draw_epoch_figures(
    draw: Callable[..., None],
    directory: RunDirectory,
    picture: EpochPicture,
    history: Sequence[dict[str, Any]],
) -> None:
    """The five panels of an epoch, and the misfits up to it."""
    draw(draw_epoch, directory.figure(f"epoch_{picture.epoch:04d}"), picture)
    draw(draw_loss, directory.figure("loss"), list(history))


def show(path: Path) -> list[Path]:
    """Draw all figures of a run directory again, from what is kept there; returns their paths.

    Raises `InputError` where it is not a run directory, or one without results.
    """
    directory = RunDirectory(path)
    if not directory.config.exists() or not directory.initial.exists():
        raise InputError(str(path), "not a run directory", "Name the directory of a run.")
    drawn: list[Path] = []

    def draw(
        function: Callable[Concatenate[Path, P], None],
        file: Path,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        function(file, *args, **kwargs)
        drawn.append(file)

    initial = read_model(directory.initial)
    true = read_model(directory.true).vp if directory.true.exists() else None
    given = load_config(directory.config).survey.file
    observed = Path(given) if given else path / "observed.h5"
    vp = initial.vp
    blank = EpochPicture(0, initial.grid, true, vp, vp, vp, vp, start=vp)
    if observed.exists():
        with GatherReader(observed, Context.alone()) as reader:
            survey = reader.survey
            draw_survey(draw, directory, survey, reader)
        receivers = survey.receivers.reshape(-1, survey.receivers.shape[-1])
        blank = replace(blank, sources=survey.sources, receivers=receivers)
    history = read_metrics(directory.metrics)
    for file in sorted(directory.epochs.glob("epoch_*.h5")):
        draw_epoch_figures(draw, directory, _read_picture(file, blank), history)
    return sorted(set(drawn))


def _read_picture(path: Path, blank: EpochPicture) -> EpochPicture:
    with h5py.File(path) as file:
        arrays = {name: file[name][...] for name in _ARRAYS}
        return replace(blank, epoch=int(file.attrs["epoch"]), **arrays)


def keep_result(path: Path, grid_of: Model, vp: NDArray[np.float32], epoch: int) -> None:
    """Write an inverted model and the epoch it is from."""
    write_model(path, grid_of.with_vp(vp), {"epoch": epoch})
