"""Tests of the command line apart from its commands."""

from __future__ import annotations

import signal
import time
from importlib import import_module

import pytest

from hpcfwi import __version__, cli
from hpcfwi.errors import Stopped
from tests.inversion.examples import write_input

COMMANDS = ("dataset", "forward", "check", "run", "status", "plan", "show", "bench", "convert")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_does_not_replace_colons_by_emoji(command, hpcfwi, capsys):
    """The library of the help replaces names between colons by emoji."""
    assert hpcfwi(command, "--help") == 0
    emoji = [c for c in capsys.readouterr().out if ord(c) > 0xFFFF]
    assert not emoji


def test_list_of_commands_describes_each_in_a_whole_sentence(hpcfwi, capsys):
    assert hpcfwi("--help") == 0
    commands = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert [line for line in commands if not line.endswith(".") or line.endswith("...")] == []


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_hpcfwi_without_a_command_shows_its_help(words, hpcfwi, capsys):
    assert hpcfwi(*words) == 0
    told = capsys.readouterr()
    assert all(f" {command} " in told.out for command in COMMANDS)
    assert told.err == ""


def test_version_option_prints_the_version(hpcfwi, capsys):
    assert hpcfwi("--version") == 0
    assert capsys.readouterr().out == f"hpcfwi {__version__}\n"


@pytest.mark.parametrize(
    ("words", "helpful"),
    [
        (("nonsense",), "hpcfwi"),
        (("--nonsense",), "hpcfwi"),
        (("run",), "hpcfwi run"),
        (("convert", "a.sgy", "b.h5", "--quantity", "speed"), "hpcfwi convert"),
    ],
)
def test_wrong_command_line_is_refused_with_a_hint_to_help(words, helpful, hpcfwi, capsys):
    assert hpcfwi(*words) == 2
    message = capsys.readouterr().err
    assert message.endswith(f"See {helpful} --help.\n")
    assert "Value error" not in message


@pytest.mark.parametrize("words", [(), ("one.sgy",)])
def test_conversion_of_fewer_than_two_files_names_both_arguments(words, hpcfwi, capsys):
    assert hpcfwi("convert", *words) == 2
    assert "Missing argument: expected FROM and TO. See" in capsys.readouterr().err


def test_signal_within_an_import_stops_the_program_after_the_import(tmp_path, monkeypatch):
    module = "import os, signal\nos.kill(os.getpid(), signal.SIGUSR1)\nis_whole = True\n"
    (tmp_path / "interrupted.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    imported = []

    def load() -> None:
        imported.append(import_module("interrupted"))
        time.sleep(30.0)

    before = signal.signal(signal.SIGUSR1, cli._stop_early)
    try:
        with pytest.raises(Stopped, match="stopped by SIGUSR1"):
            load()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert imported
    assert imported[0].is_whole


def test_job_with_gpus_unseen_by_torch_is_refused_without_device_cpu(
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
    # Commands that simulate nothing need no GPU
    assert hpcfwi("dataset", "dome-section", "--to", tmp_path, "--quiet") == 0
    assert hpcfwi("nonsense") == 2
    assert "nonsense" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "words"),
    [("migrate", "[migration]"), ("plan", "[inversion]"), ("check", "[migration]")],
)
def test_help_shows_section_names_in_brackets(command, words, hpcfwi, capsys):
    assert hpcfwi(command, "--help") == 0
    assert words in capsys.readouterr().out
