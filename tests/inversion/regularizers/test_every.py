"""What every regulariser keeps to."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from hpcfwi.inversion.regularizers.tikhonov import tikhonov
from hpcfwi.inversion.regularizers.total_variation import total_variation
from hpcfwi.model import Grid, Model

EACH = pytest.mark.parametrize(
    "regularize", [partial(tikhonov, weight=0.1), partial(total_variation, weight=0.1)]
)


@EACH
def test_what_was_known_before_costs_nothing(regularize):
    grid = Grid((6, 5), (10.0, 10.0), (0.0, 0.0))
    start = Model(grid, {"vp": torch.rand(6, 5)})
    penalty, gradient = regularize(start, start)
    assert penalty == 0.0
    assert not gradient["vp"].any()


@EACH
def test_its_bits_do_not_depend_on_the_threads(regularize):
    grid = Grid((301, 703), (10.0, 10.0), (0.0, 0.0))
    start, model = (Model(grid, {"vp": torch.rand(301, 703)}) for _ in range(2))
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(regularize(model, start))
    torch.set_num_threads(before)
    for penalty, gradient in found[1:]:
        assert penalty == found[0][0]
        assert torch.equal(gradient["vp"], found[0][1]["vp"])
