"""The figures of a run, drawn during the run or again by `hpcfwi show`, and its report.

The contents of figures are in `records`, their layouts in `report`. Matplotlib is imported within
functions, because it would delay the start of the other ranks.
"""

from __future__ import annotations

import json
import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from hpcfwi.config import Config, load_config
from hpcfwi.errors import InputError, refusing
from hpcfwi.inversion.preparation import replace_wavelet
from hpcfwi.inversion.resolution import reflectivity
from hpcfwi.inversion.shot_qc import Fit, View, choose_drawn, to_unit_norm
from hpcfwi.inversion.wavelets import Wavelet
from hpcfwi.model import PARAMETERS, Model, rms_difference
from hpcfwi.parallel.context import Context
from hpcfwi.report.panels import CHANGING, EpochPicture
from hpcfwi.report.text import make_page, read_metrics
from hpcfwi.run.directory import RunDirectory
from hpcfwi.run.records import (
    read_fit,
    read_masks,
    read_pictures,
    read_resolution,
    read_wavelet,
)
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.storage.models import read_images, read_model
from hpcfwi.survey import Survey, TimeAxis, spread_shots
from hpcfwi.system import check_regular, exists, written_whole
from hpcfwi.wave.equation import find_equation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger("hpcfwi")

WAITING = 4  # number of figures of one kind that may wait for the painter
SHOWN_GATHERS = 3
UNWRITABLE = "Get permission to write in the run directory, or free space on its disk."


