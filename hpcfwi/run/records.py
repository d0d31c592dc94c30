"""The records of a run: models, metrics, the fit after a stage, and figures; rank 0 only.

The contents of figures are stored in files, so that `show` can draw them again without simulations.
The state of a run is in `storage.checkpoint`. Matplotlib is imported within functions, because it
would delay the start of the other ranks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcfwi.config import Config, load_config
from hpcfwi.errors import Finding, InputError, WriteFailure, quote, refusing
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.objective import Evaluation
from hpcfwi.inversion.parameters import level_floor
from hpcfwi.inversion.preparation import emit
from hpcfwi.inversion.resolution import reflectivity
from hpcfwi.inversion.shot_qc import Fit, ShotFit, View, choose_drawn, judge_fit, to_unit_norm
from hpcfwi.inversion.state import State
from hpcfwi.inversion.wavelets import Wavelet, WaveletEstimate
from hpcfwi.model import PARAMETERS, Grid, Model, fixed_cells, rms_difference
from hpcfwi.parallel.context import Context
from hpcfwi.report.page import read_metrics
from hpcfwi.report.panels import (
    CHANGING,
    ENERGIES,
    OF_EACH,
    PROFILES,
    EpochPicture,
    Excerpt,
    name_sections,
    size_sections,
)
from hpcfwi.run.directory import RunDirectory
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.storage.hdf5 import (
    check_format,
    created_whole,
    find_dataset,
    follow,
    holds,
    is_number,
    is_whole,
    open_alone,
    plain,
    plain_numbers,
    read_real,
)
from hpcfwi.storage.kinds import read_kinds, read_names
from hpcfwi.storage.models import read_image, read_model
from hpcfwi.survey import COMPONENTS, PRESSURE, Components, Survey, TimeAxis, spread_shots
from hpcfwi.system import check_link, check_regular, exists
from hpcfwi.wave.equation import find_equation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hpcfwi.report.resolution import ResolutionTest


def draw_fit(
    draw: Callable[..., None], directory: RunDirectory, fit: Fit, epoch: int, label: int
) -> None:
    """Draw the figures of a fit; draw, label: see `draw_epoch_figures`."""
    from hpcfwi.report.figures import fit_figure, traces_figure

    gathers = [
        (
            title,
            view.offsets,
            view.observed,
            _scale(view) if fit.normalized else view.simulated,
        )
        for title, view in choose_drawn(fit.views)
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
    """Return a warning if the fit after an epoch is poor."""
    found = judge_fit(fit)
    if found is None:
        return []
    remedy = (
        "Look at the figures fit and traces. Start with lower frequencies, shorter offsets or a "
        "better starting model, or use another misfit."
    )
    return [Finding("warning", f"data fit after epoch {epoch}", found, remedy)]


def keep_fit(path: Path, fit: Fit, epoch: int) -> None:
    """Write the fit after an epoch, with a group for each shot, named by its number."""
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
                if view.components.kinds is not None:
                    group["kinds"] = view.components.kinds
                    file.attrs["kind_names"] = view.components.names


def read_fit(path: Path) -> tuple[Fit, int]:
    """Read a fit of `keep_fit`, and its epoch; raises `InputError`."""
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
        components, names = PRESSURE, read_names(file, path, "kind_names", COMPONENTS, ())
        if names is not None:
            kinds = read_kinds(file, path, f"{number}/kinds", names, [offsets.shape])
            components = Components(names, kinds)
        views.append(View(number, offsets, pair[0], pair[1], components=components))
        if traces[0].shape != traces[1].shape or traces[0].shape[:-1] != offsets.shape:
            raise _damaged(path)
    if not is_number(misfit) or offsets.ndim != 1 or phases.shape != offsets.shape:
        raise _damaged(path)
    return ShotFit(number, misfit, offsets, phases, observed, residual), views


def _damaged(path: Path) -> InputError:
    return InputError(
        str(path),
        "its arrays do not belong together",
        "Remove the file: the figures are drawn without it, and `hpcfwi run` writes it again.",
    )


SHOWN_GATHERS = 3
_UNDRAWN = "Remove the file; figures cannot be drawn from it."


def make_pictures(
    experiment: Experiment,
    state: State,
    evaluation: Evaluation,
    cuts: tuple[int, ...] | None = None,
) -> list[EpochPicture]:
    """Return the contents of an epoch's figure, for each parameter that is inverted.

    cuts: the indices of a volume's slices, if earlier pictures have found them.
    """
    true, survey = experiment.true, experiment.survey
    energies = {name: f.cpu().numpy() for name, f in evaluation.illuminations.items()}
    pictures: list[EpochPicture] = []
    for name in experiment.config.inversion.changing:
        picture = EpochPicture(
            epoch=state.epoch,
            grid=experiment.initial.grid,
            parameter=PARAMETERS[name],
            true=None if true is None else true[name],
            inverted=state.model[name].cpu().numpy(),
            gradient=np.where(experiment.fixed, 0.0, evaluation.gradient[name].cpu().numpy()),
            **cast(Any, energies),
            start=experiment.initial[name],
            sources=survey.sources,
            receivers=survey.receiver_positions(),
            kept=experiment.fixed,
            cuts=pictures[0].cuts if pictures else cuts,
        )
        pictures.append(picture.shorten())
    return pictures


def keep_pictures(directory: RunDirectory, pictures: Sequence[EpochPicture]) -> None:
    """Write the parts of pictures that change from epoch to epoch.

    Parameters after the first one have a group of their name.
    """
    check_link(directory.epochs)
    first, *others = pictures
    path = directory.epochs / f"epoch_{first.epoch:04d}.h5"
    is_whole = not isinstance(first.inverted, Excerpt)
    with created_whole(path) as file:
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


def keep_masks(directory: RunDirectory, experiments: Sequence[Experiment]) -> None:
    """Write the fixed cells of the input and its stages, unless a depth defines them."""
    if _need_masks([experiment.config for experiment in experiments]):
        shape = len(experiments), *experiments[0].initial.grid.shape
        form: dict[str, Any] = {"chunks": (1, *shape[1:]), "compression": "gzip"}
        with created_whole(directory.masks) as file:
            masks = file.create_dataset("fixed", shape, np.uint8, **form)
            for number, experiment in enumerate(experiments):
                masks[number] = experiment.fixed


def _need_masks(configs: Sequence[Config]) -> bool:
    return any(config.inversion.fixed is not None for config in configs)


def keep_wavelet(
    directory: RunDirectory, estimated: WaveletEstimate, survey: Survey, epoch: int
) -> None:
    """Write the wavelet that was estimated before an epoch, sampled as the survey of its stage."""
    with created_whole(directory.wavelet) as file:
        file.attrs.update(epoch=epoch, dt=survey.dt, start=survey.start)
        file["wavelet"], file["given"] = estimated.wavelet, first_wavelet(survey)
        if estimated.epochs is not None:
            file["epochs"] = estimated.epochs


def draw_wavelet(
    draw: Callable[..., None],
    directory: RunDirectory,
    wavelet: Wavelet,
    axis: TimeAxis,
    given: Wavelet,
) -> None:
    """Draw the estimated wavelet, or the wavelets of all shots; given: wavelet of the survey."""
    from hpcfwi.report.figures import wavelet_figure, wavelets_figure

    make = wavelet_figure if wavelet.ndim == 1 else wavelets_figure
    draw(make, directory.figure("wavelet"), wavelet, axis, given)


def read_wavelet(path: Path) -> tuple[Wavelet, TimeAxis, Wavelet]:
    """Read the wavelets of `keep_wavelet`; raises `InputError`."""
    with open_alone(path) as file:
        wavelet, given = (read_real(file, path, key) for key in ("wavelet", "given"))
        axis = TimeAxis(float(file.attrs["dt"]), float(file.attrs["start"]))
    known = wavelet.ndim in (1, 2) and wavelet.size and given.shape == wavelet.shape[-1:]
    if not known or not 0.0 < axis.dt < np.inf or not np.isfinite(axis.start):
        raise InputError(
            str(path),
            "its arrays and its attributes do not belong together",
            "Remove the file: the other figures are drawn without it.",
        )
    return wavelet.astype(np.float32), axis, given.astype(np.float32)


def first_wavelet(survey: Survey) -> Wavelet:
    """Return the wavelet (time,) of the survey's first source."""
    return survey.wavelet.reshape(-1, survey.n_samples)[0]


