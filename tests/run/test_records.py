"""What a run leaves to look at, and drawing it again."""

from __future__ import annotations

import pytest

from hpcfwi.inversion import experiment
from hpcfwi.run import fits, records
from tests.inversion.examples import write_input

FIGURES = [
    "epoch_0002.png",
    "epoch_0003.png",
    "fit.png",
    "loss.png",
    "observed_data.png",
    "profiles.png",
    "ricker.png",
    "traces.png",
]


@pytest.fixture
def run(hpcfwi, tmp_path, monkeypatch):
    """A run directory whose figures have gone, on a machine without known models."""
    monkeypatch.delenv("HPCFWI_DATA", raising=False)
    path = write_input(tmp_path, {"inversion.epochs": 3, "output.every": 2})
    with monkeypatch.context() as patch:
        patch.setattr(records, "draw_survey", lambda *_: None)
        patch.setattr(records, "draw_epoch_figures", lambda *_: None)
        patch.setattr(fits, "draw_fit", lambda *_: None)
        assert hpcfwi("run", path, "--quiet") == 0
    return tmp_path / "run"


def test_show_draws_every_figure_of_a_run_without_computing(run, hpcfwi, monkeypatch, capsys):
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


def test_show_quietly_prints_nothing(run, hpcfwi, monkeypatch, capsys):
    monkeypatch.setattr(records, "draw_survey", lambda *_: None)
    monkeypatch.setattr(records, "draw_epoch_figures", lambda *_: None)
    monkeypatch.setattr(fits, "draw_fit", lambda *_: None)
    assert hpcfwi("show", run, "--quiet") == 0
    assert capsys.readouterr().out == ""


def test_show_of_anything_else_than_a_run_is_told(hpcfwi, tmp_path, capsys):
    assert hpcfwi("show", tmp_path) == 2
    assert capsys.readouterr().err == (
        f"hpcfwi: {tmp_path}: not a run directory. Name the directory of a run.\n"
    )
    assert not list(tmp_path.iterdir())


def test_show_writes_figures_as_pdf_beside_the_others_where_asked_to(
    run, hpcfwi, monkeypatch, capsys
):
    monkeypatch.setattr(records, "draw_survey", lambda *_: None)
    monkeypatch.setattr(records, "draw_epoch_figures", lambda *_: None)
    assert hpcfwi("show", run, "--pdf") == 0
    names = ["fit.pdf", "fit.png", "traces.pdf", "traces.png"]
    assert capsys.readouterr().out.split() == [str(run / name) for name in names]
    assert (run / "fit.pdf").read_bytes().startswith(b"%PDF")
