"""Tests of the run directory: its config, its lock, and the removal of unfinished files."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcfwi.config import load_config
from hpcfwi.errors import InputError
from hpcfwi.report.text import read_metrics
from hpcfwi.run.directory import RunDirectory
from hpcfwi.storage.checkpoint import load_latest_checkpoint, save_checkpoint
from tests.inversion.examples import write_input
from tests.ranks import make_env
from tests.strangers import as_root, as_stranger, give_away

CLAIM = """
import sys
from pathlib import Path
from hpcfwi.config import load_config
from hpcfwi.run.directory import RunDirectory

with RunDirectory(Path(sys.argv[1])).claim(load_config(Path(sys.argv[2]), [])):
    print("claimed", flush=True)
    sys.stdin.read()
"""

LEFTOVERS = (
    ".config.toml.0123456789abcdef.part",
    ".metrics.jsonl.0123456789abcdef.part",
    ".model.h5.0123456789abcdef.part",
    ".model_best.h5.0123456789abcdef.part",
    ".true.h5.0123456789abcdef.part",
    ".initial.h5.0123456789abcdef.part",
    ".loss.png.0123456789abcdef.part",
    "checkpoints/.epoch_000007.ckpt.0123456789abcdef.part",
    "epochs/.epoch_0007.h5.0123456789abcdef.part",
)
# Files that are not of a run, and unfinished observed data, which the run continues
UNTOUCHED = (
    "observed.h5.part",
    "download.part",
    "notes.txt",
    ".model.h5.notes.part",
    ".other.h5.0123456789abcdef.part",
)


@pytest.fixture
def directory(tmp_path):
    return RunDirectory(tmp_path / "run")


@pytest.fixture
def config(tmp_path):
    return load_config(write_input(tmp_path), [])


def begin(directory, config):
    with directory.claim(config):
        directory.begin(config)


def finish_an_epoch(directory, config):
    begin(directory, config)
    (directory.checkpoints / "epoch_000001.ckpt").touch()


def test_unfinished_files_of_killed_jobs_are_ignored_and_removed(directory, config):
    begin(directory, config)
    for name in (*LEFTOVERS, *UNTOUCHED):
        (directory.path / name).write_bytes(b"half")
    assert load_latest_checkpoint(directory.checkpoints) is None
    assert read_metrics(directory.metrics) == []
    with directory.claim(config):
        assert all((directory.path / name).exists() for name in LEFTOVERS), (
            "they are removed only when the run begins"
        )
        directory.begin(config)
    left = {path.name for path in directory.path.rglob("*") if path.is_file()}
    assert left == {"config.toml", "lock", *UNTOUCHED}


def test_second_job_does_not_remove_files_of_the_holder(directory, config, tmp_path):
    arguments = [sys.executable, "-c", CLAIM, str(directory.path), str(tmp_path / "input.toml")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(arguments, env=make_env(), text=True, **pipes) as first:
        assert first.stdout.readline() == "claimed\n"
        part = directory.path / ".model.h5.0123456789abcdef.part"
        part.write_bytes(b"half")
        with pytest.raises(InputError, match=rf"another job .*\(pid {first.pid} on"):
            directory.claim(config).__enter__()
        assert part.exists()
        first.kill()
    begin(directory, config)
    assert not part.exists()


def test_config_changed_by_another_job_is_checked_again(directory, config):
    finish_an_epoch(directory, config)
    text = directory.config.read_text().replace("seed = 0", "seed = 1")
    directory.config.write_text(text)
    with pytest.raises(InputError, match=r"inversion\.seed"):
        directory.claim(config).__enter__()
    assert directory.config.read_text() == text


def test_only_keys_of_the_observed_data_are_fixed_before_the_first_epoch(directory, tmp_path):
    finish_an_epoch(directory, load_config(write_input(tmp_path)))
    shots = {"survey.dt": 0.005}
    updates = {
        "inversion.misfit": "envelope",
        "data.band": [0.0, 9.0],
        "model.initial": {"linear": [1800.0, 0.5]},
        "model.network": {"kind": "siren"},
        "stage": [{"inversion": {"epochs": 2}}],
    }
    other, *later = (load_config(write_input(tmp_path, keys)) for keys in (shots, updates))
    for config in (other, *later):
        with pytest.raises(InputError, match="other values"):
            directory.check(config)
    (directory.checkpoints / "epoch_000001.ckpt").unlink()
    directory.metrics.write_text('{"epoch": 1}\n')  # as after a kill before the first checkpoint
    with pytest.raises(InputError, match="other values"):
        directory.check(later[0])
    directory.metrics.write_text("")
    for config in later:
        directory.check(config)
    with pytest.raises(InputError, match=r"other values: survey\.dt"):
        directory.check(other)


@pytest.fixture
def precious(tmp_path):
    """A directory elsewhere whose checkpoints must not change."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for epoch in range(1, 6):
        (elsewhere / f"epoch_{epoch:06d}.ckpt").write_bytes(b"precious")
    (elsewhere / "epoch_000006.ckpt.part").write_bytes(b"precious")
    yield elsewhere
    assert len(list(elsewhere.iterdir())) == 6
    assert all(path.read_bytes() == b"precious" for path in elsewhere.iterdir())


