"""Tests of simulations in which some arrays of the model are constant."""

from __future__ import annotations

from dataclasses import replace

import torch

from hpcfwi.model import Model
from hpcfwi.operators.simulator import Aperture, Simulator
from hpcfwi.wave import Method
from tests.operators.examples import GRID, METHOD, make_model, make_survey


def test_constants_complete_models_that_lack_them():
    model, survey = make_model(), make_survey()
    simulator = Simulator(GRID, Method(**METHOD), Aperture())
    expected = simulator.simulate(model, survey, keep=False).data
    other = Model(GRID, {"rho": torch.full(GRID.shape, 2000.0, dtype=torch.float64)})
    constant = replace(simulator, constants=model)
    assert torch.equal(constant.simulate(other, survey, keep=False).data, expected)
    # Arrays of the model itself are preferred.
    constant = replace(simulator, constants=make_model(1))
    assert torch.equal(constant.simulate(model, survey, keep=False).data, expected)