def draw_survey(
    draw: Callable[..., None],
    directory: RunDirectory,
    survey: Survey,
    reader: GatherReader,
    config: Config,
) -> None:
    """Draw the figures of the wavelet and of a few gathers.

    draw: a function that draws a figure at once or later, with the arguments of `Painter.submit`.
    An estimated wavelet is drawn together with that of the survey.
    """
    from hpcfwi.report.figures import gathers_figure, wavelet_figure

    count = min(SHOWN_GATHERS, survey.n_shots)
    shots = spread_shots(survey.n_shots, count)
    shown = survey.select(shots)
    if exists(directory.wavelet):
        draw_wavelet(draw, directory, *read_wavelet(directory.wavelet))
    else:
        draw(wavelet_figure, directory.figure("wavelet"), shown.wavelet[0], survey.axis)
    if config.survey.wavelet is not None:  # the only kind of wavelet is Ricker's
        draw(wavelet_figure, directory.figure("ricker"), shown.wavelet[0], survey.axis)
    there = np.ones(shown.shape[:2], dtype=bool) if shown.mask is None else shown.mask
    names, kinds = survey.components.names, shown.components.of_traces(there.shape)
    traces = reader.read(shots)
    heard = [
        (shot, there[shot] & (kinds[shot] == number))
        for number in range(len(names))
        for shot in range(count)
    ]
    draw(
        gathers_figure,
        directory.figure("observed_data"),
        [traces[shot, some] for shot, some in heard],
        [shown.receivers[shot, some] for shot, some in heard],
        shown.sources,
        survey.axis,
        [f"Shot {shot}" for shot in shots],
        names,
    )


