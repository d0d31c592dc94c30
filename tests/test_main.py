"""Tests of the start of the program: imports, PYTHONPATH and settings of others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.inversion.examples import write_input
from tests.ranks import ROOT, make_env, run_command
from tests.strangers import as_root, give_away

# The program as the script of pip calls it
SCRIPT = "import sys; from hpcfwi.__main__ import main; sys.argv[0] = 'hpcfwi'; main()"
PLANTED = "from pathlib import Path\nPath({mark!r}).write_text('executed')\nraise ImportError\n"


def call(folder, *arguments, python=("-m", "hpcfwi"), **env):
    return run_command([sys.executable, *python, *arguments], env, folder, code=None)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
def test_signal_before_the_command_line_is_imported_stops_the_program(name, tmp_path):
    early = (
        "import os, signal, sys\n"
        "class Early:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'hpcfwi.cli':\n"
        f"            os.kill(os.getpid(), signal.{name})\n"
        "sys.meta_path.insert(0, Early())\n"
    )
    done = call(tmp_path, "--version", python=("-P", "-c", early + SCRIPT), PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stdout) == (3, "")
    (told,) = done.stderr.splitlines()
    assert told == (
        f"hpcfwi: stopped by {name} with nothing to save; the same command starts again, "
        "and a run continues from the last checkpoint"
    )


def test_signal_while_the_program_exits_does_not_change_its_exit_code(tmp_path):
    late = "import atexit, os\natexit.register(os.kill, os.getpid(), 15)\n"
    done = call(tmp_path, "--version", python=("-P", "-c", late + SCRIPT), PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def planted(tmp_path):
    """A directory with modules that write the file `mark` when they are imported."""
    folder = tmp_path / "planted"
    folder.mkdir()
    for name in ("mpi4py", "torch", "numpy", "typing", "typer", "h5py", "numba", "queue"):
        (folder / f"{name}.py").write_text(PLANTED.format(mark=str(tmp_path / "mark")))
    return folder


@pytest.mark.parametrize(
    ("python", "path"),
    [
        (("-m", "hpcfwi"), f"{ROOT}"),
        (("-P", "-c", SCRIPT), f"{ROOT}:"),
        (("-P", "-c", SCRIPT), f"{ROOT}::{ROOT}/tests"),
    ],
)
def test_nothing_is_imported_from_the_current_directory(python, path, planted, tmp_path):
    done = call(planted, "status", write_input(tmp_path), python=python, PYTHONPATH=path)
    assert done.stdout.startswith("0 of 5 epochs"), done.stderr
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("path", [":", "::", f":{ROOT}"])
def test_empty_pythonpath_entries_are_removed_also_for_children(path, tmp_path):
    code = (
        f"import sys; sys.path.append({str(ROOT)!r})\n"
        "from hpcfwi.__main__ import _leave_out_current_directory as leave_out\n"
        "import os; leave_out(); print(os.getcwd() in sys.path, os.environ['PYTHONPATH'])"
    )
    done = call(tmp_path, python=("-P", "-c", code), PYTHONPATH=path)
    assert done.stdout.split() == ["False", *filter(None, path.split(":"))], done.stderr


def test_restarted_run_imports_nothing_from_the_current_directory(planted, tmp_path):
    (planted / "hpcfwi.py").write_text((planted / "torch.py").read_text())
    words = ("run", write_input(tmp_path), "--engine", "eager", "--restarts", 1)
    done = call(planted, *words, python=("-P", "-m", "hpcfwi"), PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "mark").exists()


def test_current_directory_is_imported_from_if_pythonpath_names_it(tmp_path):
    (tmp_path / "own_denoiser.py").write_text("def keep(images, strength):\n    return images\n")
    folder = tmp_path / "input"
    folder.mkdir()
    prior = {"denoiser": "own_denoiser:keep", "strength": 0.1}
    path = write_input(folder, {"inversion.prior": prior, "inversion.epochs": 1})
    for named, code in ((str(tmp_path), 0), (f":{tmp_path}", 0), ("", 2)):
        done = call(
            tmp_path, "run", path, "--engine", "eager", PYTHONPATH=f"{ROOT}{os.pathsep}{named}"
        )
        assert done.returncode == code, (named, done.stderr)


def test_run_continues_if_its_output_pipe_is_closed(tmp_path):
    receiving, sending = os.pipe()
    os.close(receiving)
    words = ["run", str(write_input(tmp_path)), "--engine", "eager"]
    for arguments in (words, ["--help"]):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "hpcfwi", *arguments],
            env=make_env(),
            stdout=sending,
            stderr=subprocess.PIPE,
            timeout=240,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b"")
    os.close(sending)
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "epoch 5/5" in log
    assert "Done: " in log.splitlines()[-1]


@pytest.mark.parametrize("closed", ["1>&-", "0<&- 1>&- 2>&-"])
def test_no_file_gets_the_descriptor_of_a_closed_input_or_output(closed, tmp_path):
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from hpcfwi import cli\n"
        "sys.argv = ['hpcfwi', 'nonsense']\n"
        "try:\n"
        "    cli.main()\n"
        "finally:\n"
        "    with open('file', 'wb') as file:\n"
        "        file.write(str(file.fileno() > 2).encode())\n"
    )
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh"]
    done = run_command([*shell, sys.executable, "-c", program], cwd=tmp_path, code=2)
    assert (tmp_path / "file").read_text() == "True"
    assert ("No such command" in done.stderr) == ("2>" not in closed)


def print_to_full_disk(command, path, code):
    """Run a command whose output a full disk cannot hold, and check its exit code and message."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "hpcfwi", command, str(path), "--engine", "eager"],
            env=make_env(),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=240,
            check=False,
        )
    message = b"hpcfwi: the output cannot be written (No space left on device) and is lost."
    remedy = b" Free space on that file system.\n"
    assert (done.returncode, done.stderr) == (code, message + remedy)


@pytest.mark.parametrize("command", ["plan", "check"])
def test_command_that_only_prints_fails_if_the_disk_of_its_output_is_full(command, tmp_path):
    print_to_full_disk(command, write_input(tmp_path), 1)


def test_run_continues_if_the_disk_of_its_output_is_full(tmp_path):
    print_to_full_disk("run", write_input(tmp_path), 0)
    assert "Done: " in (tmp_path / "run" / "log.txt").read_text().splitlines()[-1]


@as_root
@pytest.mark.parametrize("name", ["matplotlibrc", ".numba_config.yaml"])
def test_settings_files_of_other_users_are_refused(name, public_folder, tmp_path):
    path = write_input(tmp_path)
    (public_folder / name).write_text("")
    (public_folder / name).chmod(0o644)
    assert call(public_folder, "status", path).returncode == 1
    give_away(public_folder / name)
    done = call(public_folder, "status", path)
    assert done.returncode == 2
    assert f"{public_folder / name}: " in done.stderr
    assert "belongs to nobody" in done.stderr
    assert call(tmp_path, "status", path).returncode == 1
