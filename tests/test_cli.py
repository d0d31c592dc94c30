"""The command line beside its commands."""

from __future__ import annotations

import pytest

from hpcfwi import __version__
from tests.inversion.examples import write_input

COMMANDS = ("dataset", "forward", "check", "run", "status", "plan", "show", "bench", "convert")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_colon_in_a_help_is_one(command, hpcfwi, capsys):
    """And not half of a picture's name."""
    assert hpcfwi(command, "--help") == 0
    pictures = [c for c in capsys.readouterr().out if ord(c) > 0xFFFF]
    assert not pictures


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_alone_it_shows_its_help(words, hpcfwi, capsys):
    assert hpcfwi(*words) == 0
    told = capsys.readouterr()
    assert all(f" {command} " in told.out for command in COMMANDS)
    assert told.err == ""


def test_it_says_which_version_it_is(hpcfwi, capsys):
    assert hpcfwi("--version") == 0
    assert capsys.readouterr().out == f"hpcfwi {__version__}\n"


@pytest.mark.parametrize("words", [("nonsense",), ("--nonsense",), ("run",)])
def test_what_is_no_command_is_refused_with_where_to_look(words, hpcfwi, capsys):
    assert hpcfwi(*words) == 2
    assert capsys.readouterr().err.endswith("See hpcfwi --help.\n")


def test_a_job_with_gpus_that_torch_does_not_see_stops_unless_cpus_are_meant(
    hpcfwi, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("SLURM_JOB_GPUS", "0,1")
    path = write_input(tmp_path)
    assert hpcfwi("plan", path) == 2
    told = capsys.readouterr().err
    assert "it was given GPUs (SLURM_JOB_GPUS=0,1)" in told
    assert "--device cpu" in told
    assert hpcfwi("plan", path, "--device", "cpu", "--quiet") == 0
    # What simulates nothing needs no GPU
    assert hpcfwi("dataset", "dome-section", "--to", tmp_path, "--quiet") == 0
    assert hpcfwi("nonsense") == 2
    assert "nonsense" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "words"),
    [("migrate", "[migration]"), ("plan", "[inversion]"), ("check", "[migration]")],
)
def test_help_shows_the_names_of_sections_in_their_brackets(command, words, hpcfwi, capsys):
    assert hpcfwi(command, "--help") == 0
    assert words in capsys.readouterr().out
