"""Damping, the square of the change of a model."""

from __future__ import annotations

import pytest
import torch

from hpcfwi.inversion.regularizers.damping import damping
from hpcfwi.model import Grid, Model


def test_damping_and_its_gradient_match_autograd():
    torch.manual_seed(0)
    grid = Grid((5, 7), (10.0, 20.0), (0.0, 0.0))
    initial, array = torch.randn(2, 5, 7, dtype=torch.float64)
    weights = torch.rand(5, 7, dtype=torch.float64)
    array.requires_grad_()
    expected = 1.5 * (weights * (array - initial) ** 2).mean()
    expected.backward()
    model, start = Model(grid, {"vp": array.detach()}), Model(grid, {"vp": initial})
    penalty, gradient = damping(model, start, weights, weight=3.0)
    assert penalty == pytest.approx(expected.item(), rel=1e-14)
    torch.testing.assert_close(gradient["vp"], array.grad, rtol=1e-13, atol=1e-15)
