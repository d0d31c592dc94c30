"""Tests of commands on one rank: exit codes, messages, and no files after a bad input."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext

import pytest

from hpcfwi.operators import simulator
from hpcfwi.run import job
from tests.inversion.bad_inputs import BAD_INPUTS, FILE_INSTEAD, BadInput, write_given
from tests.inversion.examples import read_history, read_vp, write_input


def contents(folder):
    """Return every path below a folder and the contents of its files."""
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def only_message(errors):
    """Return the only message of a command, without the name of the program."""
    assert "Traceback" not in errors
    assert errors.startswith("hpcfwi: ")
    assert errors.count("hpcfwi: ") == 1
    assert errors.count("\n") == 1
    assert errors.endswith(".\n")
    return errors.removeprefix("hpcfwi: ").strip()


@pytest.mark.parametrize("command", ["run", "forward"])
@pytest.mark.parametrize("bad", BAD_INPUTS, ids=lambda bad: bad.name)
def test_bad_input_ends_with_exit_code_2_one_message_and_no_file(
    bad: BadInput, command, hpcfwi, tmp_path, capsys
):
    path = bad.write(tmp_path)
    before = contents(tmp_path)
    settings = [word for setting in bad.settings for word in ("--set", setting)]

    assert hpcfwi(command, path, *settings) == 2

    message = only_message(capsys.readouterr().err)
    for word in bad.words:
        assert word in message
    assert contents(tmp_path) == before


@pytest.mark.parametrize("command", ["run", "forward", "forward --to", "migrate"])
def test_too_little_memory_ends_with_exit_code_2_before_writing_a_file(
    command, hpcfwi, tmp_path, capsys, monkeypatch
):
    path = write_input(tmp_path, {"migration": {"iterations": 1}})
    before = contents(tmp_path)
    monkeypatch.setattr(simulator, "memory_at_hand", lambda _: 30 * 10**6)
    name, *more = command.split()
    assert hpcfwi(name, path, *more, *[tmp_path / "new.h5"] * len(more)) == 2
    assert "the simulation of one shot takes" in only_message(capsys.readouterr().err)
    assert contents(tmp_path) == before


@pytest.mark.usefixtures("no_figures")
def test_signal_during_the_last_simulation_stops_the_first_look_at_the_data(
    hpcfwi, tmp_path, monkeypatch
):
    """A signal that has come before a watch begins is reported with the work at this time."""
    stopped = {}

    def watch(context, _, continues):
        stopped[continues] = context.heartbeat.work
        return nullcontext()

    monkeypatch.setattr(job, "watch_preparation", watch)
    assert hpcfwi("run", write_input(tmp_path, {"inversion.epochs": 1}), "--quiet") == 0
    assert stopped == {
        "the last checkpoint": "the preparation",
        "the beginning": "a first look at the data",
    }


def test_forward_refuses_an_input_that_names_observed_data(hpcfwi, tmp_path, capsys):
    write_given(tmp_path)
    path = write_input(tmp_path, FILE_INSTEAD)
    assert hpcfwi("forward", path) == 2
    message = only_message(capsys.readouterr().err)
    assert "survey.file" in message
    assert "observed data already" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("command", [("run",), ("forward",), ("forward", "--to")])
def test_grid_too_coarse_for_the_wavelet_causes_one_warning(command, hpcfwi, tmp_path, capfd):
    path = write_input(tmp_path, {"survey.wavelet.frequency": 30.0, "inversion.epochs": 1})
    name, *target = command
    assert hpcfwi(name, path, *target, *(tmp_path / "data.h5" for _ in target)) == 0
    assert capfd.readouterr().out.count("model.spacing: a spacing of 20 m is fine enough for") == 1


@pytest.mark.parametrize(("engine", "times"), [("cpu", 1), ("eager", 0)])
def test_only_an_engine_that_is_compiled_takes_time_to_prepare(
    engine, times, hpcfwi, tmp_path, capfd
):
    changes = {"wave.engine": engine, "survey.sources.count": 1, "inversion.batch": 1}
    assert hpcfwi("forward", write_input(tmp_path, changes)) == 0
    assert capfd.readouterr().out.count("Preparing the wave engine") == times


def test_directories_can_have_spaces_and_non_ascii_letters(hpcfwi, tmp_path):
    folder = tmp_path / "meine Läufe" / "波动 №1"
    small = {"wave.engine": "eager", "survey.sources.count": 2, "inversion.batch": 1}
    path = write_input(folder, {**small, "inversion.epochs": 1})
    assert hpcfwi("run", path) == 0
    assert hpcfwi("run", folder / "run", "--set", "inversion.epochs=2") == 0
    assert len(read_history(folder / "run")) == 2
    assert read_vp(folder / "run").shape == (30, 60)


def test_import_of_job_does_not_load_matplotlib_or_compilers() -> None:
    slow = "matplotlib torch._dynamo sympy"
    program = f"import sys, hpcfwi.run.job; print(*set('{slow}'.split()) & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "\n", done.stderr
