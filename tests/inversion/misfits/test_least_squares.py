"""The least-squares misfit and its gradient."""

from __future__ import annotations

import pytest
import torch

from hpcfwi.inversion.misfits.least_squares import least_squares

DT = 0.004


def test_least_squares_and_its_gradient_match_autograd():
    torch.manual_seed(0)
    simulated = torch.randn(2, 3, 40, dtype=torch.float64, requires_grad=True)
    observed = torch.randn(2, 3, 40, dtype=torch.float64)
    expected = 0.5 * DT * (simulated - observed).square().sum(dim=(1, 2))
    expected.sum().backward()
    misfit, gradient = least_squares(simulated.detach(), observed, DT)
    torch.testing.assert_close(misfit, expected.detach())
    torch.testing.assert_close(gradient, simulated.grad)


def test_small_residuals_of_large_data_are_summed_in_double_precision():
    residual = torch.full((1, 1000, 1000), 1e-3)
    misfit, _ = least_squares(residual, torch.zeros(1, 1000, 1000), DT)
    assert float(misfit) == pytest.approx(0.5 * DT * 1e6 * float(residual[0, 0, 0]) ** 2, rel=1e-12)


def test_least_squares_does_not_change_its_arguments():
    simulated, observed = torch.randn(2, 2, 3, 40, generator=torch.Generator().manual_seed(0))
    before = simulated.clone(), observed.clone()
    least_squares(simulated, observed, DT)
    assert torch.equal(simulated, before[0])
    assert torch.equal(observed, before[1])
