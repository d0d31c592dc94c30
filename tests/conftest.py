"""Settings and fixtures of all tests.

Without a GPU, Triton interprets its kernels, which must be set before it is imported. On a bare
machine with a GPU, `make test-gpu` reads this file, too; therefore modules that it may lack are
imported where they are used.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from hpcfwi.parallel.failure import SIGNALS
from hpcfwi.parallel.rendezvous import GIVEN, VISIBLE

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    for name in (*GIVEN, *VISIBLE):
        os.environ.pop(name, None)


def pytest_configure(config: pytest.Config) -> None:
    """Disable the deadline of hypothesis, since the time of a case depends on the machine."""
    if config.pluginmanager.hasplugin("hypothesispytest"):
        from hypothesis import settings

        settings.register_profile(settings.get_current_profile_name(), deadline=None)


def pytest_collection_finish() -> None:
    """Exclude modules and thousands of collected tests from garbage collection.

    Garbage of tests is then collected sooner: Python does a full collection when new objects are
    a quarter of those of the last one. Numba's compiler creates so many objects that collections
    of the youngest ones would take a twentieth of its time.
    """
    gc.collect()
    gc.freeze()
    gc.collect()
    gc.set_threshold(20_000)


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other users may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


HANDLERS = {number: signal.getsignal(number) for number in SIGNALS}


@pytest.fixture(autouse=True)
def same_signals() -> Iterator[None]:
    """Restore the signal handlers, which commands that run in this process change."""
    yield
    for number, handler in HANDLERS.items():
        signal.signal(number, handler)


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not draw figures."""
    from tests.undrawn import draw_nothing

    draw_nothing(monkeypatch.setattr)


@pytest.fixture
def hpcfwi(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """A function that runs the command line in this process: hpcfwi("run", path) -> exit code."""
    from hpcfwi import cli

    def call(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["hpcfwi", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code

    return call
