"""What a checkpoint keeps of a state is the state."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcfwi.inversion.numerics import Numerics
from hpcfwi.inversion.state import State
from hpcfwi.model import Grid, Model
from hpcfwi.wave import Snapshots

GRID = Grid((3, 4), (10.0, 10.0), (0.0, 0.0))
CPU = torch.device("cpu")


def state_with(**keys):
    model = Model(GRID, {"vp": torch.full(GRID.shape, 2000.0)})
    return State(4, model, {}, Numerics("eager", Snapshots(1)), **keys)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"wavelet": np.ones(5, np.float32)},
        {"wavelet": np.ones((2, 5), np.float32), "estimated": np.array([0, 3])},
    ],
)
def test_estimated_wavelets_come_back(keys):
    found = State.from_table(state_with(**keys).to_table(), GRID, CPU)
    for name in ("wavelet", "estimated"):
        np.testing.assert_array_equal(getattr(found, name), keys.get(name))


def test_a_table_from_before_shots_had_wavelets_of_their_own_is_read():
    table = state_with(wavelet=np.ones(5, np.float32)).to_table()
    del table["estimated"]
    found = State.from_table(table, GRID, CPU)
    assert found.estimated is None
    assert found.wavelet is not None
