"""Student's t misfit: least squares of small residuals, and little influence of large ones."""

from __future__ import annotations

from math import log

import pytest
import torch

from hpcfwi.inversion.misfits.least_squares import least_squares
from hpcfwi.inversion.misfits.student import student
from tests.inversion.misfits.toys import DT, random_traces


@pytest.mark.parametrize("keys", [{"freedom": 1e9}, {"scale": 1e5}])
def test_student_with_large_freedom_or_scale_is_least_squares(keys):
    simulated, observed = random_traces(2), random_traces(1)
    found, gradient = student(simulated, observed, DT, **keys)
    expected, slow = least_squares(simulated, observed, DT)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=0.0)
    torch.testing.assert_close(gradient, slow, rtol=1e-7, atol=1e-12)


def test_student_gradient_decreases_for_large_residuals():
    observed = torch.ones(1, 1, 10, dtype=torch.float64)
    simulated = observed.clone()
    simulated[0, 0, 4] += 8.0
    found, gradient = student(simulated, observed, DT, freedom=4.0, scale=0.5)
    assert float(found) == pytest.approx(0.5 * DT * log(65.0))
    assert float(gradient[0, 0, 4]) == pytest.approx(DT * 8.0 / 65.0)