def draw_epoch_figures(
    draw: Callable[..., None],
    directory: RunDirectory,
    pictures: Sequence[EpochPicture],
    history: Sequence[dict[str, Any]],
    starts: Mapping[str, float] | None = None,
    label: int | None = None,
    comparable: bool = True,
) -> None:
    """Draw the panels of an epoch, the misfits up to it and, if it ends a stage, profiles.

    starts: errors of the initial model by parameter; label: label of the stage that the epoch ends,
    see `RunDirectory.label`; comparable: True if stages have the same misfit of the same data.
    """
    from hpcfwi.report.figures import loss_figure
    from hpcfwi.report.models import epoch_figure, profiles_figure

    draw(epoch_figure, directory.figure(f"epoch_{pictures[0].epoch:04d}"), *pictures)
    draw(loss_figure, directory.figure("loss"), list(history), starts, comparable)
    if label is not None:
        draw(profiles_figure, directory.figure("profiles", label), *pictures)


def are_comparable(configs: Sequence[Config]) -> bool:
    """Return True if stages of these configs have the same misfit of the same data."""
    sections = [(config.data, config.inversion) for config in configs]
    compared = [(data, own.misfit, own.encoding, own.regularize) for data, own in sections]
    return all(one == other for one, other in pairwise(compared))


def draw_image(
    draw: Callable[..., None],
    directory: RunDirectory,
    image: NDArray[np.floating],
    background: Model,
    true: Model | None,
    picture: EpochPicture,
) -> None:
    """Draw a migration's image after the iteration of a picture."""
    from hpcfwi.report.models import image_figure

    truth = None if true is None else reflectivity(true.p_velocity)
    speed = background.p_velocity
    draw(image_figure, directory.figure("image"), image, speed, truth, picture)