@pytest.mark.parametrize("name", ["lock", "log.txt"])
def test_link_in_place_of_the_lock_or_log_is_refused(name, directory, config, precious):
    directory.path.mkdir()
    (directory.path / name).symlink_to(precious / "epoch_000001.ckpt")
    with pytest.raises(InputError, match=rf"{name}: this is a symbolic link"):
        directory.claim(config).__enter__()


def test_link_in_place_of_a_file_that_is_rewritten_is_replaced(
    directory, config, precious, tmp_path
):
    directory.path.mkdir()
    text = f"# precious\n{config.to_toml()}"
    (tmp_path / "config.toml").write_text(text)
    directory.config.symlink_to(tmp_path / "config.toml")
    for name in LEFTOVERS[:7]:
        (directory.path / name).symlink_to(precious / "epoch_000001.ckpt")
    begin(directory, config)
    assert not directory.config.is_symlink()
    assert (tmp_path / "config.toml").read_text() == text


def test_link_of_the_same_user_to_another_disk_is_followed(directory, config, tmp_path):
    (tmp_path / "disk").mkdir()
    directory.path.mkdir()
    directory.checkpoints.symlink_to(tmp_path / "disk")
    with directory.claim(config):
        save_checkpoint(directory.checkpoints, 1, {})
    assert load_latest_checkpoint(tmp_path / "disk") == (1, {})


@as_root
@pytest.mark.parametrize("name", ["checkpoints", "epochs"])
def test_link_of_another_user_to_a_directory_is_refused(name, directory, config, precious):
    directory.path.mkdir()
    (directory.path / name).symlink_to(precious)
    give_away(directory.path / name)
    with pytest.raises(InputError, match=rf"{name}: this is a symbolic link of .*uid 65534"):
        directory.claim(config).__enter__()


@as_root
def test_checkpoints_are_not_pruned_through_a_link_planted_meanwhile(directory, config, precious):
    with directory.claim(config):
        directory.checkpoints.rmdir()
        directory.checkpoints.symlink_to(precious)
        give_away(directory.checkpoints)
        with pytest.raises(InputError, match="checkpoints: this is a symbolic link of"):
            save_checkpoint(directory.checkpoints, 1, {})


PLANT = """
import os, sys
from pathlib import Path

run, precious = map(Path, sys.argv[1:])
for name in ("checkpoints", "epochs"):
    (run / name).rename(run / f".{name}")
    (run / name).symlink_to(precious)
"""


@as_root
def test_links_planted_by_a_user_with_write_access_are_refused(config, precious, public_folder):
    directory = RunDirectory(public_folder / "run")
    with directory.claim(config):
        pass
    directory.path.chmod(0o777)
    command = as_stranger(sys.executable, "-c", PLANT, directory.path, precious)
    subprocess.run(command, check=True)
    with pytest.raises(InputError, match="checkpoints: this is a symbolic link of"):
        directory.claim(config).__enter__()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE], ids=os.strerror)
def test_inaccessible_config_is_not_treated_as_missing(number, directory, config, monkeypatch):
    monkeypatch.setattr("hpcfwi.system.PAUSES", ())
    begin(directory, config)
    lstat = Path.lstat

    def refuse(path):
        if path == directory.config:
            raise OSError(number, os.strerror(number))
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", refuse)
    with pytest.raises(InputError, match=rf"config\.toml.*{os.strerror(number)}"):
        directory.check(config)


def test_config_behind_a_dangling_link_is_not_treated_as_missing(directory, config):
    begin(directory, config)
    directory.config.unlink()
    directory.config.symlink_to("not mounted")
    with pytest.raises(InputError, match=r"config\.toml.*No such file"):
        directory.check(config)


def test_checkpoints_without_a_config_are_refused(directory, config):
    begin(directory, config)
    save_checkpoint(directory.checkpoints, 1, {})
    directory.config.unlink()
    missing = r"config\.toml: the file is missing, but .* has checkpoints"
    with pytest.raises(InputError, match=missing):
        directory.check(config)


def test_directory_behind_a_dangling_link_is_refused(config, tmp_path):
    (tmp_path / "link").symlink_to("purged")
    with pytest.raises(InputError, match="link is a link to purged, which is not there"):
        RunDirectory(tmp_path / "link").check(config)


def test_path_through_a_file_is_refused_at_once(config, tmp_path, monkeypatch):
    monkeypatch.setattr("hpcfwi.system.PAUSES", ())
    (tmp_path / "file").write_text("text")
    with pytest.raises(InputError, match=f"because {tmp_path}/file is not a directory"):
        RunDirectory(tmp_path / "file" / "run").check(config)
