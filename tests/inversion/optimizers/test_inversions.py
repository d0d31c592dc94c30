"""Inversions with line searches: their number of simulations, and their continuation.

`tests.run.test_ranks` tests them on several ranks.
"""

from __future__ import annotations

import tomllib
from itertools import pairwise

import numpy as np
import pytest
import tomli_w

from hpcfwi.inversion import objective
from tests.inversion.examples import N_SHOTS, read_history, read_vp, true_model, write_input
from tests.ranks import ROOT, long_form

pytestmark = pytest.mark.usefixtures("no_figures")

ALL = {"inversion.batch": N_SHOTS, "inversion.bounds": [1400.0, 3200.0], "output.every": 99}
ADAM = {"name": "adam", "lr": 20.0, "eps": 1e-22}
SEARCHING = ("lbfgs", "ncg", "gauss-newton")
EACH = pytest.mark.parametrize("name", SEARCHING)


def changes(name, epochs, **others):
    optimizer = {"name": name, "step": 40.0}
    return {**ALL, "inversion.optimizer": optimizer, "inversion.epochs": epochs, **others}


def invert(hpcfwi, folder, changes):
    assert hpcfwi("run", write_input(folder, changes), "--quiet") == 0
    return read_history(folder / "run")


def test_line_search_methods_beat_adam_after_as_many_simulations(hpcfwi, tmp_path):
    """A loss is that of the model before the step, after the simulations of earlier steps."""
    adam = {**ALL, "inversion.optimizer": ADAM, "inversion.epochs": 14}
    *_, before, last = invert(hpcfwi, tmp_path / "adam", adam)
    for name, epochs in (("lbfgs", 6), ("ncg", 6), ("gauss-newton", 3)):
        found = invert(hpcfwi, tmp_path / name, changes(name, epochs))
        reached = [
            entry["loss"]
            for earlier, entry in pairwise(found)
            if earlier["simulations"] <= before["simulations"]
        ]
        assert reached[-1] < last["loss"]


@pytest.mark.long
def test_line_search_methods_need_fewer_simulations_on_small_input(hpcfwi, tmp_path):
    """Each epoch has all shots of inputs/small.toml. A loss is that before the epoch's step."""

    def run(optimizer, epochs):
        folder = tmp_path / optimizer["name"]
        folder.mkdir()
        tables = tomllib.loads((ROOT / "inputs" / "small.toml").read_text())
        tables["inversion"] |= {"optimizer": optimizer, "epochs": epochs, "sampling": "all"}
        del tables["inversion"]["batch"]
        tables["output"] = {"directory": str(folder / "run"), "every": 99}
        (folder / "input.toml").write_text(tomli_w.dumps(tables))
        assert hpcfwi("run", folder / "input.toml", "--quiet") == 0
        return read_history(folder / "run")

    *_, before, last = run({"name": "adam", "lr": 60.0, "eps": 1e-22}, 13)
    for name, epochs in (("lbfgs", 7), ("gauss-newton", 5)):
        found = run({"name": name, "step": 60.0}, epochs)
        at = next(n for n, entry in enumerate(found) if entry["loss"] <= last["loss"])
        assert found[at - 1]["simulations"] < before["simulations"]


def test_figures_of_an_epoch_change_only_the_number_of_simulations(hpcfwi, tmp_path):
    often = invert(hpcfwi, tmp_path / "often", changes("lbfgs", 3, **{"output.every": 1}))
    seldom = invert(hpcfwi, tmp_path / "seldom", changes("lbfgs", 3))
    assert often[-1]["simulations"] > seldom[-1]["simulations"]
    np.testing.assert_array_equal(
        read_vp(tmp_path / "often" / "run"), read_vp(tmp_path / "seldom" / "run")
    )


@EACH
def test_every_simulation_is_counted_and_logged(name, hpcfwi, tmp_path, monkeypatch):
    simulate, simulated = objective.evaluate_shots, []

    def counting(shots, *, direction, **keys):
        simulated.append(shots.numbers.size * (1 if direction is None else 2))
        return simulate(shots, direction=direction, **keys)

    monkeypatch.setattr(objective, "evaluate_shots", counting)
    found = invert(hpcfwi, tmp_path, changes(name, 3))
    counts = [entry["simulations"] for entry in found]
    assert counts[-1] == sum(simulated)
    took = [later - earlier for earlier, later in pairwise([0, *counts])]
    assert min(took) >= N_SHOTS
    log = (tmp_path / "run" / "log.txt").read_text()
    assert all(f"({each} simulations, compute" in log for each in took if each > N_SHOTS)


def test_search_reuses_last_evaluation_if_shots_stay_the_same(hpcfwi, tmp_path):
    *_, last = invert(hpcfwi, tmp_path, changes("lbfgs", 4, **{"inversion.sampling": "all"}))
    evaluations = (last["simulations"] - 1) / N_SHOTS
    assert 5 <= evaluations <= 6


@pytest.mark.parametrize("shots", [N_SHOTS, long_form(3)])
@EACH
def test_line_search_run_continues_to_the_bit(name, shots, hpcfwi, tmp_path):
    # Figures take simulations; both runs draw them after the second and the last epoch
    keys, parts = {"inversion.batch": shots, "output.every": 2}, tmp_path / "parts"
    whole = invert(hpcfwi, tmp_path / "whole", changes(name, 4, **keys))
    invert(hpcfwi, parts, changes(name, 2, **keys))
    found = invert(hpcfwi, parts, changes(name, 4, **keys))
    for key in ("loss", "model_error", "simulations"):
        assert [entry[key] for entry in found] == [entry[key] for entry in whole]
    np.testing.assert_array_equal(read_vp(parts / "run"), read_vp(tmp_path / "whole" / "run"))
    water = true_model()["vp"] == 1500.0
    assert (read_vp(parts / "run")[water] == 1500.0).all()
