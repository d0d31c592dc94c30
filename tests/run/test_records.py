"""Tests of the figures of a run and of `hpcfwi show`, which draws them again."""

from __future__ import annotations

import shutil
from dataclasses import replace
from io import BytesIO

import h5py
import numpy as np
import pytest

from hpcfwi.errors import InputError
from hpcfwi.inversion import experiment
from hpcfwi.model import PARAMETERS
from hpcfwi.report import models, panels
from hpcfwi.report.panels import CHANGING
from hpcfwi.run import drawing, records
from hpcfwi.run.directory import RunDirectory
from tests.inversion.examples import write_input
from tests.report import examples
from tests.undrawn import draw_nothing

FIGURES = [
    "epoch_0002.png",
    "epoch_0003.png",
    "fit.png",
    "loss.png",
    "observed_data.png",
    "profiles.png",
    "ricker.png",
    "traces.png",
    "wavelet.png",
]


@pytest.fixture
def run(hpcfwi, tmp_path, monkeypatch):
    """A run directory without figures, on a machine without the published models."""
    monkeypatch.delenv("HPCFWI_DATA", raising=False)
    path = write_input(tmp_path, {"inversion.epochs": 3, "output.every": 2})
    with monkeypatch.context() as patch:
        draw_nothing(patch.setattr)
        assert hpcfwi("run", path, "--quiet") == 0
    return tmp_path / "run"


def test_show_draws_every_figure_of_a_run_without_computing_anything(
    run, hpcfwi, monkeypatch, capsys
):
    def compute(*_):
        raise AssertionError("show computes")

    monkeypatch.setattr(experiment.Simulator, "simulate", compute)
    (run.parent / "true.h5").unlink()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    assert hpcfwi("show", run) == 0

    assert sorted(path.name for path in run.glob("*.png")) == FIGURES
    assert capsys.readouterr().out.split() == [str(run / name) for name in FIGURES]
    for name in FIGURES:
        assert (run / name).read_bytes().startswith(b"\x89PNG")
    assert {path: path.read_bytes() for path in before} == before


def test_quiet_show_prints_nothing(run, hpcfwi, monkeypatch, capsys):
    draw_nothing(monkeypatch.setattr)
    assert hpcfwi("show", run, "--quiet") == 0
    assert capsys.readouterr().out == ""


def test_show_refuses_a_directory_that_is_not_a_run(hpcfwi, tmp_path, capsys):
    assert hpcfwi("show", tmp_path) == 2
    assert capsys.readouterr().err == (
        f"hpcfwi: {tmp_path}: not a run directory. Name the directory of a run.\n"
    )
    assert not list(tmp_path.iterdir())


def test_show_says_that_a_run_has_not_begun_its_first_epoch(run, hpcfwi, tmp_path, capsys):
    shutil.copy(run / "config.toml", tmp_path)
    assert hpcfwi("show", tmp_path) == 2
    assert f"{tmp_path}: the run has not begun its first epoch" in capsys.readouterr().err


def test_show_with_pdf_option_also_writes_figures_as_pdf(run, hpcfwi, monkeypatch, capsys):
    monkeypatch.setattr(drawing, "draw_survey", lambda *_: None)
    monkeypatch.setattr(drawing, "draw_epoch_figures", lambda *_: None)
    assert hpcfwi("show", run, "--pdf") == 0
    names = ["fit.pdf", "fit.png", "traces.pdf", "traces.png"]
    assert capsys.readouterr().out.split() == [str(run / name) for name in names]
    assert (run / "fit.pdf").read_bytes().startswith(b"%PDF")


PICTURES = {
    "section": examples.picture((40, 68)),
    "volume": examples.volume((12, 16, 21)),
    "volume, coarsened": examples.volume((40, 30, 50)),
    "volume without true and initial model": examples.volume((12, 16, 21), true=None, start=None),
}


def keep(folder, picture):
    records.write_pictures(RunDirectory(folder), [picture.shorten()])
    return folder / "epochs" / f"epoch_{picture.epoch:04d}.h5"


def forget(picture):
    """Return the picture as `show` has it before it reads the file of an epoch."""
    nothing = np.zeros(picture.grid.shape, np.float32)
    return replace(picture, epoch=0, **dict.fromkeys(CHANGING, nothing))


def draw(picture):
    """Return the figures of a picture as PNG."""
    drawn = []
    for make in (models.epoch_figure, models.profiles_figure):
        make(picture).savefig(file := BytesIO(), format="png")
        drawn.append(file.getvalue())
    return drawn


@pytest.mark.parametrize("picture", PICTURES.values(), ids=PICTURES)
def test_epoch_file_of_a_large_model_keeps_only_the_drawn_parts(picture, tmp_path, monkeypatch):
    monkeypatch.setattr(panels, "MOST_WHOLE", 100)
    monkeypatch.setattr(panels, "MOST_CELLS", 25)
    path, largest = keep(tmp_path, picture), []
    with h5py.File(path) as file:
        assert not file.attrs["whole"]
        file.visititems(lambda _, item: largest.append(getattr(item, "size", 0)))
    assert max(largest) <= 25**2
    (again,) = records.read_pictures(path, lambda _: [forget(picture)])
    assert again.epoch == picture.epoch
    assert draw(again) == draw(picture)


@pytest.mark.parametrize("picture", PICTURES.values(), ids=PICTURES)
def test_epoch_file_of_a_small_model_keeps_whole_arrays(picture, tmp_path):
    path = keep(tmp_path, picture)
    (again,) = records.read_pictures(path, lambda _: [forget(picture)])
    for name in CHANGING:
        np.testing.assert_array_equal(getattr(again, name), getattr(picture, name))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("inverted/z", np.zeros((3, 3), np.float32)),
        ("gradient/profiles", np.zeros((5, 3), np.float32)),
        ("gradient/limits", np.zeros(3)),
        ("cuts", [1, 2]),
        ("cuts", [1, 2, 99]),
        ("cuts", [0.5, 2.0, 3.0]),
        ("epoch", "three"),
    ],
)
def test_epoch_file_that_does_not_fit_the_model_is_refused(key, value, tmp_path, monkeypatch):
    monkeypatch.setattr(panels, "MOST_WHOLE", 100)
    picture = PICTURES["volume"]
    path = keep(tmp_path, picture)
    with h5py.File(path, "a") as file:
        where = file if key in file else file.attrs
        del where[key]
        where[key] = value
    with pytest.raises(InputError, match=key):
        records.read_pictures(path, lambda _: [forget(picture)])


@pytest.mark.parametrize("most", [100, panels.MOST_WHOLE])
def test_epoch_file_has_a_group_for_each_further_parameter(most, tmp_path, monkeypatch):
    monkeypatch.setattr(panels, "MOST_WHOLE", most)
    first = examples.picture((40, 68))
    other = replace(
        first, parameter=PARAMETERS["vs"], inverted=0.5 * first.inverted, gradient=-first.gradient
    )
    pictures = [picture.shorten() for picture in (first, other)]
    records.write_pictures(RunDirectory(tmp_path), pictures)
    (path,) = (tmp_path / "epochs").glob("*.h5")
    with h5py.File(path) as file:
        assert {"inverted", "gradient"} == file["vs"].keys()
    again = records.read_pictures(path, lambda _: [forget(first), forget(other)])
    expected, found = BytesIO(), BytesIO()
    models.epoch_figure(*pictures).savefig(expected, format="png")
    models.epoch_figure(*again).savefig(found, format="png")
    assert found.getvalue() == expected.getvalue()
