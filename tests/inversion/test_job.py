"""Commands from the config to the exit code, on one rank: bad input is told and leaves no trace."""

from __future__ import annotations

import pytest

from tests.inversion.bad_inputs import BAD_INPUTS, FILE_INSTEAD, BadInput, write_given
from tests.inversion.examples import write_input


def contents(folder):
    """Every path below the folder, and what is in the files."""
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def the_message(errors):
    """The one message of a command; its words without the name of the program."""
    assert "Traceback" not in errors
    assert errors.startswith("hpcfwi: ")
    assert errors.count("hpcfwi: ") == 1
    assert errors.count("\n") == 1
    assert errors.endswith(".\n")
    return errors.removeprefix("hpcfwi: ").strip()


@pytest.mark.parametrize("command", ["run", "forward"])
@pytest.mark.parametrize("bad", BAD_INPUTS, ids=lambda bad: bad.name)
def test_bad_input_ends_with_2_and_one_message_and_no_file(
    bad: BadInput, command, hpcfwi, tmp_path, capsys
):
    path = bad.write(tmp_path)
    before = contents(tmp_path)
    settings = [word for setting in bad.settings for word in ("--set", setting)]

    assert hpcfwi(command, path, *settings) == 2

    message = the_message(capsys.readouterr().err)
    for word in bad.words:
        assert word in message
    assert contents(tmp_path) == before


def test_data_that_are_observed_already_cannot_be_simulated(hpcfwi, tmp_path, capsys):
    write_given(tmp_path)
    path = write_input(tmp_path, FILE_INSTEAD)
    assert hpcfwi("forward", path) == 2
    message = the_message(capsys.readouterr().err)
    assert "survey.file" in message
    assert "observed already" in message
    assert not (tmp_path / "run").exists()
