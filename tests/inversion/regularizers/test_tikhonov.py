"""Tikhonov regularization, the roughness of the change of a model."""

from __future__ import annotations

import pytest
import torch

from hpcfwi.inversion.regularizers.tikhonov import tikhonov
from hpcfwi.model import Grid, Model


@pytest.mark.parametrize(
    ("shape", "spacing"), [((5, 7), (10.0, 10.0)), ((4, 5, 6), (5.0, 10.0, 20.0))]
)
def test_tikhonov_penalty_and_its_gradient_match_autograd(shape, spacing):
    torch.manual_seed(0)
    grid = Grid(shape, spacing, (0.0,) * len(shape))
    initial, array = torch.randn(2, *shape, dtype=torch.float64)
    array.requires_grad_()
    ratios = [spacing[0] / h for h in spacing]
    terms = [(array - initial).diff(dim=k).mul(ratios[k]).square().sum() for k in range(len(shape))]
    expected = 0.5 * 3.0 * sum(terms) / array.numel()
    expected.backward()
    model, start = Model(grid, {"vp": array.detach()}), Model(grid, {"vp": initial})
    penalty, gradient = tikhonov(model, start, weight=3.0)
    assert penalty == pytest.approx(expected.item(), rel=1e-14)
    torch.testing.assert_close(gradient["vp"], array.grad, rtol=1e-13, atol=1e-15)
