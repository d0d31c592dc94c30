"""The figures of the pages on methods."""

from __future__ import annotations

from runpy import run_path

import numpy as np
import pytest

from hpcfwi.registry import MISFITS
from tests.ranks import ROOT

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "docs")  # as `python docs/draw.py` does
    DRAW = run_path(str(ROOT / "docs" / "draw.py"))
LARGEST = 100_000  # bytes, since figures are downloaded with every clone


@pytest.mark.parametrize("name", MISFITS)
def test_misfit_increases_over_shifts_as_far_as_its_page_says(name):
    shifts = np.linspace(0.0, 1.0, 41)
    values = DRAW["formulas"].misfit_over_shifts(name, shifts)
    assert values[0] == pytest.approx(0.0, abs=1e-12)
    assert (np.diff(values)[:16] > 0.0).all(), "all misfits do within 0.4 periods"
    follows = name in ("envelope", "transport", "adaptive")
    assert (np.diff(values) > 0.0).all() == follows


def test_each_figure_is_small_and_on_a_page():
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    for make in DRAW["FIGURES"]:
        image = ROOT / "docs" / "images" / f"{make.__name__}.png"
        assert f"(images/{image.name})" in pages
        assert image.stat().st_size < LARGEST
