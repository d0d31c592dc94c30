"""What the tests of the inversion share."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from hpcfwi import cli
from hpcfwi.inversion import records


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures cost more than the rest of a tiny inversion."""
    monkeypatch.setattr(records, "draw_survey", lambda *_: None)
    monkeypatch.setattr(records, "draw_epoch_figures", lambda *_: None)


@pytest.fixture
def hpcfwi(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command line in this process: hpcfwi("run", path) is its exit code."""

    def call(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["hpcfwi", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code

    return call
