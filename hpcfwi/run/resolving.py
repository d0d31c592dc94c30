"""`hpcfwi resolve`: what an inversion can see, by point spread functions or a checkerboard."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from math import inf
from pathlib import Path

import numpy as np

from hpcfwi.errors import InputError, WriteFailure, quote
from hpcfwi.inversion import resolution
from hpcfwi.inversion.memory import weigh_resolution
from hpcfwi.inversion.preparation import load_onto
from hpcfwi.model import Grid, Model
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.watch import StopRequest, Watch
from hpcfwi.report.log import start_log
from hpcfwi.report.resolution import Resolution, resolution_figure
from hpcfwi.run.directory import RunDirectory
from hpcfwi.run.opened import Opened, open_input
from hpcfwi.storage.hdf5 import check_format, created_whole, open_alone, plain, read_real
from hpcfwi.system import exists
from hpcfwi.wave.simulation import wave_speed

log = logging.getLogger("hpcfwi")

FORMAT = "hpcfwi-resolution"
VERSION = 1
ARRAYS = ("speed", "perturbation", "response")


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
    """Apply J^T J to a perturbation, and keep and draw what comes back; collective.

    Parameters
    ----------
    path : Path
        The input file, or a run directory, whose result is then the model.
    model : Path, optional
        A model file, around which the waves are linearised in place of that.
    points : float, optional
        The distance between points, m; two wavelengths where neither is given.
    checkerboard : float, optional
        The size of a checkerboard's cells, m, in place of points.
    stage : int, optional
        The number of the stage, from 1, whose data are meant; the last one where not given.

    Raises
    ------
    InputError
        On all ranks, for what a run would refuse, for sizes that do not fit the grid, and where
        the result cannot be written.
    """
    if points is not None and checkerboard is not None:
        raise InputError(
            "command line", "--points and --checkerboard exclude each other", "Give one of them."
        )
    with StopRequest(context) as stop, start_log(None, context.rank, quiet):
        context.heartbeat.begin("the resolution")
        with Watch(context, stop, lambda: "the beginning", grace=0.0, wait=inf):
            job = open_input(path, context, settings, stage)
            directory = RunDirectory(Path(job.experiment.config.output.directory))
            context.from_root(lambda: directory.check(job.whole.config))
            around, told = _find_model(job, path, model)
            found = _resolve(job, around, told, points, checkerboard)
            context.from_root(lambda: _keep(directory, found, job))


def _find_model(job: Opened, path: Path, model: Path | None) -> tuple[Model, str]:
    """The model around which waves are linearised, on the inversion's grid; and its name."""
    initial = job.experiment.initial
    if model is None and path.is_dir():
        model = RunDirectory(path).model
        if not job.context.from_root(partial(exists, model)):
            raise InputError(
                str(model),
                "the run has no result yet",
                "Go on with the run, or name the input file for the starting model.",
            )
    if model is None:
        return initial, "starting model"
    return load_onto(initial.grid, str(model), "--model", job.context), model.name


def _resolve(
    job: Opened, around: Model, told: str, points: float | None, checkerboard: float | None
) -> Resolution:
    """Perturb a model, simulate, and measure what comes back; collective."""
    experiment = job.experiment
    grid, free = around.grid, ~experiment.fixed
    (name, *_) = experiment.config.inversion.parameters
    speed = wave_speed(around.arrays).astype(np.float64)
    if not free.any():
        raise InputError(
            "inversion.fixed", "no cell may change, so that none is resolved", "Keep fewer cells."
        )
    wavelength = float(np.median(speed[free])) / experiment.survey.spectrum.peak
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
        what = f"{np.count_nonzero(perturbation)} points {size:.4g} m apart"
    log.info(
        "Resolution in the %s, of %s: %d shots, wavelength %.0f m at %.3g Hz",
        told,
        what,
        experiment.survey.n_shots,
        wavelength,
        experiment.survey.spectrum.peak,
    )
    change = around.map(np.zeros_like)
    change.arrays[name][...] = perturbation
    shots = experiment.shots(job.context, weigh_resolution(experiment, job.context))
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
    return Resolution(grid, size, told, speed, perturbation, response, at, measures)


def _keep(directory: RunDirectory, found: Resolution, job: Opened) -> None:
    """Tell the result, write it and its figure; rank 0 only."""
    from hpcfwi.report import style

    log.info("%s", resolution.describe_measures(found.measures, found.grid.axes))
    grid = found.grid
    try:
        directory.path.mkdir(parents=True, exist_ok=True)
        with created_whole(directory.resolution) as file:
            for name in ARRAYS:
                file.create_dataset(name, data=getattr(found, name), dtype=np.float32)
            if found.points is not None:
                file["points"] = found.points
            for name, values in found.measures.items():
                file.create_dataset(name, data=values, dtype=np.float32)
            file.attrs.update(
                {
                    "format": FORMAT,
                    "version": VERSION,
                    "axes": grid.axes,
                    "spacing": grid.spacing,
                    "origin": grid.origin,
                    "size": found.size,
                    "model": found.model,
                    "stage": job.stage,
                    "frequency": job.experiment.survey.spectrum.peak,
                }
            )
        style.save(resolution_figure(found), directory.figure("resolution"))
    except (OSError, WriteFailure) as failure:
        reason = failure.reason if isinstance(failure, WriteFailure) else failure.strerror
        raise InputError(
            str(directory.path),
            f"the resolution cannot be written there ({reason})",
            "Choose a directory that you may write, with --output or output.directory.",
        ) from failure
    log.info("Kept in %s, drawn in %s", directory.resolution, directory.figure("resolution"))


def read_resolution(path: Path) -> Resolution:
    """Read what `hpcfwi resolve` has kept. Raises `InputError` where it cannot be drawn."""
    with open_alone(path) as file:
        check_format(file, path, FORMAT, VERSION)
        names = [name for name in file if name not in (*ARRAYS, "points")]
        arrays = {name: read_real(file, path, name) for name in file}
        spacing, origin = (tuple(map(float, file.attrs[key])) for key in ("spacing", "origin"))
        size, model = float(file.attrs["size"]), str(plain(file.attrs["model"]))
    grid = Grid(arrays["perturbation"].shape, spacing, origin)
    points = arrays.get("points")
    shape = grid.shape if points is None else points.shape[:-1]
    wanted = {"correlation": shape, "amplitude": shape}
    if points is not None:
        wanted = {"width": points.shape, "amplitude": shape}
    found = {name: arrays[name].shape for name in (*ARRAYS, *names)}
    wanted |= dict.fromkeys(ARRAYS, grid.shape)
    if found != wanted:
        raise InputError(
            str(path),
            f"its arrays are {quote(found)}, expected {wanted}",
            "Remove the file, of which the figure cannot be drawn, or run `hpcfwi resolve` again.",
        )
    measures = {name: arrays[name] for name in names}
    speed, perturbation, response = (arrays[name] for name in ARRAYS)
    return Resolution(grid, size, model, speed, perturbation, response, points, measures)