RESOLUTION = "hpcfwi-resolution"  # name of the format, whose version is 1
RESOLVED = ("speed", "perturbation", "response")


def keep_resolution(path: Path, found: ResolutionTest, stage: int, frequency: float) -> None:
    """Write the result of `hpcfwi resolve`.

    stage: number of the stage; frequency: peak frequency of its data, Hz.
    """
    grid = found.grid
    with created_whole(path) as file:
        for name in RESOLVED:
            file.create_dataset(name, data=getattr(found, name), dtype=np.float32)
        if found.points is not None:
            file["points"] = found.points
        for name, values in found.measures.items():
            file.create_dataset(name, data=values, dtype=np.float32)
        file.attrs.update(
            {
                "format": RESOLUTION,
                "version": 1,
                "axes": grid.axes,
                "spacing": grid.spacing,
                "origin": grid.origin,
                "size": found.size,
                "model": found.model,
                "stage": stage,
                "frequency": frequency,
            }
        )


def read_resolution(path: Path) -> ResolutionTest:
    """Read a result of `hpcfwi resolve`; raises `InputError` if it cannot be drawn."""
    from hpcfwi.report.resolution import ResolutionTest

    with open_alone(path) as file:
        check_format(file, path, RESOLUTION, 1)
        names = [name for name in file if name not in (*RESOLVED, "points")]
        arrays = {name: read_real(file, path, name) for name in file}
        spacing, origin = (tuple(map(float, file.attrs[key])) for key in ("spacing", "origin"))
        size, model = float(file.attrs["size"]), str(plain(file.attrs["model"]))
    grid = Grid(arrays["perturbation"].shape, spacing, origin)
    points = arrays.get("points")
    shape = grid.shape if points is None else points.shape[:-1]
    wanted = {"correlation": shape, "amplitude": shape}
    if points is not None:
        wanted = {"width": points.shape, "amplitude": shape}
    found = {name: arrays[name].shape for name in (*RESOLVED, *names)}
    wanted |= dict.fromkeys(RESOLVED, grid.shape)
    if found != wanted:
        raise InputError(
            str(path),
            f"its arrays are {quote(found)}, expected {wanted}",
            "Remove the file, or run `hpcfwi resolve` again; no figure can be drawn from it.",
        )
    measures = {name: arrays[name] for name in names}
    speed, perturbation, response = (arrays[name] for name in RESOLVED)
    return ResolutionTest(grid, size, model, speed, perturbation, response, points, measures)


