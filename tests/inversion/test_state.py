"""What a checkpoint keeps of a state is the state."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcfwi.inversion.state import Numerics, State
from hpcfwi.inversion.wavelets import Emission
from hpcfwi.model import Grid, Model
from hpcfwi.wave import Snapshots

GRID = Grid((3, 4), (10.0, 10.0), (0.0, 0.0))
CPU = torch.device("cpu")


def state_with(emission):
    model = Model(GRID, {"vp": torch.full(GRID.shape, 2000.0)})
    return State(4, model, {}, Numerics("eager", Snapshots(1)), emission=emission)


@pytest.mark.parametrize(
    "emission",
    [
        None,
        Emission(np.ones(5, np.float32)),
        Emission(np.ones((2, 5), np.float32), np.array([0, 3])),
    ],
)
def test_what_was_estimated_comes_back(emission):
    found = State.from_table(state_with(emission).to_table(), GRID, CPU).emission
    if emission is None:
        assert found is None
    else:
        np.testing.assert_array_equal(found.wavelet, emission.wavelet)
        np.testing.assert_array_equal(found.epochs, emission.epochs)


def test_a_table_from_before_shots_had_wavelets_of_their_own_is_read():
    table = state_with(Emission(np.ones(5, np.float32))).to_table()
    del table["estimated"]
    found = State.from_table(table, GRID, CPU).emission
    assert found.epochs is None
    np.testing.assert_array_equal(found.wavelet, np.ones(5))


def test_failures_that_are_a_tensor_are_refused():
    table = {**state_with(None).to_table(), "failed": torch.zeros(3)}
    with pytest.raises(TypeError, match="failed"):
        State.from_table(table, GRID, CPU)


@pytest.mark.parametrize("references", [[], 0, "", torch.zeros(3), {"misfit": float("nan")}])
def test_references_that_are_not_a_table_of_numbers_are_refused(references):
    table = {**state_with(None).to_table(), "references": references}
    with pytest.raises((ValueError, TypeError, LookupError, AttributeError)):
        State.from_table(table, GRID, CPU)