class Painter(AbstractContextManager["Painter"]):
    """A thread that draws the figures submitted to it, in order, as PNG files in a directory.

    If figures are submitted faster than they can be drawn, a newer figure of the same name
    replaces one that waits, and if more than `WAITING` figures of the same kind wait, the oldest is
    dropped with a message in the log. Thus memory is bounded, the computation never waits, and the
    last figure of each kind is always drawn. A figure that cannot be drawn causes a warning.

    Only this thread may use matplotlib while the painter is open. Close it, or use it in a `with`
    statement.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._thread = ThreadPoolExecutor(1, "painter")
        self._waiting: dict[str, tuple[Callable[..., Figure], tuple[Any, ...]]] = {}
        self._changing = threading.Lock()

    def submit(self, figure: Callable[..., Figure], name: str, *args: Any) -> None:
        """Queue `figure(*args)` under a name; its arguments must not be changed later.

        Raises RuntimeError if the painter is closed.
        """
        with self._changing:
            self._waiting[name] = figure, args
            alike = [other for other, (kind, _) in self._waiting.items() if kind == figure]
            if len(alike) > WAITING:
                del self._waiting[alike[0]]
                log.info("%s.png is not drawn: figures are submitted too fast", alike[0])
        self._thread.submit(self._draw, name)

    def _draw(self, name: str) -> None:
        """Draw the figure that waits under a name, unless it was dropped or is drawn already."""
        from hpcfwi.report import style

        with self._changing:
            figure, args = self._waiting.pop(name, (None, ()))
        if figure is not None:
            path = self._directory.figure(name)
            try:
                style.save(figure(*args), path)
            except Exception as error:
                log.warning("%s is not drawn: %s: %s", path, type(error).__name__, error)

    def close(self) -> None:
        """Wait until all submitted figures are drawn; a second call does nothing."""
        self._thread.shutdown(wait=True)

    def __exit__(self, *_: object) -> None:
        self.close()


def draw_fit(draw: Callable[..., None], fit: Fit, epoch: int, suffix: str) -> None:
    """Draw the figures of a fit; draw: see `draw_survey`; suffix: see `RunDirectory`."""
    from hpcfwi.report.figures import fit_figure, traces_figure

    gathers = [
        (title, view.offsets, view.observed, _scale(view) if fit.normalized else view.simulated)
        for title, view in choose_drawn(fit.views)
    ]
    draw(traces_figure, f"traces{suffix}", gathers, fit.axis, epoch, fit.normalized)
    shots = [(shot.number, shot.misfit, shot.offsets, shot.phases) for shot in fit.shots]
    amplitudes = fit.frequencies, *fit.amplitudes
    draw(fit_figure, f"fit{suffix}", shots, fit.frequency, amplitudes, epoch, fit.normalized)


def _scale(view: View) -> NDArray[np.float32]:
    """Return simulated traces, each with the norm of the observed one."""
    norms = np.linalg.norm(view.observed, axis=-1, keepdims=True)
    return (norms * to_unit_norm(view.simulated.astype(np.float64))).astype(np.float32)


def draw_wavelet(
    draw: Callable[..., None], wavelet: Wavelet, axis: TimeAxis, given: Wavelet
) -> None:
    """Draw the estimated wavelet, or the wavelets of all shots; given: wavelet of the survey."""
    from hpcfwi.report.figures import wavelet_figure, wavelets_figure

    make = wavelet_figure if wavelet.ndim == 1 else wavelets_figure
    draw(make, "wavelet", wavelet, axis, given)


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
        draw_wavelet(draw, *read_wavelet(directory.wavelet))
    else:
        draw(wavelet_figure, "wavelet", shown.wavelet[0], survey.axis)
    if config.survey.wavelet is not None:  # the only kind of wavelet is Ricker's
        draw(wavelet_figure, "ricker", shown.wavelet[0], survey.axis)
    there = np.ones(shown.shape[:2], dtype=bool) if shown.mask is None else shown.mask
    names, kinds = survey.components.names, shown.components.of_traces(there.shape)
    traces = reader.read(shots)
    gathers = {
        name: [
            (traces[shot, heard], shown.receivers[shot, heard])
            for shot, heard in enumerate(there & (kinds == number))
        ]
        for number, name in enumerate(names)
    }
    titles = [f"Shot {shot}" for shot in shots]
    draw(gathers_figure, "observed_data", gathers, shown.sources, survey.axis, titles)


def draw_epoch_figures(
    draw: Callable[..., None],
    pictures: Sequence[EpochPicture],
    history: Sequence[dict[str, Any]],
    starts: Mapping[str, float] | None,
    suffix: str | None,
    comparable: bool,
) -> None:
    """Draw the panels of an epoch, the misfits up to it and, if it ends a stage, profiles.

    starts: errors of the initial model by parameter; suffix: that of the stage that the epoch ends,
    see `RunDirectory`; comparable: True if stages have the same misfit of the same data.
    """
    from hpcfwi.report.figures import loss_figure
    from hpcfwi.report.models import epoch_figure, profiles_figure

    draw(epoch_figure, f"epoch_{pictures[0].epoch:04d}", *pictures)
    draw(loss_figure, "loss", list(history), starts, comparable)
    if suffix is not None:
        draw(profiles_figure, f"profiles{suffix}", *pictures)


def are_comparable(configs: Sequence[Config]) -> bool:
    """Return True if stages of these configs have the same misfit of the same data."""
    sections = [(config.data, config.inversion) for config in configs]
    compared = [(data, own.misfit, own.encoding, own.regularize) for data, own in sections]
    return all(one == other for one, other in pairwise(compared))


def draw_images(draw: Callable[..., None], images: Model, pictures: Sequence[EpochPicture]) -> None:
    """Draw the images of a migration after the iteration of pictures, one for each parameter."""
    from hpcfwi.report.models import image_figure

    known = {p.parameter.name: p.true for p in pictures if p.true is not None}
    truths = {name: reflectivity(name, true) for name, true in known.items()}
    draw(image_figure, "image", images.arrays, truths, *pictures)


def show(path: Path, pdf: bool = False) -> list[Path]:
    """Draw all figures of a run directory again, from its files, and return their paths.

    pdf: True to write PDF files too. Raises `InputError` if it is not a run directory, or has no
    results.
    """
    from hpcfwi.report import style
    from hpcfwi.report.models import resolution_figure

    directory = RunDirectory(path)
    is_run = exists(directory.config) and exists(directory.initial)
    if not is_run and not exists(directory.resolution):
        if exists(directory.config):
            raise InputError(
                str(path),
                "the run has not begun its first epoch, so that there is nothing to draw",
                "Wait for it, or continue it with `hpcfwi run`.",
            )
        raise InputError(str(path), "not a run directory", "Name the directory of a run.")
    drawn: set[Path] = set()

    def draw(make: Callable[..., Figure], name: str, *args: Any) -> None:
        figure, file = make(*args), directory.figure(name)
        for image in (file, file.with_suffix(".pdf"))[: 1 + pdf]:
            with refusing(str(image), "cannot be written", UNWRITABLE):
                style.save(figure, image)
            drawn.add(image)

    if exists(directory.resolution):
        draw(resolution_figure, "resolution", read_resolution(directory.resolution))
    if is_run:
        _draw_run(draw, directory)
    return sorted(drawn)


def _draw_run(draw: Callable[..., None], directory: RunDirectory) -> None:
    """Draw all figures of a run; draw: see `draw_survey`."""
    given = load_config(directory.path)
    stages, inverted = given.stages(), given.changing
    names = find_equation(given.wave.equation).parameters
    initial = read_model(directory.initial, names)
    truth = read_model(directory.true, names) if exists(directory.true) else None
    if truth is not None and truth.grid.shape != initial.grid.shape:
        raise InputError(
            str(directory.true),
            f"its shape is {truth.grid.shape}, but that of initial.h5 is {initial.grid.shape}",
            "Remove it; the figures are then drawn without the true model.",
        )
    positions: dict[str, Any] = {}
    observed = Path(given.survey.file) if given.survey.file else directory.observed
    if exists(observed):
        with GatherReader(observed, Context.alone()) as reader:
            survey = replace_wavelet(reader.survey, given.survey)
            if survey.sources.shape[1] != initial.grid.ndim:
                raise InputError(
                    str(observed),
                    f"its positions have {survey.sources.shape[1]} coordinates, but the model has "
                    f"{initial.grid.ndim} axes",
                    "Remove it; the other figures are then drawn.",
                )
            draw_survey(draw, directory, survey, reader, given)
        positions = {"sources": survey.sources, "receivers": survey.receiver_positions()}

    ends = [*accumulate(config.inversion.epochs for _, config in stages)]

    def make_blanks(epoch: int) -> list[EpochPicture]:
        """Return pictures without what changes, for each parameter that an epoch changes.

        The pictures of the last stage also belong to later epochs.
        """
        return [
            EpochPicture(
                epoch,
                initial.grid,
                PARAMETERS[name],
                None if truth is None else truth[name],
                start=initial[name],
                **positions,
                **cast(Any, dict.fromkeys(CHANGING, initial[name])),
            )
            for name in stages[min(bisect_left(ends, epoch), len(ends) - 1)][1].inversion.changing
        ]

    if given.inversion.linear and exists(directory.image):
        images, epoch = read_images(directory.image, given.inversion.parameters)
        if not images.grid.agrees(initial.grid):
            raise InputError(
                str(directory.image),
                f"its grid is {images.grid}, expected that of initial.h5, {initial.grid}",
                "Remove the file; the figure cannot be drawn from it.",
            )
        drawn_of = directory.epochs / f"epoch_{epoch:04d}.h5"
        seen = read_pictures(drawn_of, make_blanks) if exists(drawn_of) else make_blanks(epoch)
        draw_images(draw, images, seen)
    with refusing(str(directory.metrics), "cannot be read", "Get permission to read it."):
        history = read_metrics(directory.metrics)
    whole, *masks = read_masks(directory, [given, *(config for _, config in stages)], initial)
    errors: dict[str, float] = {}
    if truth is not None:
        errors = {name: rms_difference(initial[name], truth[name], ~whole) for name in inverted}
    comparable = are_comparable([config for _, config in stages])
    suffixes = [directory.suffix(number, len(stages)) for number in range(len(stages))]
    for number, suffix in enumerate(suffixes):
        if exists(directory.fit(number)):
            draw_fit(draw, *read_fit(directory.fit(number)), suffix)
    for file in sorted(directory.epochs.glob("epoch_*.h5")):
        pictures = read_pictures(file, make_blanks)
        end = None
        if pictures[0].epoch in ends:
            stage = ends.index(pictures[0].epoch)
            end = suffixes[stage]
            pictures = [replace(picture, kept=masks[stage]) for picture in pictures]
        draw_epoch_figures(draw, pictures, history, errors, end, comparable)


# Titles of figures, in the order of the page, by the beginning of the file name; of several epochs
# only the last one is shown.
TITLES = {
    "image": "Image of the migration",
    "epoch_": "Last epoch with a figure",
    "loss": "Misfit and model error",
    "profiles": "Profiles through the models at the end of the last stage",
    "traces": "Observed and simulated traces at the end of the last stage",
    "fit": "Data fit at the end",
    "resolution": "Resolution",
    "check": "Observed data and data of the starting model",
    "wavelet": "Wavelet of the survey and the last estimated wavelet, if any",
    "observed_data": "Observed data",
}
# Figures that are shown for every stage, not only for the last stage that has them.
OF_EACH = ("fit", "check")


def write_report(path: Path, pdf: bool = False) -> list[Path]:
    """Draw the figures of a run again, write report.html to its directory, and return its path.

    pdf: as in `show`.

    Raises `InputError` as `show` does, without a run, and if the page cannot be written.
    """
    drawn, directory = show(path, pdf), RunDirectory(path)
    if not exists(directory.config):
        raise InputError(
            str(path),
            "it has no config.toml, and a report is about a run",
            "Name the directory of a run, or leave out --report.",
        )
    figures = []
    for beginning, title in TITLES.items():
        # Longer names come later, because numbers of stages in them have no leading zeros
        there = sorted(path.glob(f"{beginning}*.png"), key=lambda file: (len(file.name), file.name))
        # Others of its kind were drawn before the run had these stages
        there = [file for file in there if file in drawn] or there
        for file in there if beginning in OF_EACH else there[-1:]:
            stage = file.stem.removeprefix(beginning).strip("_")
            full_title = f"{title}, stage {stage}" if stage and beginning in OF_EACH else title
            figures.append((full_title, file.read_bytes()))
    history = read_metrics(directory.metrics)
    config = directory.config.read_text(encoding="utf-8")
    names, findings = load_config(path).changing, _read_findings(directory)
    page = make_page(path.resolve().name, history, names, config, figures, findings)
    report = path / "report.html"
    with refusing(str(report), "cannot be written", UNWRITABLE), written_whole(report) as whole:
        whole.write(page.encode())
    return [report]


def _read_findings(directory: RunDirectory) -> list[tuple[str, list[str], list[str]]]:
    """Return the results of `check` and of the fits after stages: titles, lines and warnings."""
    findings = _read_checked(directory.checked) if exists(directory.checked) else []
    stages = load_config(directory.path).stages()
    for number, (name, _) in enumerate(stages):
        if exists(directory.fit(number)):
            fit, epoch = read_fit(directory.fit(number))
            title = "Data fit" + (f" of stage {name}" if len(stages) > 1 else "")
            findings.append((title, [fit.describe()], [*map(str, fit.judge(epoch))]))
    return findings


def _read_checked(path: Path) -> list[tuple[str, list[str], list[str]]]:
    """Return the results of `check` for the data of each group of stages."""
    title = "Observed data and data of the starting model"
    try:
        check_regular(path)
        return [
            (
                f"{title}, {part['label']}" if part["label"] else title,
                [*map(str, part["lines"])],
                [*map(str, part["findings"])],
            )
            for part in json.loads(path.read_bytes())
        ]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            str(path),
            f"the findings about the data cannot be read ({error})",
            "Remove the file: the page is then made without them. `hpcfwi check` writes it again.",
        ) from error
