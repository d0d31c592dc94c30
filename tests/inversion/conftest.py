"""What the tests of the inversion share."""

from __future__ import annotations

import pytest

from hpcfwi.inversion import records


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures cost more than the rest of a tiny inversion."""
    monkeypatch.setattr(records, "draw_survey", lambda *_: None)
    monkeypatch.setattr(records, "draw_epoch_figures", lambda *_: None)