def show(path: Path, pdf: bool = False) -> list[Path]:
    """Draw all figures of a run directory again, from its files, and return their paths.

    pdf: True to write PDF files too. Raises `InputError` if it is not a run directory, or has no
    results.
    """
    from hpcfwi.report import style
    from hpcfwi.report.resolution import resolution_figure

    directory = RunDirectory(path)
    is_run = exists(directory.config) and exists(directory.initial)
    if not is_run and not exists(directory.resolution):
        raise InputError(str(path), "not a run directory", "Name the directory of a run.")
    drawn: list[Path] = []

    def draw(make: Callable[..., Figure], file: Path, *args: Any) -> None:
        figure = make(*args)
        for image in (file, file.with_suffix(".pdf"))[: 1 + pdf]:
            try:
                style.save(figure, image)
            except WriteFailure as failure:
                remedy = "Get permission to write in the run directory, or free space there."
                problem = f"the figure cannot be written ({failure.reason})"
                raise InputError(str(image), problem, remedy) from failure
            drawn.append(image)

    if exists(directory.resolution):
        found = read_resolution(directory.resolution)
        draw(resolution_figure, directory.figure("resolution"), found)
    if not is_run:
        return drawn
    given = load_config(directory.path)
    names, inverted = find_equation(given.wave.equation).parameters, given.changing
    name = inverted[0]
    initial = read_model(directory.initial, names)
    truth = read_model(directory.true, names) if exists(directory.true) else None
    true = None if truth is None else truth[name]
    if true is not None and true.shape != initial.grid.shape:
        raise InputError(
            str(directory.true),
            f"its shape is {true.shape}, but that of initial.h5 is {initial.grid.shape}",
            "Remove it; the figures are then drawn without the true model.",
        )
    observed = Path(given.survey.file) if given.survey.file else directory.observed
    blanks = {
        each: EpochPicture(
            0,
            initial.grid,
            PARAMETERS[each],
            None if truth is None else truth[each],
            start=initial[each],
            **cast(Any, dict.fromkeys(CHANGING, initial[each])),
        )
        for each in inverted
    }
    if exists(observed):
        with GatherReader(observed, Context.alone()) as reader:
            survey = emit(reader.survey, given.survey)
            if survey.sources.shape[1] != initial.grid.ndim:
                raise InputError(
                    str(observed),
                    f"its positions have {survey.sources.shape[1]} coordinates, but the model has "
                    f"{initial.grid.ndim} axes",
                    "Remove it; the other figures are then drawn.",
                )
            draw_survey(draw, directory, survey, reader, given)
        sources, receivers = survey.sources, survey.receiver_positions()
        blanks = {
            each: replace(blank, sources=sources, receivers=receivers)
            for each, blank in blanks.items()
        }
    stages, last = given.stages(), 0

    def find_blanks(epoch: int) -> list[EpochPicture]:
        return [blanks[each] for each in _find_changing(stages, epoch)]

    if given.inversion.linear and exists(directory.image):
        image, epoch = read_image(directory.image)
        if not image.grid.agrees(initial.grid):
            raise InputError(
                f"{directory.image}, /image",
                f"its grid is {image.grid}, expected that of initial.h5, {initial.grid}",
                "Remove the file; the figure cannot be drawn from it.",
            )
        drawn_of = directory.epochs / f"epoch_{epoch:04d}.h5"
        seen = replace(blanks[name], epoch=epoch)
        if exists(drawn_of):
            seen, *_ = _read_pictures(drawn_of, find_blanks)
        draw_image(draw, directory, image["image"], initial, truth, seen)
    history = _read_history(directory.metrics)
    whole, *masks = _read_masks(directory, [given, *(config for _, config in stages)], initial)
    free = ~whole
    errors: dict[str, float] = {}
    if truth is not None:
        errors = {each: rms_difference(initial[each], truth[each], free) for each in inverted}
    comparable = are_comparable([config for _, config in stages])
    ends: dict[int, tuple[int | None, NDArray[np.bool_] | None]] = {}
    for number, (_, config) in enumerate(stages):
        last, suffix = last + config.inversion.epochs, directory.label(number, len(stages))
        ends[last] = suffix, masks[number]
        if exists(directory.ending(number)):
            draw_fit(draw, directory, *read_fit(directory.ending(number)), suffix)
    for file in sorted(directory.epochs.glob("epoch_*.h5")):
        pictures = _read_pictures(file, find_blanks)
        label, kept = ends.get(pictures[0].epoch, (None, None))
        pictures = [replace(picture, kept=kept) for picture in pictures]
        draw_epoch_figures(draw, directory, pictures, history, errors, label, comparable)
    return sorted(set(drawn))


def _read_masks(
    directory: RunDirectory, configs: Sequence[Config], initial: Model
) -> Sequence[NDArray[np.bool_]]:
    """Return a mask of the fixed cells for each of the configs."""
    grid, remedy = initial.grid, "Continue the run, which writes it again."
    if not _need_masks(configs):
        return [fixed_cells(grid, level_floor(config.inversion, grid)) for config in configs]
    with open_alone(directory.masks) as file:
        found = find_dataset(file, directory.masks, "fixed", "u", "whole numbers", remedy)
        expected = (len(configs), *grid.shape)
        if found.shape != expected:
            raise InputError(
                f"{directory.masks}, /fixed",
                f"its shape is {found.shape}, expected {expected}: the cells of initial.h5 for the "
                "input and for each of its stages",
                remedy,
            )
        return list(found[...] != 0)


