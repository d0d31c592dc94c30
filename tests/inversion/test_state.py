"""States in checkpoints."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcfwi.inversion.state import EngineChoice, State
from hpcfwi.inversion.wavelets import WaveletEstimate
from hpcfwi.model import Grid, Model
from hpcfwi.wave import Snapshots

GRID = Grid((3, 4), (10.0, 10.0), (0.0, 0.0))
CPU = torch.device("cpu")


def state_with(estimated):
    model = Model(GRID, {"vp": torch.full(GRID.shape, 2000.0)})
    return State(4, model, {}, EngineChoice("eager", Snapshots(1)), estimated=estimated)


@pytest.mark.parametrize(
    "estimated",
    [
        None,
        WaveletEstimate(np.ones(5, np.float32)),
        WaveletEstimate(np.ones((2, 5), np.float32), np.array([0, 3])),
    ],
)
def test_wavelet_estimate_survives_a_checkpoint(estimated):
    found = State.from_table(state_with(estimated).to_table(), GRID, CPU).estimated
    if estimated is None:
        assert found is None
    else:
        np.testing.assert_array_equal(found.wavelet, estimated.wavelet)
        np.testing.assert_array_equal(found.epochs, estimated.epochs)


def test_failures_that_are_a_tensor_are_refused():
    table = {**state_with(None).to_table(), "failed": torch.zeros(3)}
    with pytest.raises(TypeError, match="failed"):
        State.from_table(table, GRID, CPU)


@pytest.mark.parametrize("magnitudes", [[], 0, "", torch.zeros(3), {"misfit": float("nan")}])
def test_references_that_are_not_a_table_of_numbers_are_refused(magnitudes):
    table = {**state_with(None).to_table(), "references": magnitudes}
    with pytest.raises((ValueError, TypeError, LookupError, AttributeError)):
        State.from_table(table, GRID, CPU)
