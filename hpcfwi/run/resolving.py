"""`hpcfwi resolve`: the resolution of an inversion, by point spread functions or a checkerboard."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from hpcfwi.errors import InputError
from hpcfwi.inversion import resolution
from hpcfwi.inversion.memory import estimate_resolution
from hpcfwi.inversion.preparation import load_onto
from hpcfwi.model import Model
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.watch import StopRequest
from hpcfwi.report.log import start_log
from hpcfwi.report.resolution import ResolutionTest, resolution_figure
from hpcfwi.run.directory import OTHER_DIRECTORY, RunDirectory, refusing_unwritable
from hpcfwi.run.job import Opened, open_input, watch_preparation
from hpcfwi.run.records import keep_resolution
from hpcfwi.system import exists

log = logging.getLogger("hpcfwi")


def resolve_job(
    path: Path,
    settings: Sequence[str],
    context: Context,
    *,
    model: Path | None = None,
    points: float | None = None,
    checkerboard: float | None = None,
    stage: int | None = None,
    quiet: bool = False,
) -> None:
    """Apply J^T J to a perturbation, and write and draw the response; collective.

    Parameters
    ----------
    path : Path
        The input file, or a run directory, whose result is then the default model.
    model : Path, optional
        A file with the model around which the waves are linearized.
    points : float, optional
        The distance between points, m; one wavelength if neither is given.
    checkerboard : float, optional
        The size of the cells of a checkerboard, m, which then replaces points.
    stage : int, optional
        The number of the stage, from 1, whose data are used; the last one if not given.

    Raises
    ------
    InputError
        On all ranks, for all errors in the input that a run would report, for sizes that are not
        possible on the grid, and if the result cannot be written.
    """
    if points is not None and checkerboard is not None:
        raise InputError(
            "command line", "--points and --checkerboard exclude each other", "Give only one."
        )
    with StopRequest(context) as stop, start_log(None, context.rank, quiet):
        context.heartbeat.begin("the resolution")
        with watch_preparation(context, stop, "the beginning"):
            job = open_input(path, context, settings, stage)
            directory = RunDirectory(Path(job.experiment.config.output.directory))
            context.from_root(lambda: directory.check(job.whole.config))
            around, label = _find_model(job, path, model)
            found = _resolve(job, around, label, points, checkerboard)
            context.from_root(lambda: _keep(directory, found, job))


def _find_model(job: Opened, path: Path, model: Path | None) -> tuple[Model, str]:
    """Return the model around which waves are linearized, on the inversion's grid, and its name."""
    initial = job.experiment.initial
    if model is None and path.is_dir():
        model = RunDirectory(path).model
        if not job.context.from_root(partial(exists, model)):
            raise InputError(
                str(model),
                "the run has no result yet",
                "Continue the run, or name the input file to use the starting model.",
            )
    if model is None:
        return initial, "starting model"
    names = [*initial.arrays]
    return load_onto(initial.grid, str(model), names, "--model", job.context), model.name


def _resolve(
    job: Opened, around: Model, label: str, points: float | None, checkerboard: float | None
) -> ResolutionTest:
    """Perturb a model, simulate, and measure the response; collective."""
    experiment = job.experiment
    grid, free = around.grid, ~experiment.fixed
    (name, *_) = experiment.config.inversion.parameters
    speed = around[name].astype(np.float64)
    if not free.any():
        raise InputError(
            "inversion.fixed", "no cell may change, so none can be resolved", "Fix fewer cells."
        )
    slowest = experiment.equation.slowest(around.arrays).astype(np.float64)
    wavelength = float(np.median(slowest[free])) / experiment.survey.spectrum.peak
    if checkerboard is not None:
        size = checkerboard
        resolution.check_size(size, grid, "--checkerboard")
        perturbation = resolution.perturb_checkerboard(grid, speed, free, size)
        what = f"a checkerboard with cells of {size:g} m"
    else:
        size = resolution.APART * wavelength if points is None else points
        if points is not None:
            resolution.check_size(size, grid, "--points")
        places = resolution.place_points(grid, ~free, size)
        perturbation = resolution.perturb_points(places, speed, free)
        what = f"{np.count_nonzero(perturbation)} points, {size:.4g} m apart"
    log.info(
        "Resolution in the %s for %s: %d shots, wavelength %.0f m at %.3g Hz",
        label,
        what,
        experiment.survey.n_shots,
        wavelength,
        experiment.survey.spectrum.peak,
    )
    change = around.map(np.zeros_like)
    change.arrays[name][...] = perturbation
    shots = experiment.shots(job.context, estimate_resolution(experiment, job.context))
    found = shots.linearize(job.see(around)).normal(job.see(change))
    if experiment.coarsening is not None:
        found = experiment.coarsening.transpose(found)
    response = np.where(free, found[name].cpu().numpy().astype(np.float64), 0.0)
    at = None
    if checkerboard is not None:
        measures = resolution.measure_checkerboard(response, perturbation, grid, free, size)
    else:
        measures = resolution.measure_points(places, response, perturbation, grid, free)
        along = [grid.coordinates(axis)[place] for axis, place in enumerate(places)]
        at = np.stack(np.meshgrid(*along, indexing="ij"), axis=-1)
    return ResolutionTest(grid, size, label, speed, perturbation, response, at, measures)


def _keep(directory: RunDirectory, found: ResolutionTest, job: Opened) -> None:
    """Log the result, and write it and its figure; rank 0 only."""
    from hpcfwi.report import style

    log.info("%s", resolution.describe_measures(found.measures, found.grid.axes))
    with refusing_unwritable(directory.path, OTHER_DIRECTORY):
        peak = job.experiment.survey.spectrum.peak
        keep_resolution(directory.resolution, found, job.stage, peak)
        style.save(resolution_figure(found), directory.figure("resolution"))
    log.info("Saved in %s, drawn in %s", directory.resolution, directory.figure("resolution"))
