"""Calls of the command line in this process.

A command that accepts its input is stopped before it computes, so that thousands can be tried.
"""

from __future__ import annotations

import io
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from hpcfwi import cli
from hpcfwi.errors import Stopped
from hpcfwi.run import commands
from hpcfwi.run.directory import RunDirectory

REFUSED, ACCEPTED = 2, 3


@dataclass(frozen=True)
class End:
    """The end of a command."""

    code: int
    output: str
    errors: str


def accept(*_: Any, **__: Any) -> None:
    raise Stopped("the input is accepted")


def call(*arguments: object) -> End:
    """Run the command line with these arguments; a warning is an unexpected error."""
    output, errors = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["hpcfwi", *map(str, arguments)]),
        redirect_stdout(output),
        redirect_stderr(errors),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
    return End(code, output.getvalue(), errors.getvalue())


def check_only(*arguments: object) -> End:
    """Run the command line like `call`, but stop with the code ACCEPTED if the input is good."""
    with (
        mock.patch.object(RunDirectory, "claim", accept),
        mock.patch.object(commands, "Stopwatch", accept),
    ):
        return call(*arguments)


def contents(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return every path below a folder with its size and modification time."""
    return {path: (path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*")}


def message_of(end: End) -> str:
    """Return the only message of a command that has refused its input."""
    assert end.code == REFUSED, end
    assert end.errors.startswith("hpcfwi: "), end.errors
    assert end.errors.count("\n") == 1, end.errors
    assert end.errors.endswith(".\n"), end.errors
    assert len(end.errors) < 2000 + 3 * 5000, end.errors
    return end.errors.removeprefix("hpcfwi: ").strip()


def check_refused_or_good(end: End) -> None:
    """Assert that an input was accepted, or refused with one message."""
    if end.code == ACCEPTED:
        assert end.errors == "hpcfwi: the input is accepted\n"
    else:
        message_of(end)
