"""Tests of directories, pipes, links and devices in place of input files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fuzz.commands import ACCEPTED, call, check_only, contents, message_of
from tests.inversion.bad_inputs import FILE_INSTEAD, write_given
from tests.inversion.examples import write_input


def directory(path: Path) -> None:
    path.mkdir()


def full_directory(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("text")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def null_device(path: Path) -> None:
    path.symlink_to("/dev/null")


def endless_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


def circle_of_links(path: Path) -> None:
    path.symlink_to(path.with_name("other"))
    path.with_name("other").symlink_to(path)


def empty_file(path: Path) -> None:
    path.touch()


def words(path: Path) -> None:
    path.write_text("neither TOML nor HDF5\n" * 100)


KINDS = [
    directory,
    full_directory,
    pipe,
    null_device,
    endless_device,
    dangling_link,
    circle_of_links,
    empty_file,
    words,
]
FILES = {
    "input.toml": {},
    "true.h5": {},
    "start.h5": {"model.initial": {"file": "start.h5"}},
    "given.h5": FILE_INSTEAD,
}


@pytest.fixture(params=FILES)
def inputs(request, tmp_path):
    """The path of an input and that of one of its files, which is missing."""
    name = request.param
    path = write_input(tmp_path, FILES[name])
    write_given(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    return path, tmp_path / name


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
def test_directory_pipe_or_link_in_place_of_an_input_file_is_refused(kind, inputs):
    path, file = inputs
    kind(file)
    before = contents(path.parent)
    assert file.name in message_of(check_only("run", path))
    assert contents(path.parent) == before


def test_links_to_input_files_are_followed(tmp_path):
    path = write_input(tmp_path / "real")
    (tmp_path / "link.toml").symlink_to(path)
    (tmp_path / "true.h5").symlink_to(path.with_name("true.h5"))
    assert check_only("run", tmp_path / "link.toml").code == ACCEPTED


@pytest.fixture(scope="module", autouse=True)
def _all_modules_are_imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Run once, because `an_ordinary_user` may not be able to import modules."""
    assert call("run", write_input(tmp_path_factory.mktemp("imports"))).code == 0


@contextmanager
def an_ordinary_user() -> Iterator[None]:
    """Run as a user who, unlike root, may not read every file, perhaps not even Python's."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder():
    """A folder that any user may read, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="hpcfwi-"))
    folder.chmod(0o755)
    yield folder
    for path in [*folder.rglob("*"), folder]:
        path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", FILES)
def test_error_for_a_file_without_permission_names_it(name, open_folder):
    write_given(open_folder)
    path = write_input(open_folder, {**FILES[name], "output.directory": "/nowhere"})
    shutil.copy(open_folder / "true.h5", open_folder / "start.h5")
    (open_folder / name).chmod(0)
    with an_ordinary_user():
        end = check_only("run", path)
    message = message_of(end)
    assert name in message
    assert "ermission" in message


@pytest.mark.parametrize("closed", ["run", "."])
@pytest.mark.parametrize("command", ["run", "forward"])
def test_error_for_a_directory_without_permission_names_it(closed, command, open_folder):
    path = write_input(open_folder / "input", {"output.directory": str(open_folder / "run" / "1")})
    (open_folder / "run").mkdir()
    (open_folder / closed).chmod(0)
    (open_folder / "input").chmod(0o755)
    with an_ordinary_user():
        end = call(command, path)
    assert str(open_folder) in message_of(end)


def test_read_only_run_directory_is_refused_with_a_remedy(open_folder):
    path = write_input(open_folder / "input", {"output.directory": str(open_folder / "run")})
    (open_folder / "run").mkdir(mode=0o555)
    with an_ordinary_user():
        message = message_of(call("run", path))
    assert f"output.directory: {open_folder / 'run'}" in message
    assert "--output" in message
    assert not list((open_folder / "run").iterdir())
