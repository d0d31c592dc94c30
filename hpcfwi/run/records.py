"""The records of a run in its directory, from which `drawing` makes figures without simulations.

They are the fit after a stage, the contents of the figures of epochs, masks of fixed cells, the
estimated wavelet, and the result of `hpcfwi resolve`. Rank 0 writes them. The state of a run is in
`storage.checkpoint`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcfwi.config import Config
from hpcfwi.errors import InputError, quote
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.parameters import level_floor
from hpcfwi.inversion.shot_qc import Fit, ShotFit, View
from hpcfwi.inversion.wavelets import Wavelet, WaveletEstimate
from hpcfwi.model import Grid, Model, fixed_cells
from hpcfwi.report.panels import (
    CHANGING,
    ENERGIES,
    OF_EACH,
    PROFILES,
    EpochPicture,
    Excerpt,
    ResolutionTest,
    name_sections,
    size_sections,
)
from hpcfwi.run.directory import RunDirectory
from hpcfwi.storage import hdf5
from hpcfwi.storage.models import describe_grid
from hpcfwi.survey import COMPONENTS, PRESSURE, Components, Survey, TimeAxis
from hpcfwi.system import check_link

_UNDRAWN = "Remove the file; figures cannot be drawn from it."


def write_fit(path: Path, fit: Fit, epoch: int) -> None:
    """Write the fit after an epoch, with a group for each shot, named by its number."""
    check_link(path.parent)
    views = {view.number: view for view in fit.views}
    with hdf5.created_whole(path) as file:
        file.attrs.update(epoch=epoch, frequency=fit.frequency, normalized=fit.normalized)
        file.attrs.update(dt=fit.axis.dt, start=fit.axis.start)
        for shot in fit.shots:
            group = file.create_group(str(shot.number))
            group.attrs["misfit"] = shot.misfit
            group["offsets"], group["phases"] = shot.offsets, shot.phases
            group["observed_power"], group["residual_power"] = shot.observed, shot.residual
            if shot.number in views:
                view = views[shot.number]
                group["observed"], group["simulated"] = view.observed, view.simulated
                if view.components.kinds is not None:
                    group["kinds"] = view.components.kinds
                    file.attrs["kind_names"] = view.components.names


def read_fit(path: Path) -> tuple[Fit, int]:
    """Read a fit of `write_fit`, and its epoch; raises `InputError`."""
    with hdf5.open_alone(path) as file:
        shots, views = [], []
        for number in sorted(map(int, file)):
            shot, view = _read_shot(file, path, number)
            shots.append(shot)
            views += view
        names = ("epoch", "normalized", "frequency", "dt", "start")
        epoch, normalized, frequency, dt, start = (hdf5.plain(file.attrs[name]) for name in names)
    lengths = {view.observed.shape[-1] for view in views}
    powers = {power.shape for shot in shots for power in (shot.observed, shot.residual)}
    is_known = hdf5.is_whole(epoch) and all(map(hdf5.is_number, (frequency, dt, start)))
    fits = len(lengths) == 1 and powers == {(min(lengths) // 2 + 1,)}
    if not is_known or not fits or not 0.0 < dt < np.inf:
        raise _damaged(path)
    fit = Fit(frequency, TimeAxis(dt, start), tuple(shots), tuple(views), bool(normalized))
    return fit, int(epoch)


def _read_shot(file: h5py.File, path: Path, number: int) -> tuple[ShotFit, list[View]]:
    def read(name: str) -> NDArray[np.float64]:
        return hdf5.read_real(file, path, f"{number}/{name}")

    offsets, phases = read("offsets"), read("phases")
    observed, residual = read("observed_power"), read("residual_power")
    group = hdf5.follow(file, path, str(number))
    misfit = hdf5.plain(group.attrs["misfit"])
    views = []
    if hdf5.holds(group, "observed"):
        traces = [read("observed"), read("simulated")]
        pair = [array.astype(np.float32) for array in traces]
        components, names = PRESSURE, hdf5.read_names(file, path, "kind_names", COMPONENTS, ())
        if names is not None:
            kinds = hdf5.read_kinds(file, path, f"{number}/kinds", names, [offsets.shape])
            components = Components(names, kinds)
        views.append(View(number, offsets, pair[0], pair[1], components=components))
        if traces[0].shape != traces[1].shape or traces[0].shape[:-1] != offsets.shape:
            raise _damaged(path)
    if not hdf5.is_number(misfit) or offsets.ndim != 1 or phases.shape != offsets.shape:
        raise _damaged(path)
    return ShotFit(number, misfit, offsets, phases, observed, residual), views


def _damaged(path: Path) -> InputError:
    remedy = "Remove the file: the figures are drawn without it, and `hpcfwi run` writes it again."
    return InputError(str(path), "its arrays do not belong together", remedy)


def write_pictures(directory: RunDirectory, pictures: Sequence[EpochPicture]) -> None:
    """Write the parts of pictures that change from epoch to epoch.

    Parameters after the first one have a group of their name.
    """
    check_link(directory.epochs)
    first, *others = pictures
    path = directory.epochs / f"epoch_{first.epoch:04d}.h5"
    is_whole = not isinstance(first.inverted, Excerpt)
    with hdf5.created_whole(path) as file:
        file.attrs.update(epoch=first.epoch, whole=is_whole)
        if not is_whole:
            file.attrs["cuts"] = np.array(first.cuts, dtype=np.int64)
            file.attrs["places"] = np.array(first.places, dtype=np.int64)
        _write_picture(file, first, CHANGING)
        for picture in others:
            _write_picture(file.create_group(picture.parameter.name), picture, OF_EACH)


def _write_picture(file: h5py.Group, picture: EpochPicture, names: Sequence[str]) -> None:
    """Write some arrays of a picture, or their excerpts."""
    for name in names:
        if not isinstance(getattr(picture, name), Excerpt):
            file[name] = getattr(picture, name)
            continue
        excerpt = picture.excerpt(name)
        assert excerpt is not None
        for section, values in zip(name_sections(picture.grid), excerpt.sections, strict=True):
            file[f"{name}/{section}"] = values.astype(np.float32)
        file[f"{name}/profiles"] = excerpt.profiles
        file[f"{name}/limits"] = np.array(excerpt.limits)


def read_pictures(
    path: Path, find_blanks: Callable[[int], Sequence[EpochPicture]]
) -> list[EpochPicture]:
    """Read pictures of `write_pictures`; raises `InputError`.

    find_blanks: returns what does not change, for each parameter that an epoch changes.
    """
    # Values that overflow in single precision are drawn as infinite.
    with hdf5.open_alone(path) as file, np.errstate(over="ignore"):
        epoch = hdf5.plain(file.attrs.get("epoch"))
        if not hdf5.is_whole(epoch):
            problem = f"found {quote(epoch)}, expected a whole number"
            remedy = "Set it to the epoch in the file's name."
            raise InputError(f"{path}, attribute epoch", problem, remedy)
        blanks = find_blanks(int(epoch))
        grid = blanks[0].grid
        found: dict[str, Any] = {"epoch": int(epoch)}
        has_excerpts = not np.all(file.attrs["whole"])
        if has_excerpts:
            cut = grid.shape if grid.ndim == 3 else ()
            (found["cuts"],) = _read_indices(file, path, "cuts", cut, 1)
            found["places"] = _read_indices(file, path, "places", grid.shape[1:], PROFILES)

        def read(key: str) -> NDArray[np.float32] | Excerpt:
            if has_excerpts:
                return _read_excerpt(file, path, key, grid, len(found["places"]))
            return _read_array(file, path, key, grid.shape)

        found |= {name: read(name) for name in ENERGIES}
        pictures = []
        for number, blank in enumerate(blanks):
            group = f"{blank.parameter.name}/" * (number > 0)
            own: dict[str, Any] = {name: read(group + name) for name in OF_EACH}
            pictures.append(replace(blank, **found, **own))
        return pictures


def _read_indices(
    file: h5py.File, path: Path, name: str, shape: Sequence[int], most: int
) -> tuple[tuple[int, ...], ...]:
    """Return up to `most` rows of indices within a shape from an attribute."""
    rows = np.atleast_2d(file.attrs.get(name))
    fits = rows.dtype.kind in "iu" and rows.ndim == 2 and 1 <= len(rows) <= most
    if not fits or rows.shape[1] != len(shape) or not ((rows >= 0) & (rows < shape)).all():
        problem = f"found {quote(rows.tolist())}, expected 1 to {most} places in {tuple(shape)}"
        raise InputError(f"{path}, attribute {name}", problem, _UNDRAWN)
    return tuple(map(tuple, rows.tolist()))


def _read_excerpt(file: h5py.File, path: Path, name: str, grid: Grid, n_places: int) -> Excerpt:
    sections = zip(name_sections(grid), size_sections(grid), strict=True)
    profiles = (n_places, grid.shape[0])
    low, high = _read_array(file, path, f"{name}/limits", (2,), np.float64)
    return Excerpt(
        tuple(_read_array(file, path, f"{name}/{which}", shape) for which, shape in sections),
        _read_array(file, path, f"{name}/profiles", profiles),
        (float(low), float(high)),
    )


def _read_array(
    file: h5py.File, path: Path, key: str, shape: tuple[int, ...], dtype: type = np.float32
) -> NDArray[Any]:
    array = hdf5.read_real(file, path, key)
    if array.shape != shape:
        problem = f"its shape is {array.shape}, expected {shape}, to fit initial.h5"
        raise InputError(f"{path}, /{key}", problem, _UNDRAWN)
    return array.astype(dtype)


def write_masks(directory: RunDirectory, experiments: Sequence[Experiment]) -> None:
    """Write the fixed cells of the input and its stages, unless a depth defines them."""
    if _need_masks([experiment.config for experiment in experiments]):
        shape = len(experiments), *experiments[0].initial.grid.shape
        form: dict[str, Any] = {"chunks": (1, *shape[1:]), "compression": "gzip"}
        with hdf5.created_whole(directory.masks) as file:
            masks = file.create_dataset("fixed", shape, np.uint8, **form)
            for number, experiment in enumerate(experiments):
                masks[number] = experiment.fixed


def read_masks(
    directory: RunDirectory, configs: Sequence[Config], initial: Model
) -> Sequence[NDArray[np.bool_]]:
    """Return a mask of the fixed cells for each of the configs; raises `InputError`."""
    grid, remedy = initial.grid, "Continue the run, which writes it again."
    if not _need_masks(configs):
        return [fixed_cells(grid, level_floor(config.inversion, grid)) for config in configs]
    with hdf5.open_alone(directory.masks) as file:
        found = hdf5.find_dataset(file, directory.masks, "fixed", "u", "whole numbers", remedy)
        expected = (len(configs), *grid.shape)
        if found.shape != expected:
            raise InputError(
                f"{directory.masks}, /fixed",
                f"its shape is {found.shape}, expected {expected}: the cells of initial.h5 for the "
                "input and for each of its stages",
                remedy,
            )
        return list(found[...] != 0)


def _need_masks(configs: Sequence[Config]) -> bool:
    return any(config.inversion.fixed is not None for config in configs)


def write_wavelet(
    directory: RunDirectory, estimated: WaveletEstimate, survey: Survey, epoch: int
) -> None:
    """Write the wavelet that was estimated before an epoch, sampled as the survey of its stage."""
    with hdf5.created_whole(directory.wavelet) as file:
        file.attrs.update(epoch=epoch, dt=survey.dt, start=survey.start)
        file["wavelet"], file["given"] = estimated.wavelet, first_wavelet(survey)
        if estimated.epochs is not None:
            file["epochs"] = estimated.epochs


def read_wavelet(path: Path) -> tuple[Wavelet, TimeAxis, Wavelet]:
    """Read the wavelets of `write_wavelet`; raises `InputError`."""
    with hdf5.open_alone(path) as file:
        wavelet, given = (hdf5.read_real(file, path, key) for key in ("wavelet", "given"))
        axis = TimeAxis(float(file.attrs["dt"]), float(file.attrs["start"]))
    known = wavelet.ndim in (1, 2) and wavelet.size and given.shape == wavelet.shape[-1:]
    if not known or not 0.0 < axis.dt < np.inf or not np.isfinite(axis.start):
        problem = "its arrays and its attributes do not belong together"
        raise InputError(str(path), problem, "Remove the file; the other figures are then drawn.")
    return wavelet.astype(np.float32), axis, given.astype(np.float32)


def first_wavelet(survey: Survey) -> Wavelet:
    """Return the wavelet (time,) of the survey's first source."""
    return survey.wavelet.reshape(-1, survey.n_samples)[0]