def _read_history(path: Path) -> list[dict[str, Any]]:
    remedy = "Get permission to read it, or remove it."
    with refusing(str(path), "cannot be read", remedy):
        if exists(path):
            check_regular(path)
        return read_metrics(path)


def _read_pictures(
    path: Path, find_blanks: Callable[[int], Sequence[EpochPicture]]
) -> list[EpochPicture]:
    """Read pictures of `keep_pictures`.

    find_blanks: returns what does not change, for each parameter that an epoch changes.
    """
    # Values that overflow in single precision are drawn as infinite.
    with open_alone(path) as file, np.errstate(over="ignore"):
        remedy = "Set it to the epoch in the file's name."
        found: dict[str, Any] = {"epoch": _read_whole_numbers(file, path, "epoch", 1, remedy)[0]}
        blanks = find_blanks(found["epoch"])
        grid = blanks[0].grid
        is_whole = bool(np.all(file.attrs.get("whole", True)))
        if not is_whole:
            count = grid.ndim if grid.ndim == 3 else 0
            found["cuts"] = _read_whole_numbers(file, path, "cuts", count, _UNDRAWN)
            found["places"] = _read_places(file, path, grid)

        def read(key: str) -> NDArray[np.float32] | Excerpt:
            if is_whole:
                return _read_array(file, path, key, grid.shape)
            return _read_excerpt(file, path, key, grid, len(found["places"]))

        found |= {name: read(name) for name in ENERGIES}
        pictures = []
        for number, blank in enumerate(blanks):
            group = f"{blank.parameter.name}/" * (number > 0)
            own: dict[str, Any] = {name: read(group + name) for name in OF_EACH}
            pictures.append(replace(blank, **found, **own))
        cuts = found.get("cuts", ())
        if any(not 0 <= cut < n for cut, n in zip(cuts, grid.shape, strict=False)):
            raise InputError(
                f"{path}, attribute cuts",
                f"found {cuts}, which does not fit the shape of initial.h5, {grid.shape}",
                _UNDRAWN,
            )
        return pictures


def _find_changing(stages: Sequence[tuple[str, Config]], epoch: int) -> tuple[str, ...]:
    """Return the parameters that an epoch changes; those of the last stage for later epochs."""
    ends = accumulate(config.inversion.epochs for _, config in stages)
    stage = bisect_left([*ends], epoch)
    return stages[min(stage, len(stages) - 1)][1].inversion.changing


def _read_whole_numbers(
    file: h5py.File, path: Path, name: str, count: int, remedy: str
) -> tuple[int, ...]:
    value = file.attrs.get(name)
    found = plain_numbers(value)
    if len(found) != count or not all(map(is_whole, found)):
        expected = "a whole number" if count == 1 else f"{count} whole numbers"
        raise InputError(
            f"{path}, attribute {name}",
            f"found {quote(plain(value))}, expected {expected}",
            remedy,
        )
    return tuple(map(int, found))


def _read_places(file: h5py.File, path: Path, grid: Grid) -> tuple[tuple[int, ...], ...]:
    found = np.asarray(file.attrs.get("places"))
    fits = found.dtype.kind in "iu" and found.ndim == 2 and 1 <= len(found) <= PROFILES
    if not fits or found.shape[1] != grid.ndim - 1 or (found < 0).any():
        fits = False
    if not fits or (found >= grid.shape[1:]).any():
        raise InputError(
            f"{path}, attribute places",
            f"found {quote(found.tolist())}, expected the indices of 1 to {PROFILES} columns of "
            "initial.h5",
            _UNDRAWN,
        )
    return tuple(map(tuple, found.tolist()))


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
    array = read_real(file, path, key)
    if array.shape != shape:
        raise InputError(
            f"{path}, /{key}",
            f"its shape is {array.shape}, expected {shape}, to fit initial.h5",
            _UNDRAWN,
        )
    return array.astype(dtype)
