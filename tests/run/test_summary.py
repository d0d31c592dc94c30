"""Tests of the report of a run, a page that needs no other file."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest

from hpcfwi.inversion import shot_qc
from hpcfwi.report.text import make_page
from hpcfwi.run.drawing import Painter
from tests.inversion.examples import write_input


class Outline(HTMLParser):
    """A parser that collects the headings, pictures and table cells of a page."""

    def __init__(self):
        super().__init__()
        self.open, self.headings, self.sources, self.cells = [], [], [], []

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.sources.append(dict(attrs)["src"])
        elif tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, "tags are nested"

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)
        if self.open and self.open[-1] == "td":
            self.cells.append(data)


def test_page_has_figures_numbers_input_and_citation(hpcfwi, tmp_path, monkeypatch, capfd):
    stages = [{"name": "<low>", "data": {"band": [0.0, 8.0]}}, {"inversion": {"epochs": 1}}]
    path = write_input(tmp_path, {"inversion.epochs": 2, "stage": stages})
    with monkeypatch.context() as patch:
        patch.setattr(Painter, "submit", lambda *_: None)
        assert hpcfwi("run", path, "--quiet") == 0
    (tmp_path / "run" / "fit.png").write_bytes(b"drawn before the run had stages")
    assert hpcfwi("show", tmp_path / "run", "--report") == 0
    assert str(tmp_path / "run" / "report.html") in capfd.readouterr().out
    text = (tmp_path / "run" / "report.html").read_text()
    outline = Outline()
    outline.feed(text)
    assert outline.open == []
    assert outline.headings == ["run", "Stages", "Data", "Figures", "Input", "Software"]
    assert outline.cells[:2] == ["<low>", "2"]
    assert outline.cells[4].endswith(" m/s")
    for stage in (1, 2):
        assert f"Data fit at the end, stage {stage}<" in text
    assert "Data fit at the end<" not in text
    assert outline.cells[5:7] == ["2", "3"]
    assert len(outline.sources) >= 7
    assert all(source.startswith("data:image/png;base64,") for source in outline.sources)
    assert "http" not in text.replace("http-equiv", ""), "the page loads nothing from elsewhere"
    assert "How to cite" in text


@pytest.mark.usefixtures("no_figures")
def test_page_shows_warnings_of_check_and_of_a_poor_fit(hpcfwi, tmp_path, monkeypatch, capfd):
    path = write_input(tmp_path, {"inversion.epochs": 1, "inversion.optimizer.lr": 1e-3})
    monkeypatch.setattr(shot_qc, "FEW_CLOSE", 1.1)
    assert hpcfwi("run", path, "--quiet") == 0
    run = tmp_path / "run"
    assert "WARNING data fit after epoch 1: " in (run / "log.txt").read_text()
    found = [{"label": "stage <low>", "lines": ["first"], "findings": ["WARNING: a & b. Do c."]}]
    kept = json.loads((run / "check.json").read_text())
    assert [*kept[0]] == [*found[0]]
    assert "in the starting model: first arrivals in" in kept[0]["lines"][0]
    (run / "check.json").write_text(json.dumps(found))
    assert hpcfwi("show", run, "--report") == 0
    page = (run / "report.html").read_text()
    for words in (
        "<h3>Observed data and data of the starting model, stage &lt;low&gt;</h3>",
        '<p class="warning">WARNING: a &amp; b. Do c.</p>',
        '<p class="warning">WARNING: data fit after epoch 1: ',
        "the residual of ",
    ):
        assert words in page
    for damage in ("[", "[1]", "[" * 100_000, '[{"label": ""}]'):
        (run / "check.json").write_text(damage)
        assert hpcfwi("show", run, "--report") == 2
        assert "check.json" in capfd.readouterr().err


@pytest.mark.usefixtures("no_figures")
def test_table_of_a_run_without_stages_has_no_stage_column(hpcfwi, tmp_path):
    path = write_input(tmp_path, {"inversion.epochs": 2})
    assert hpcfwi("run", path, "--quiet") == 0
    assert hpcfwi("show", tmp_path / "run", "--report") == 0
    outline = Outline()
    outline.feed((tmp_path / "run" / "report.html").read_text())
    assert outline.headings[:2] == ["run", "Result"]
    assert len(outline.cells) == 4
    assert outline.cells[0] == "2", "the last epoch"


def test_page_has_the_errors_of_all_parameters():
    errors = {"model_error": 0.0123, "model_error_vp": 45.6}
    entry = {"epoch": 1, "seconds": 1.0, "simulations": 2, "loss": 3.0, **errors}
    page = make_page("run", [entry], ["delta", "vp"], "", (), ())
    assert "The root mean square error of the model is delta 0.0123, vp 45.6 m/s." in page
    assert "<td>delta 0.0123, vp 45.6 m/s</td>" in page


def test_report_of_a_directory_without_a_run_is_refused(hpcfwi, tmp_path):
    assert hpcfwi("show", tmp_path, "--report") == 2
    assert not list(tmp_path.iterdir())
