"""Inversions for the weights of a network."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcfwi.storage.checkpoint import load_latest_checkpoint
from hpcfwi.storage.models import read_model
from tests.inversion.examples import N_SHOTS, WATER, read_history, read_metric, read_vp, write_input
from tests.ranks import long_form

pytestmark = pytest.mark.usefixtures("no_figures")

SIREN = {"kind": "siren", "width": 24, "omega": 10.0, "fit": 200}
ALL = {"inversion.sampling": "all", "inversion.batch": None}
BOUNDS = {"inversion.bounds": [1400.0, 3200.0]}


def write(folder, network=SIREN, optimizer=None, name="input", **changes):
    optimizer = optimizer or {"name": "adam", "lr": 1e-3, "eps": 1e-22}
    keys = {"model.network": network, "inversion.optimizer": optimizer, **BOUNDS, **changes}
    return write_input(folder, keys, name)


def test_inversion_for_weights_reduces_misfit_and_keeps_water(hpcfwi, tmp_path):
    path = write(tmp_path, **ALL, **{"inversion.epochs": 12})
    assert hpcfwi("run", path) == 0
    found = read_metric(tmp_path / "run", "loss")
    assert found[-1] < 0.5 * max(found[:2])
    rows = int(WATER // 20.0) + 1
    assert (read_vp(tmp_path / "run")[:rows] == 1500.0).all()
    below = read_model(tmp_path / "run" / "initial.h5")["vp"][rows:]
    assert (read_vp(tmp_path / "run")[rows:] != below).mean() > 0.99


@pytest.mark.parametrize(
    ("network", "optimizer"),
    [
        (SIREN, {"name": "adam", "lr": 1e-3, "eps": 1e-22}),
        ({"kind": "cnn", "channels": 6, "fit": 50}, {"name": "lbfgs", "step": 1e-3}),
    ],
    ids=["siren", "cnn"],
)
def test_inversion_with_a_network_continues_from_a_checkpoint_to_the_bit(
    network, optimizer, hpcfwi, tmp_path
):
    path = write(tmp_path, network, optimizer, **{"inversion.epochs": 4})
    assert hpcfwi("run", path, "--output", tmp_path / "whole") == 0
    for epochs in (2, 4):
        settings = ("--set", f"inversion.epochs={epochs}")
        assert hpcfwi("run", path, *settings, "--output", tmp_path / "parts") == 0
    assert read_metric(tmp_path / "parts", "loss") == read_metric(tmp_path / "whole", "loss")
    np.testing.assert_array_equal(read_vp(tmp_path / "parts"), read_vp(tmp_path / "whole"))


def test_checkpoint_has_only_weights_as_tensors(hpcfwi, tmp_path):
    assert hpcfwi("run", write(tmp_path, **{"inversion.epochs": 2})) == 0
    _, state = load_latest_checkpoint(tmp_path / "run" / "checkpoints")
    weights = state["optimizer"]["weights"]
    assert set(weights) == {
        *(f"hidden.{k}.{what}" for k in range(4) for what in ("weight", "bias")),
        "last.weight",
        "last.bias",
    }
    assert all(type(array) is torch.Tensor for array in weights.values())


def test_stage_begins_with_weights_of_the_previous_stage(hpcfwi, tmp_path):
    stages = [{"inversion": {"epochs": 2}}, {"inversion": {"epochs": 1}}]
    still = {"name": "sgd", "lr": 1e-30}
    path = write(tmp_path, optimizer=still, stage=stages, **ALL)
    moving = {"name": "adam", "lr": 3e-3, "eps": 1e-22}
    stages[0]["inversion"]["optimizer"] = moving
    moved = write(tmp_path, optimizer=still, stage=stages, name="moved", **ALL)
    assert hpcfwi("run", path, "--output", tmp_path / "still") == 0
    assert hpcfwi("run", moved, "--output", tmp_path / "moved") == 0
    first, *_, last = read_metric(tmp_path / "still", "loss")
    assert last == first
    assert read_metric(tmp_path / "moved", "loss")[-1] != first


@pytest.mark.parametrize("name", ["lbfgs", long_form("ncg"), long_form("gauss-newton")])
def test_line_search_optimizers_update_weights_and_reuse_evaluations(name, hpcfwi, tmp_path):
    optimizer = {"name": name, "step": 1e-3}
    path = write(tmp_path, optimizer=optimizer, **ALL, **{"inversion.epochs": 3})
    assert hpcfwi("run", path, "--set", "output.every=99") == 0
    found = read_metric(tmp_path / "run", "loss")
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.9 * found[0]
    if name == "lbfgs":
        *_, last = read_history(tmp_path / "run")
        assert last["simulations"] <= 6 * N_SHOTS + 1


def test_network_of_one_value_per_cell_matches_inversion_without_network(hpcfwi, tmp_path):
    """The weights are the cells in units of their standard deviation."""
    network = {"kind": "tests.inversion.networks.own:Grid", "fit": 5000}
    keys = {"model.initial": {"linear": [2000.0, 1.0]}, **ALL, "inversion.epochs": 4}
    path = write(tmp_path, network, {"name": "lbfgs", "step": 0.1}, **keys)
    assert hpcfwi("run", path, "--output", tmp_path / "network") == 0
    initial = read_model(tmp_path / "network" / "initial.h5")["vp"]
    spread = float(initial[initial != 1500.0].std())
    plain = {"name": "lbfgs", "step": 0.1 * spread}
    path = write(tmp_path, None, plain, name="plain", **keys)
    assert hpcfwi("run", path, "--output", tmp_path / "plain") == 0
    found, expected = (
        read_metric(tmp_path / "network", "loss"),
        read_metric(tmp_path / "plain", "loss"),
    )
    assert expected[-1] < 0.4 * expected[0]
    assert found == pytest.approx(expected, rel=0.05)


def test_nonfinite_weights_end_the_run_with_an_error_on_the_network(hpcfwi, tmp_path, capsys):
    path = write(tmp_path, optimizer={"name": "sgd", "lr": 1e30})
    assert hpcfwi("run", path) == 2
    assert "of the network" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"inversion.prior": {"denoiser": "tv", "strength": 0.1}}, "inversion.prior exclude"),
        ({"inversion.precondition": {"depth": 1.0}}, "inversion.precondition exclude"),
        ({"inversion.linear": True}, "a linear inversion"),
        ({"model.network": {"kind": "siren", "depht": 3}}, "model.network.depht: unknown key"),
        ({"model.network": {"kind": "mlp"}}, '"siren", "cnn" or "module:Class"'),
        ({"model.network": {"kind": "nowhere:Net"}}, "model.network.kind"),
    ],
)
def test_keys_incompatible_with_a_network_are_refused(changes, words, hpcfwi, tmp_path, capsys):
    assert hpcfwi("run", write(tmp_path, **changes)) == 2
    assert words in capsys.readouterr().err
