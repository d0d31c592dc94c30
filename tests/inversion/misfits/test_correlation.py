"""The normalized and the correlation misfit, which are the same except for rounding."""

from __future__ import annotations

import pytest
import torch

from hpcfwi.inversion.misfits.correlation import correlation
from hpcfwi.inversion.misfits.normalized import normalized
from tests.inversion.misfits.toys import DT, random_traces


@pytest.mark.parametrize("misfit", [correlation, normalized])
def test_correlation_misfit_is_2_for_opposite_and_1_for_orthogonal_traces(misfit):
    phase = 2.0 * torch.pi * torch.arange(40, dtype=torch.float64) / 20.0
    sine, cosine = phase.sin()[None, None], phase.cos()[None, None]
    assert float(misfit(-3.0 * sine, sine, DT)[0]) == pytest.approx(2.0)
    assert float(misfit(cosine, sine, DT)[0]) == pytest.approx(1.0)


def test_normalized_misfit_equals_correlation_misfit():
    simulated, observed = random_traces(2), random_traces(1)
    found, gradient = normalized(simulated, observed, DT)
    expected, slow = correlation(simulated, observed, DT)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0.0)
    torch.testing.assert_close(gradient, slow, rtol=1e-10, atol=1e-14)
