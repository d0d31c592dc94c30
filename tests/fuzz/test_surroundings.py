"""Tests that clock, display and names of directories have no effect on a run."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from tests.fuzz.commands import call
from tests.inversion.examples import read_vp, write_input
from tests.ranks import make_env, messages, run_ranks
from tests.undrawn import draw_nothing

TINY = {
    "inversion.epochs": 2,
    "inversion.batch": 1,
    "survey.sources.count": 2,
    "survey.duration": 0.3,
    "wave.engine": "eager",
    "output.every": 2,
}
ANY_NAME = "with spaces  Übung 测试 😀 back\\slash 'quotes\" #1"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The folder of an undisturbed run."""
    folder = tmp_path_factory.mktemp("plain")
    with pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch.setattr)
        assert call("run", write_input(folder, TINY), "--quiet").code == 0
    return folder


def answer(folder):
    """Return the model and the metrics of each epoch that do not depend on the machine."""
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    epochs = [json.loads(line) for line in lines]
    measured = [(e["epoch"], e["loss"], e["model_error"], e["shots"]) for e in epochs]
    return read_vp(folder / "run").tobytes(), measured


def test_jumping_clock_has_no_effect(plain, tmp_path, monkeypatch):
    draw_nothing(monkeypatch.setattr)
    jumps = itertools.cycle([0.0, 1e9, -1e9, 4e9])
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + next(jumps))
    end = call("run", write_input(tmp_path, TINY), "--quiet")
    assert (end.code, end.errors) == (0, "")
    assert answer(tmp_path) == answer(plain)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert all(0.0 <= json.loads(line)["seconds"] < 600.0 for line in lines)


def test_directory_can_have_any_name(plain, tmp_path, monkeypatch):
    draw_nothing(monkeypatch.setattr)
    folder = tmp_path / ANY_NAME
    path = write_input(folder, TINY | {"output.directory": "elsewhere"})
    monkeypatch.chdir(folder)
    assert call("run", path, "--quiet", "--output", folder / "run").code == 0
    assert answer(folder) == answer(plain)
    assert call("run", folder / "run", "--quiet").code == 0
    assert not (folder / "elsewhere").exists()


def test_show_needs_no_display_and_escapes_letters_of_other_encodings(plain, tmp_path):
    run = tmp_path / ANY_NAME
    shutil.copytree(plain / "run", run)
    environment = make_env({"MPLBACKEND": "TkAgg", "PYTHONIOENCODING": "greek"})
    environment = {k: v for k, v in environment.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    done = subprocess.run(
        [sys.executable, "-m", "hpcfwi", "show", run],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\xdcbung \u6d4b\u8bd5 \U0001f600" in done.stdout
    assert (run / "epoch_0002.png").stat().st_size > 0


@pytest.mark.timeout(120)
def test_two_ranks_refuse_a_damaged_model_with_one_message(tmp_path):
    path = write_input(tmp_path, TINY)
    os.truncate(tmp_path / "true.h5", 3000)
    done = run_ranks(2, ["-m", "hpcfwi", "run", str(path)], timeout=90, warm=True, code=2)
    (message,) = messages(done.stderr)
    assert f"{tmp_path / 'true.h5'}: the HDF5 file is truncated" in message
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
