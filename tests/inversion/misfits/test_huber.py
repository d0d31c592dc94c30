"""The Huber misfit: least squares of small residuals, with bounded adjoint sources."""

from __future__ import annotations

import pytest
import torch

from hpcfwi.inversion.misfits.huber import huber
from hpcfwi.inversion.misfits.least_squares import least_squares
from tests.inversion.misfits.toys import DT, random_traces


def test_huber_is_least_squares_up_to_its_width():
    simulated, observed = random_traces(2), random_traces(1)
    found, gradient = huber(simulated, observed, DT, width=1e3)
    expected, slow = least_squares(simulated, observed, DT)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0.0)
    torch.testing.assert_close(gradient, slow, rtol=1e-13, atol=1e-16)


def test_huber_gradient_is_bounded_beyond_its_width():
    observed = torch.ones(1, 3, 10)
    observed[0, 1] *= 100.0
    simulated = observed.clone()
    simulated[0, 0, 4] += 7.0
    found, gradient = huber(simulated, observed, DT, width=0.5)
    assert float(found) == pytest.approx(DT * (0.5 * 7.0 - 0.125))
    expected = torch.zeros(1, 3, 10)
    expected[0, 0, 4] = 0.5 * DT
    torch.testing.assert_close(gradient, expected)
