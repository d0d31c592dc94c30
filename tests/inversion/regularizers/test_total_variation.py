"""The total variation of the change of a model."""

from __future__ import annotations

import pytest
import torch

from hpcfwi.inversion.regularizers.total_variation import total_variation
from hpcfwi.model import Grid, Model


@pytest.mark.parametrize(
    ("shape", "spacing"), [((5, 7), (10.0, 10.0)), ((4, 5, 6), (5.0, 10.0, 20.0))]
)
def test_total_variation_and_its_gradient_match_autograd(shape, spacing):
    torch.manual_seed(0)
    grid = Grid(shape, spacing, (0.0,) * len(shape))
    initial, array = torch.randn(2, *shape, dtype=torch.float64)
    array.requires_grad_()
    squares = torch.zeros(shape, dtype=torch.float64)
    for axis, h in enumerate(spacing):
        slope = (array - initial).diff(dim=axis).mul(spacing[0] / h).square()
        padding = [0, 0] * len(shape)
        padding[2 * (len(shape) - axis) - 1] = 1
        squares = squares + torch.nn.functional.pad(slope, padding)
    expected = 3.0 * ((squares + 0.25).sqrt() - 0.5).mean()
    expected.backward()
    model, start = Model(grid, {"vp": array.detach()}), Model(grid, {"vp": initial})
    penalty, gradient = total_variation(model, start, weight=3.0, smallest=0.5)
    assert penalty == pytest.approx(expected.item(), rel=1e-13)
    torch.testing.assert_close(gradient["vp"], array.grad, rtol=1e-12, atol=1e-15)


def test_edge_costs_no_more_than_a_slope_of_the_same_contrast():
    grid = Grid((4, 40), (10.0, 10.0), (0.0, 0.0))
    start = Model(grid, {"vp": torch.zeros(grid.shape)})
    edge = (torch.arange(40) >= 20).float().expand(grid.shape) * 500.0
    ramp = torch.linspace(0.0, 500.0, 40).expand(grid.shape)
    sharp, smooth = (
        total_variation(Model(grid, {"vp": array}), start, weight=1.0, smallest=0.01)[0]
        for array in (edge, ramp)
    )
    assert sharp == pytest.approx(smooth, rel=1e-2)
