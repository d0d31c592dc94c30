"""Tests of the parameters of an inversion: their selection, their values and their scales."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hpcfwi import registry
from hpcfwi.config import load_config
from hpcfwi.errors import InputError, StepFailure
from hpcfwi.inversion.parameters import Limits
from hpcfwi.inversion.preparation import prepare
from hpcfwi.model import Grid, Model
from hpcfwi.parallel.context import Context
from hpcfwi.storage.checkpoint import load_latest_checkpoint
from hpcfwi.storage.models import read_model, write_model
from hpcfwi.wave.equation import ACOUSTIC
from tests.inversion.examples import prepared, true_model, write_input

DATASET = {"model.file": None, "model.dataset": "dome-section"}
GRID = Grid((2, 3), (10.0, 10.0), (0.0, 0.0))


def slowest(model):
    return model["vp"] + 0.0 * model["rho"]


# The acoustic equation, which asks for a density and ignores it.
DENSE = replace(ACOUSTIC, parameters=("vp", "rho"), slowest=slowest)


def ask_for_density(monkeypatch):
    monkeypatch.setitem(registry.EQUATIONS, "acoustic", f"{__name__}:DENSE")


def write_dense(folder):
    """Write an input whose model file has a density, and return the path of the input."""
    folder.mkdir()
    model = true_model()
    dense = {**model.arrays, "rho": 0.5 * model["vp"]}
    write_model(folder / "true.h5", Model(model.grid, dense))
    changes = {
        "inversion.epochs": 2,
        "inversion.optimizer": {"name": "lbfgs", "step": 40.0},
        "inversion.precondition": {"illumination": 0.01, "smooth": 0.2},
        "wave.spacing": 30.0,
    }
    return write_input(folder, changes)


@pytest.mark.usefixtures("no_figures")
def test_arrays_that_are_not_inverted_are_ignored_or_constant(hpcfwi, tmp_path, monkeypatch):
    found = {}
    for name in ("ignored", "constant"):
        if name == "constant":
            ask_for_density(monkeypatch)
        path = write_dense(tmp_path / name)
        assert hpcfwi("run", path, "--quiet") == 0
        run = path.parent / "run"
        found[name], initial = (read_model(run / file) for file in ("model.h5", "initial.h5"))
        _, table = load_latest_checkpoint(run / "checkpoints")
        assert [*table["model"]] == ["vp"]
    assert [*found["ignored"].arrays] == ["vp"]
    np.testing.assert_array_equal(found["constant"]["vp"], found["ignored"]["vp"])
    np.testing.assert_array_equal(found["constant"]["rho"], initial["rho"])


def test_file_without_an_array_of_the_equation_is_refused(tmp_path, monkeypatch):
    ask_for_density(monkeypatch)
    config = load_config(write_input(tmp_path))
    with pytest.raises(InputError) as caught:
        prepare(config, Context.alone())
    assert caught.value.where == f"{tmp_path / 'true.h5'}, /rho"
    with pytest.raises(
        InputError, match=r"it has vp, expected vp, rho for wave.equation"
    ) as caught:
        prepared(tmp_path, DATASET)
    assert caught.value.where == "model.dataset: dome-section"


def test_parameter_of_a_stage_that_the_equation_lacks_is_refused(tmp_path):
    with pytest.raises(InputError, match=r'found rho, but wave.equation = "acoustic"') as caught:
        prepared(tmp_path, {"stage": [{}, {"inversion": {"parameters": ["rho"]}}]})
    assert caught.value.where == "stage.2.inversion.parameters"


ELASTIC = {"wave.equation": "elastic", "inversion.parameters": ["vp", "vs"]}


def test_stage_with_an_empty_table_ties_no_parameters(tmp_path):
    changes = {
        **ELASTIC,
        "inversion.tied": {"rho": "gardner"},
        "inversion.bounds": {"vp": [1400.0, 5000.0], "rho": [1000.0, 3000.0]},
        "stage": [{}, {"inversion": {"tied": {}}}, {}],
    }
    first, second, third = load_config(write_input(tmp_path, changes)).stages()
    assert first[1].inversion.changing == third[1].inversion.changing == ("vp", "vs", "rho")
    assert second[1].inversion.changing == ("vp", "vs")
    assert second[1].inversion.bounds_by_name.keys() == {"vp"}


@pytest.mark.parametrize(
    ("changes", "where", "words"),
    [
        (
            {"inversion.parametrization": "impedance"},
            "inversion.parametrization",
            '"impedance" depends on rho, which wave.equation = "acoustic" does not have',
        ),
        (
            {"inversion.tied": {"rho": "gardner"}},
            "inversion.tied",
            'found rho, but wave.equation = "acoustic" has vp',
        ),
        (
            {**ELASTIC, "inversion.parameters": ["vp"], "inversion.parametrization": "lame"},
            "inversion.parametrization",
            '"lame" changes vp and vs together, but inversion.parameters are vp',
        ),
        (
            {
                **ELASTIC,
                "model.network": {"kind": "siren"},
                "stage": [{}, {"inversion": {"parameters": ["vp"]}}],
            },
            "stage.2.inversion.parameters",
            "as in the other stages",
        ),
        (
            {**ELASTIC, "inversion.parametrization": "log", "model.network": {"kind": "siren"}},
            "inversion.parametrization",
            "found with model.network, whose weights are the unknowns",
        ),
    ],
    ids=["no density", "tied without density", "one velocity", "stages", "network"],
)
def test_unknowns_that_an_inversion_cannot_have_are_refused(tmp_path, changes, where, words):
    with pytest.raises(InputError) as caught:
        prepared(tmp_path, changes)
    assert caught.value.where == where
    assert words in caught.value.problem


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parameters": ["vp", "rho"], "tied": {"rho": "gardner"}}, "tied has rho, which is one"),
        ({"parameters": ["vs"], "tied": {"rho": "gardner"}}, "which follows vp"),
        ({"linear": True, "parametrization": "log"}, "linear = true requires parametrization"),
    ],
)
def test_contradictions_of_unknowns_are_refused(tmp_path, changes, words):
    keys = {f"inversion.{key}": value for key, value in changes.items()}
    with pytest.raises(InputError, match=words):
        load_config(write_input(tmp_path, keys))


@pytest.mark.parametrize(
    ("name", "possible", "impossible", "words"),
    [
        ("vp", 0.5, 0.0, r"of vp \(P velocity\) .* or not above 0 m/s\."),
        ("vs", 0.0, -0.5, r"of vs \(S velocity\) .* or below 0 m/s\."),
        ("delta", -0.2, -0.5, r"of delta .* or below -0.49\."),
    ],
)
def test_values_that_a_parameter_cannot_have_end_the_step(name, possible, impossible, words):
    first, low, too_low = (
        Model(GRID, {name: torch.full(GRID.shape, value)}) for value in (1.0, possible, impossible)
    )
    limits = Limits(first, {name: torch.zeros(GRID.shape, dtype=torch.bool)}, {})
    assert torch.equal(limits.apply(low)[name], low[name])
    with pytest.raises(StepFailure, match=words):
        limits.apply(too_low)
