"""Tests of `hpcfwi migrate`, which makes an image of reflectors in the starting model.

Its test on several ranks is in `test_ranks`.
"""

from __future__ import annotations

import os
import signal

import h5py
import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter1d

from hpcfwi.config import load_config
from hpcfwi.inversion.objective import Objective
from hpcfwi.inversion.preparation import prepare
from hpcfwi.model import Model
from hpcfwi.operators import Shots
from hpcfwi.operators.vectors import solve_normal
from hpcfwi.parallel.context import Context
from hpcfwi.plan.estimate import count_work
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.storage.models import read_model
from tests.inversion.examples import (
    N_SHOTS,
    WATER,
    prepare_alone,
    read_history,
    read_metric,
    read_vp,
    write_input,
)
from tests.undrawn import run_undrawn
from tests.wave.examples import relative

pytestmark = pytest.mark.usefixtures("no_figures")

KEYS = {
    "migration": {"iterations": 4},
    "output.checkpoint": 1,
    "wave.history": {"kind": "snapshots", "interval": 1, "format": "full"},
}


def image(run):
    with h5py.File(run / "image.h5") as file:
        return file["image"][...]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The directory of an uninterrupted migration."""
    return run_undrawn(write_input(tmp_path_factory.mktemp("migrated"), KEYS), migrates=True)


def test_iterations_reduce_the_misfit_and_improve_the_image(whole):
    told = read_history(whole)
    losses = [entry["loss"] for entry in told]
    assert len(told) == 4
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.5 * losses[0]
    assert told[0]["correlation"] > 0.2
    assert told[-1]["correlation"] > 1.8 * told[0]["correlation"]


def test_plan_counts_two_simulations_per_linearized_shot_and_three_per_product(whole):
    planned = count_work(prepare_alone(whole / "config.toml", migrates=True))
    # Exact sums take one more shot each
    assert planned.likely.count == 2 * (N_SHOTS + 1) + 4 * 3 * (N_SHOTS + 1)
    assert read_history(whole)[-1]["simulations"] == planned.likely.count


def test_status_names_the_image(hpcfwi, whole, capsys):
    assert hpcfwi("status", whole) == 0
    assert f"the result is {whole / 'image.h5'}" in capsys.readouterr().out


def test_migration_continues_and_draws_its_fit_where_the_changed_model_is_no_medium(
    hpcfwi, tmp_path
):
    """Traces can have any unit, and the change of the model scales with them."""
    path = write_input(tmp_path, {**KEYS, "migration": {"iterations": 1}})
    run = tmp_path / "run"
    assert hpcfwi("forward", path, "--to", tmp_path / "loud.h5") == 0
    with h5py.File(tmp_path / "loud.h5", "a") as file:
        file["data"][...] *= 1e4
    loud = write_input(tmp_path, {**KEYS, "survey": {"file": "loud.h5"}})
    once, twice = (("--set", f"migration.iterations={count}") for count in (1, 2))
    assert hpcfwi("migrate", loud, *once) == 0
    with h5py.File(run / "model.h5") as file:
        assert file["vp"][...].min() < 0.0
    assert np.isfinite(image(run)).all()
    assert hpcfwi("migrate", loud, *twice) == 0
    assert len(read_history(run)) == 2
    assert "is not drawn" not in (run / "log.txt").read_text()


def test_image_is_zero_where_the_model_is_fixed(whole):
    grid = read_model(whole / "initial.h5").grid
    with h5py.File(whole / "image.h5") as file:
        assert dict(file.attrs).keys() >= {"format", "version", "axes", "spacing", "origin"}
        assert file.attrs["epoch"] == 4
    found = image(whole)
    kept = int(WATER / grid.spacing[0])
    assert found.shape == grid.shape
    assert not found[:kept].any()
    assert found[kept + 1 :].any()


def test_migration_equals_conjugate_gradients_on_born_operators(hpcfwi, tmp_path):
    """Much damping leaves the first iteration without preconditioner; later ones weight depths."""
    keys = {**KEYS, "migration": {"iterations": 3, "illumination": 1e3}}
    path = write_input(tmp_path, keys)
    assert hpcfwi("migrate", path, "--quiet") == 0
    config = load_config(path).migrating()
    experiment = prepare(config, Context.alone())
    simulator = experiment.make_simulator()
    method = {**vars(simulator.method), "engine": "cpu"}
    shots = Shots(experiment.survey, experiment.initial.grid, **method)
    start = experiment.initial.as_tensors(torch.device("cpu"))
    free = torch.from_numpy(~experiment.fixed).double()
    born = shots.linearize(start)
    with GatherReader(tmp_path / "run" / "observed.h5", Context.alone()) as reader:
        observed = torch.from_numpy(reader.read(np.arange(N_SHOTS)))

    def descend(change, weights, steps):
        root = free * weights.sqrt()
        explained = born(Model(start.grid, {"vp": change.float()}))
        left = born.adjoint(observed - shots(start) - explained)

        def normal(x):
            found = born.normal(x.map(lambda part: (part * root).float()))
            return found.map(lambda part: part.double() * root)

        right = left.map(lambda part: part.double() * root)
        found = solve_normal(normal, Model(right.grid, dict(right.arrays)), 0.0, steps)
        return change + root * found["vp"]

    one = descend(torch.zeros_like(free), torch.ones_like(free), 1)
    bent = born.normal(Model(start.grid, {"vp": one.float()}))["vp"].double()
    sums = [gaussian_filter1d((one * each).sum(dim=1).numpy(), 8.0) for each in (bent, one)]
    curvature = sums[0] / sums[1]
    by_depth = torch.from_numpy(1.0 / (curvature / curvature.max() + 0.01))
    change = descend(one, by_depth[:, None].expand_as(free), 2)
    found = torch.from_numpy(read_vp(tmp_path / "run") - experiment.initial["vp"])
    assert relative(found, change) < 0.02


@pytest.mark.parametrize("call", [1, 2, 4])
def test_killed_migration_continues_to_the_same_bits(hpcfwi, tmp_path, whole, monkeypatch, call):
    path, run, calls = write_input(tmp_path, KEYS), tmp_path / "run", []
    work = Objective.evaluate

    def die_in_time(*args, **options):
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return work(*args, **options)

    child = os.fork()
    if child == 0:
        try:
            monkeypatch.setattr(Objective, "evaluate", die_in_time)
            hpcfwi("migrate", path)
        finally:
            os._exit(1)  # else the child would continue with the other tests
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    assert hpcfwi("migrate", path) == 0
    np.testing.assert_array_equal(read_vp(run), read_vp(whole))
    np.testing.assert_array_equal(image(run), image(whole))
    for key in ("loss", "correlation", "simulations"):
        assert read_metric(run, key) == read_metric(whole, key)


def test_migration_continues_with_more_iterations(hpcfwi, tmp_path, whole):
    for iterations in (1, 4):
        path = write_input(tmp_path, {**KEYS, "migration": {"iterations": iterations}})
        assert hpcfwi("migrate", path) == 0
    np.testing.assert_array_equal(read_vp(tmp_path / "run"), read_vp(whole))


def test_migration_can_use_a_batch_of_shots_per_iteration(hpcfwi, tmp_path):
    path = write_input(tmp_path, {**KEYS, "migration": {"iterations": 3, "batch": 5}})
    assert hpcfwi("migrate", path) == 0
    told = read_history(tmp_path / "run")
    assert [len(entry["shots"]) for entry in told] == [5, 5, 5]
    assert told[-1]["correlation"] > 0.2


def test_migration_does_not_need_an_inversion_section(hpcfwi, tmp_path, whole):
    keys = {**KEYS, "inversion": None, "migration": {"iterations": 4, "fixed_above": WATER}}
    path = write_input(tmp_path, keys)
    assert hpcfwi("migrate", path) == 0
    np.testing.assert_array_equal(image(tmp_path / "run"), image(whole))
    assert hpcfwi("show", tmp_path / "run") == 0
    assert (tmp_path / "run" / "image.png").exists()


def test_migration_without_its_section_is_refused_with_an_example(hpcfwi, tmp_path, capfd):
    assert hpcfwi("migrate", write_input(tmp_path)) == 2
    told = capfd.readouterr().err
    assert "migration: missing, expected a section [migration]" in told
    assert "iterations = 1" in told
    assert not (tmp_path / "run").exists()


def test_plan_and_check_distinguish_migration_and_inversion(hpcfwi, tmp_path, capsys):
    path = write_input(tmp_path, KEYS)
    assert hpcfwi("plan", path) == 0
    inversion = capsys.readouterr().out
    assert hpcfwi("plan", path, "--migrate") == 0
    migration = capsys.readouterr().out
    assert "5 epochs of 3 of 10 shots" in inversion
    assert "4 epochs of 10 of 10 shots" in migration
    assert hpcfwi("migrate", path, "--quiet") == 0
    assert hpcfwi("check", path, "--migrate") == 0
    assert hpcfwi("check", path) == 2, "the directory is that of a migration, not of an inversion"
    assert hpcfwi("plan", write_input(tmp_path, name="other"), "--migrate") == 2
    assert "expected a section [migration]" in capsys.readouterr().err
