"""What holds for all tests.

Where there is no GPU, Triton interprets its kernels, and wants to know before it is imported. On a
bare machine with one, `make test-gpu` reads this file, too: what is not there is imported where it
is used.
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

from hpcfwi.parallel.rendezvous import GIVEN, VISIBLE
from hpcfwi.parallel.watch import SIGNALS

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    for name in (*GIVEN, *VISIBLE):
        os.environ.pop(name, None)


def pytest_configure(config: pytest.Config) -> None:
    """How long a case takes is the machine's affair, and that of the tests beside it."""
    if config.pluginmanager.hasplugin("hypothesispytest"):
        from hypothesis import settings

        settings.register_profile(settings.get_current_profile_name(), deadline=None)


def pytest_collection_finish() -> None:
    """Modules and thousands of collected tests stay: they are not looked through for garbage.

    What tests leave is soon: Python looks at all when that is a quarter of what it last found.
    """
    gc.collect()
    gc.freeze()
    gc.collect()


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other users may enter, as they may not pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


HANDLERS = {number: signal.getsignal(number) for number in SIGNALS}


@pytest.fixture(autouse=True)
def same_signals() -> Iterator[None]:
    """What a command that runs in this process does with signals ends with its test."""
    yield
    for number, handler in HANDLERS.items():
        signal.signal(number, handler)


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures cost more than the rest of a tiny inversion."""
    from hpcfwi.report import fit, style
    from hpcfwi.run import records

    monkeypatch.setattr(records, "draw_survey", lambda *_: None)
    monkeypatch.setattr(records, "draw_epoch_figures", lambda *_: None)
    monkeypatch.setattr(records, "draw_wavelet", lambda *_: None)
    monkeypatch.setattr(records, "draw_fit", lambda *_: None)
    monkeypatch.setattr(fit, "comparison_figure", lambda *_: style.new_figure(1.0, 1.0))


@pytest.fixture
def hpcfwi(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command line in this process: hpcfwi("run", path) is its exit code."""
    from hpcfwi import cli

    def call(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["hpcfwi", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code

    return call
