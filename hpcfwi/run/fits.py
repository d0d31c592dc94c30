"""What is found at the end of a stage, as the run directory keeps it, and its figures. Rank 0 only.

`endings` finds it, and `inversion.shot_qc` has its meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcfwi.errors import InputError
from hpcfwi.inversion.shot_qc import Fit, ShotFit, View, judge_fit, to_unit_norm
from hpcfwi.plan.checks import Finding
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
from hpcfwi.survey import TimeAxis
from hpcfwi.system import check_link


def draw_fit(
    draw: Callable[..., None], directory: RunDirectory, fit: Fit, epoch: int, label: int
) -> None:
    """The figures of a fit; draw, label: as in `records.draw_epoch_figures`."""
    from hpcfwi.report.fit import fit_figure, traces_figure

    gathers = [
        (
            view.number,
            view.offsets,
            view.observed,
            _scale(view) if fit.normalized else view.simulated,
        )
        for view in fit.views
    ]
    draw(traces_figure, directory.figure("traces", label), gathers, fit.axis, epoch, fit.normalized)
    shots = [(shot.number, shot.misfit, shot.offsets, shot.phases) for shot in fit.shots]
    draw(
        fit_figure,
        directory.figure("fit", label),
        shots,
        fit.frequency,
        (fit.frequencies, *fit.amplitudes),
        epoch,
        fit.normalized,
    )


def _scale(view: View) -> NDArray[np.float32]:
    """Return simulated traces, each with the norm of the observed one."""
    norms = np.linalg.norm(view.observed, axis=-1, keepdims=True)
    return (norms * to_unit_norm(view.simulated.astype(np.float64))).astype(np.float32)


def check_fit(fit: Fit, epoch: int) -> list[Finding]:
    """Return a warning where the fit after an epoch is poor."""
    found = judge_fit(fit)
    if found is None:
        return []
    remedy = (
        "Look at the figures fit and traces. Begin with lower frequencies, nearer offsets or a "
        "better starting model, or take another misfit."
    )
    return [Finding("warning", f"data fit after epoch {epoch}", found, remedy)]


def keep_fit(path: Path, fit: Fit, epoch: int) -> None:
    """Write a fit, found after an epoch: a group a shot, named after its number."""
    check_link(path.parent)
    views = {view.number: view for view in fit.views}
    with created_whole(path) as file:
        file.attrs.update(
            epoch=epoch, frequency=fit.frequency, dt=fit.axis.dt, start=fit.axis.start
        )
        file.attrs["normalized"] = fit.normalized
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
        names = ("epoch", "normalized", "frequency", "dt", "start")
        epoch, normalized, frequency, dt, start = (plain(file.attrs[name]) for name in names)
    lengths = {view.observed.shape[-1] for view in views}
    powers = {power.shape for shot in shots for power in (shot.observed, shot.residual)}
    if not is_whole(epoch) or not all(map(is_number, (frequency, dt, start))):
        raise _damaged(path)
    if len(lengths) != 1 or powers != {(min(lengths) // 2 + 1,)} or not 0.0 < dt < np.inf:
        raise _damaged(path)
    fit = Fit(frequency, TimeAxis(dt, start), tuple(shots), tuple(views), bool(normalized))
    return fit, int(epoch)


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
        pair = [array.astype(np.float32) for array in traces]
        views.append(View(number, offsets, pair[0], pair[1]))
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
