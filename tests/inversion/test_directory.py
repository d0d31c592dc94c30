"""A run directory belongs to one config, one job at a time, and is tidied when a run begins."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcfwi.config import load_config
from hpcfwi.errors import InputError
from hpcfwi.inversion.directory import RunDirectory
from hpcfwi.report.metrics import read_metrics
from hpcfwi.storage.checkpoint import load_latest_checkpoint
from tests.inversion.examples import write_input
from tests.ranks import make_env

CLAIM = """
import sys
from pathlib import Path
from hpcfwi.config import load_config
from hpcfwi.inversion.directory import RunDirectory

with RunDirectory(Path(sys.argv[1])).claim(load_config(Path(sys.argv[2]), [])):
    print("claimed", flush=True)
    sys.stdin.read()
"""

LEFTOVERS = (
    "config.toml.part",
    "metrics.jsonl.part",
    "model.h5.part",
    "model_best.h5.part",
    "true.h5.part",
    "initial.h5.part",
    ".loss.png.part",
    "checkpoints/epoch_000007.ckpt.part",
    "epochs/epoch_0007.h5.part",
)
# Observed data are gone on with
UNTOUCHED = ("observed.h5.part", "download.part", "notes.txt")


@pytest.fixture
def directory(tmp_path):
    return RunDirectory(tmp_path / "run")


@pytest.fixture
def config(tmp_path):
    return load_config(write_input(tmp_path), [])


def begin(directory, config):
    with directory.claim(config):
        directory.begin(config)


def test_what_killed_jobs_left_unfinished_is_no_result_and_is_removed(directory, config):
    begin(directory, config)
    for name in (*LEFTOVERS, *UNTOUCHED):
        (directory.path / name).write_bytes(b"half")
    assert load_latest_checkpoint(directory.checkpoints) is None
    assert read_metrics(directory.metrics) == []
    with directory.claim(config):
        assert all((directory.path / name).exists() for name in LEFTOVERS), "not before it begins"
        directory.begin(config)
    left = {path.name for path in directory.path.rglob("*") if path.is_file()}
    assert left == {"config.toml", "lock", *UNTOUCHED}


def test_a_job_that_has_the_directory_is_not_disturbed(directory, config, tmp_path):
    arguments = [sys.executable, "-c", CLAIM, str(directory.path), str(tmp_path / "input.toml")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(arguments, env=make_env(), text=True, **pipes) as first:
        assert first.stdout.readline() == "claimed\n"
        part = directory.path / "model.h5.part"
        part.write_bytes(b"half")
        with pytest.raises(InputError, match=rf"another job .*\(pid {first.pid} on"):
            directory.claim(config).__enter__()
        assert part.exists()
        first.kill()
    begin(directory, config)
    assert not part.exists()


def test_a_config_that_came_meanwhile_is_looked_at_again(directory, config):
    begin(directory, config)
    text = directory.config.read_text().replace("seed = 0", "seed = 1")
    directory.config.write_text(text)
    with pytest.raises(InputError, match=r"inversion\.seed"):
        directory.claim(config).__enter__()
    assert directory.config.read_text() == text


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE], ids=os.strerror)
def test_a_config_that_cannot_be_looked_at_is_not_taken_for_none(
    number, directory, config, monkeypatch
):
    begin(directory, config)
    lstat = Path.lstat

    def refuse(path):
        if path == directory.config:
            raise OSError(number, os.strerror(number))
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", refuse)
    with pytest.raises(InputError, match=rf"config\.toml.*{os.strerror(number)}"):
        directory.check(config)


def test_nor_is_one_behind_a_link_that_leads_nowhere(directory, config):
    begin(directory, config)
    directory.config.unlink()
    directory.config.symlink_to("not mounted")
    with pytest.raises(InputError, match=r"config\.toml.*No such file"):
        directory.check(config)