RESOLUTION = "hpcfwi-resolution"  # name of the format, whose version is 1
RESOLVED = ("values", "perturbation", "response")


def write_resolution(path: Path, found: ResolutionTest, stage: int, frequency: float) -> None:
    """Write the result of `hpcfwi resolve`.

    stage: number of the stage; frequency: peak frequency of its data, Hz.
    """
    with hdf5.created_whole(path) as file:
        for name in RESOLVED:
            file.create_dataset(name, data=getattr(found, name), dtype=np.float32)
        if found.points is not None:
            file["points"] = found.points
        for name, values in found.measures.items():
            file.create_dataset(name, data=values, dtype=np.float32)
        file.attrs.update(describe_grid(found.grid), format=RESOLUTION, version=1)
        file.attrs.update(size=found.size, model=found.model, parameter=found.parameter)
        file.attrs.update(stage=stage, frequency=frequency)


def read_resolution(path: Path) -> ResolutionTest:
    """Read a result of `hpcfwi resolve`; raises `InputError` if it cannot be drawn."""
    with hdf5.open_alone(path) as file:
        hdf5.check_format(file, path, RESOLUTION, 1)
        names = dict.fromkeys((*RESOLVED, *file))
        arrays = {name: hdf5.read_real(file, path, name) for name in names}
        spacing, origin = (tuple(map(float, file.attrs[key])) for key in ("spacing", "origin"))
        size = float(file.attrs["size"])
        model, parameter = (str(hdf5.plain(file.attrs[key])) for key in ("model", "parameter"))
    grid = Grid(arrays["perturbation"].shape, spacing, origin)
    wanted, points = dict.fromkeys(RESOLVED, grid.shape), arrays.pop("points", None)
    if points is None:
        wanted |= {"correlation": grid.shape, "amplitude": grid.shape}
    else:
        wanted |= {"width": points.shape, "amplitude": points.shape[:-1]}
    found = {name: array.shape for name, array in arrays.items()}
    if found != wanted:
        problem = f"its arrays are {quote(found)}, expected {wanted}"
        raise InputError(str(path), problem, "Remove the file, or run `hpcfwi resolve` again.")
    values, perturbation, response = (arrays.pop(name) for name in RESOLVED)
    return ResolutionTest(
        grid, size, model, parameter, values, perturbation, response, points, arrays
    )
