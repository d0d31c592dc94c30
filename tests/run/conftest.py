"""Fixtures of the tests of runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcfwi.inversion.objective import Objective


@pytest.fixture
def run_and_die(
    hpcfwi: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, Path, str, int], None]:
    """Return a function that runs a command in a process that kills itself in its work.

    It is killed when a method of the objective is called for the given number of times.
    """

    def act(command: str, path: Path, method: str, call: int) -> None:
        calls, work = [], getattr(Objective, method)

        def die_in_time(*args: object, **options: object) -> object:
            calls.append(1)
            if len(calls) == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return work(*args, **options)

        child = os.fork()
        if child == 0:
            try:
                monkeypatch.setattr(Objective, method, die_in_time)
                hpcfwi(command, path)
            finally:
                os._exit(1)  # else the child would continue with the other tests
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL

    return act
