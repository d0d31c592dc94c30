"""What is found at the end of a stage, as the run directory keeps it, and its figures. Rank 0 only.

How it is found is in `endings`; what it says in `inversion.fit`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from hpcfwi.errors import InputError
from hpcfwi.files import check_link
from hpcfwi.inversion.fit import Fit, ShotFit
from hpcfwi.inversion.views import View
from hpcfwi.run.directory import RunDirectory
from hpcfwi.storage.hdf5 import (
    created_whole,
    follow,
    holds,
    is_number,
    is_whole,
    open_alone,
    plain,
    read_real,
)


def draw_fit(
    draw: Callable[..., None], directory: RunDirectory, fit: Fit, epoch: int, label: int
) -> None:
    """The figures of a fit; draw, label: as in `records.draw_epoch_figures`."""
    from hpcfwi.report.fit import fit_figure, traces_figure

    gathers = [(view.number, view.offsets, view.observed, view.simulated) for view in fit.views]
    draw(traces_figure, directory.figure("traces", label), gathers, fit.dt, fit.start, epoch)
    shots = [(shot.number, shot.misfit, shot.offsets, shot.phases) for shot in fit.shots]
    draw(
        fit_figure,
        directory.figure("fit", label),
        shots,
        fit.frequency,
        (fit.frequencies, *fit.amplitudes),
        epoch,
    )


def keep_fit(path: Path, fit: Fit, epoch: int) -> None:
    """Write a fit, found after an epoch: a group a shot, named after its number."""
    check_link(path.parent)
    views = {view.number: view for view in fit.views}
    with created_whole(path) as file:
        file.attrs.update(epoch=epoch, frequency=fit.frequency, dt=fit.dt, start=fit.start)
        for shot in fit.shots:
            group = file.create_group(str(shot.number))
            group.attrs["misfit"] = shot.misfit
            group["offsets"], group["phases"] = shot.offsets, shot.phases
            group["observed_power"], group["residual_power"] = shot.observed, shot.residual
            if shot.number in views:
                view = views[shot.number]
                group["observed"], group["simulated"] = view.observed, view.simulated


def read_fit(path: Path) -> tuple[Fit, int]:
    """What `keep_fit` has written, and after which epoch; raises `InputError`."""
    with open_alone(path) as file:
        shots, views = [], []
        for number in sorted(map(int, file)):
            shot, view = _read_shot(file, path, number)
            shots.append(shot)
            views += view
        names = ("epoch", "frequency", "dt", "start")
        epoch, frequency, dt, start = (plain(file.attrs[name]) for name in names)
    lengths = {view.observed.shape[-1] for view in views}
    powers = {power.shape for shot in shots for power in (shot.observed, shot.residual)}
    if not is_whole(epoch) or not all(map(is_number, (frequency, dt, start))):
        raise _damaged(path)
    if len(lengths) != 1 or powers != {(min(lengths) // 2 + 1,)} or not 0.0 < dt < np.inf:
        raise _damaged(path)
    return Fit(frequency, dt, start, tuple(shots), tuple(views)), int(epoch)


def _read_shot(file: h5py.File, path: Path, number: int) -> tuple[ShotFit, list[View]]:
    offsets, phases, observed, residual = (
        read_real(file, path, f"{number}/{name}")
        for name in ("offsets", "phases", "observed_power", "residual_power")
    )
    group = follow(file, path, str(number))
    misfit = plain(group.attrs["misfit"])
    views = []
    if holds(group, "observed"):
        traces = [read_real(file, path, f"{number}/{name}") for name in ("observed", "simulated")]
        views.append(View(number, offsets, *(array.astype(np.float32) for array in traces)))
        if traces[0].shape != traces[1].shape or traces[0].shape[:-1] != offsets.shape:
            raise _damaged(path)
    if not is_number(misfit) or offsets.ndim != 1 or phases.shape != offsets.shape:
        raise _damaged(path)
    return ShotFit(number, misfit, offsets, phases, observed, residual), views


def _damaged(path: Path) -> InputError:
    return InputError(
        str(path),
        "its arrays do not belong together",
        "Remove the file: the figures are drawn without, and `hpcfwi run` makes it again.",
    )
