"""Tests of `hpcfwi migrate`, which makes an image of reflectors in the starting model.

Its test on several ranks is in `test_ranks`.
"""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter1d

from hpcfwi.config import load_config
from hpcfwi.inversion.preparation import prepare
from hpcfwi.model import Grid, Model
from hpcfwi.operators import Shots
from hpcfwi.operators.vectors import solve_normal
from hpcfwi.parallel.context import Context
from hpcfwi.plan.estimate import count_work
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.storage.models import read_model, write_model
from tests.inversion.examples import (
    N_SHOTS,
    WATER,
    prepare_alone,
    read_history,
    read_metric,
    read_vp,
    write_input,
)
from tests.ranks import messages
from tests.run.test_equations import write_elastic
from tests.undrawn import run_undrawn
from tests.wave.examples import relative

pytestmark = pytest.mark.usefixtures("no_figures")

KEYS = {
    "migration": {"iterations": 4},
    "output.checkpoint": 1,
    "wave.history": {"kind": "snapshots", "interval": 1, "format": "full"},
}


# The keys of images with elastic waves
TWO = {
    "survey.receivers.depth": 60.0,
    "survey.sources.count": 4,
    "model.initial": {"smooth": 60.0},
}


def image(run, name="image"):
    with h5py.File(run / "image.h5") as file:
        return file[name][...]


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


@pytest.mark.parametrize("sizes", [{"vp": 1.0}, {"vp": 1.0, "vs": 0.5}])
def test_migration_equals_conjugate_gradients_on_born_operators(hpcfwi, tmp_path, sizes):
    """Much damping leaves the first iteration without preconditioner; later ones weight depths."""
    section = {"iterations": 3, "illumination": 1e3, "parameters": [*sizes], "scale": sizes}
    keys = {**KEYS, "migration": section}
    path = write_input(tmp_path, keys)
    if "vs" in sizes:
        path = write_elastic(tmp_path, "elastic", **TWO, **keys)
    assert hpcfwi("migrate", path, "--quiet") == 0
    experiment = prepare(load_config(path).migrating(), Context.alone())
    method = {**vars(experiment.make_simulator().method), "engine": "cpu"}
    shots = Shots(experiment.survey, experiment.initial.grid, **method)
    start = experiment.initial.as_tensors(torch.device("cpu"))
    born = shots.linearize(start)
    with GatherReader(tmp_path / "run" / "observed.h5", Context.alone()) as reader:
        observed = torch.from_numpy(reader.read(np.arange(experiment.survey.n_shots)))
    free = {name: ~torch.from_numpy(experiment.kept(name)) for name in sizes}
    roots = Model(start.grid, {name: size * free[name].double() for name, size in sizes.items()})

    def multiply(one, other):
        return one.map(lambda array, factor: array * factor, other)

    def descend(change, weights, steps):
        root = multiply(roots, weights.map(torch.sqrt))

        def transpose(traces):
            return multiply(root, born.adjoint(traces))

        def normal(x):
            return transpose(born(multiply(root, x).map(torch.Tensor.float)))

        left = observed - shots(start) - born(change.map(torch.Tensor.float))
        return change + multiply(root, solve_normal(normal, transpose(left), 0.0, steps))

    def weigh(array, bent):
        sums = [gaussian_filter1d((array * e).sum(dim=1).numpy(), 8.0) for e in (bent, array)]
        curvature = np.maximum(sums[0] / sums[1], 0.0)
        by_depth = torch.from_numpy(1.0 / (curvature / curvature.max() + 0.01))
        return by_depth[:, None].expand_as(array)

    one = descend(roots * 0.0, roots.map(torch.ones_like), 1)
    weights = one.map(weigh, born.normal(one.map(torch.Tensor.float)))
    change = descend(one, weights, 2)
    result = read_model(tmp_path / "run" / "model.h5")
    for name in sizes:
        found = torch.from_numpy(result[name] - experiment.initial[name])
        assert relative(found, change[name]) < 0.02


@pytest.mark.parametrize("call", [1, 2, 4])
def test_killed_migration_continues_to_the_same_bits(hpcfwi, tmp_path, whole, run_and_die, call):
    path, run = write_input(tmp_path, KEYS), tmp_path / "run"
    run_and_die("migrate", path, "evaluate", call)
    assert hpcfwi("migrate", path) == 0
    np.testing.assert_array_equal(read_vp(run), read_vp(whole))
    np.testing.assert_array_equal(image(run), image(whole))
    for key in ("loss", "correlation", "simulations"):
        assert read_metric(run, key) == read_metric(whole, key)


# Typical changes of other sizes, so that the unknowns are not the parameters themselves
SIZES = {"vp": 100.0, "vs": 50.0}


def test_killed_migration_of_two_parameters_continues_to_the_same_bits(
    hpcfwi, tmp_path, run_and_die
):
    section = {"iterations": 3, "parameters": [*SIZES], "scale": SIZES}
    path = write_elastic(tmp_path, "elastic", **TWO, **{**KEYS, "migration": section})
    run, whole = tmp_path / "run", tmp_path / "whole"
    run_and_die("migrate", path, "evaluate", 4)
    for output in (run, whole):
        assert hpcfwi("migrate", path, "--quiet", "--output", output) == 0
    for name in ("image", "image_vs"):
        np.testing.assert_array_equal(image(run, name), image(whole, name))
        assert np.isfinite(image(run, name)).all()
    for key in ("loss", "correlation", "correlation_vs"):
        assert read_metric(run, key) == read_metric(whole, key)


def write_two_reflectors(folder, section):
    """Write a layer with higher P velocity on the left, and one with higher S velocity right of it.

    Returns the input, and cells around each layer.
    """
    grid = Grid((30, 60), (20.0, 20.0), (0.0, 0.0))
    z, x = np.meshgrid(grid.coordinates(0), grid.coordinates(1), indexing="ij")
    rock, around, models = z > WATER, {}, []
    for contrast in (1.0, 1.1):
        arrays = {"vp": np.where(rock, 2200.0, 1500.0), "vs": np.where(rock, 1270.0, 0.0)}
        for name, centre in (("vp", 360.0), ("vs", 840.0)):
            arrays[name][(np.abs(z - 320.0) <= 20.0) & (np.abs(x - centre) <= 120.0)] *= contrast
            around[name] = (np.abs(z - 320.0) <= 60.0) & (np.abs(x - centre) <= 140.0)
        arrays["rho"] = np.where(rock, 2000.0, 1000.0)
        models.append(Model(grid, arrays))
    folder.mkdir(exist_ok=True)
    for name, model in zip(("start.h5", "true.h5"), models, strict=True):
        write_model(folder / name, model)
    keys = {
        **KEYS,
        "migration": section,
        "model.initial": {"file": "start.h5"},
        "survey.sources.count": 4,
        "survey.receivers": {"count": 30, "depth": 60.0, "components": ["vz", "vx"]},
        "survey.duration": 0.8,
        "wave.equation": "elastic",
    }
    return write_input(folder, keys), around


def test_reflectors_appear_in_the_image_of_the_parameter_that_changes(hpcfwi, tmp_path, capsys):
    section = {"iterations": 2, "parameters": ["vp", "vs"]}
    path, around = write_two_reflectors(tmp_path, section)
    assert hpcfwi("migrate", path) == 0
    run = tmp_path / "run"
    images = {"vp": image(run), "vs": image(run, "image_vs")}
    for name, other in (("vp", "vs"), ("vs", "vp")):
        own, cross_talk = (np.sqrt((images[name][around[n]] ** 2).mean()) for n in (name, other))
        assert cross_talk < 0.35 * own
    last = read_history(run)[-1]
    assert last["correlation"] > 0.55
    assert last["correlation_vs"] > 0.5
    told = capsys.readouterr().out
    said = f"vp {last['correlation']:.3f}, vs {last['correlation_vs']:.3f}"
    assert f"(correlation {said}, " in told
    assert f"{said} at the end" in told
    assert hpcfwi("show", run) == 0
    assert (run / "image.png").exists()


def test_image_of_another_parameter_alone_has_its_own_name(hpcfwi, tmp_path):
    path, around = write_two_reflectors(tmp_path, {"iterations": 1, "parameters": ["vs"]})
    assert hpcfwi("migrate", path, "--quiet") == 0
    run = tmp_path / "run"
    with h5py.File(run / "image.h5") as file:
        assert [*file] == ["image_vs"]
    found = image(run, "image_vs")
    assert np.abs(found[around["vs"]]).max() > 2.0 * np.abs(found[around["vp"]]).max()
    assert read_history(run)[-1]["correlation"] > 0.5
    start, result = (read_model(run / name) for name in ("initial.h5", "model.h5"))
    np.testing.assert_array_equal(result["vp"], start["vp"])
    assert hpcfwi("show", run) == 0


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"parameters": ["vp", "vs"]}, ["migration.parameters", "found vs, but wave.equation"]),
        ({"parameters": ["speed"]}, ["migration.parameters.0", "expected 'vp', 'vs'"]),
        ({"parameters": []}, ["migration.parameters", "at least 1 item"]),
        ({"parameters": ["vp", "vp"]}, ["migration.parameters", "expected each of them once"]),
        ({"scale": {"rho": 50.0}}, ["migration", "scale has rho; expected only names"]),
        ({"batch": 1000}, ["migration.batch", "found 1000, but the survey has"]),
        ({"fixed_above": 1e5}, ["migration.fixed_above", "fixes the whole model"]),
        ({"fixed": {"above_velocity": 9e3}}, ["migration.fixed.above_velocity", "fixes the whole"]),
    ],
)
@pytest.mark.parametrize("inverts", [True, False])
def test_migration_with_impossible_values_is_refused(
    hpcfwi, tmp_path, section, words, inverts, capsys
):
    keys = {"migration": section} if inverts else {"inversion": None, "migration": section}
    assert hpcfwi("migrate", write_input(tmp_path, keys), "--quiet") == 2
    (message,) = messages(capsys.readouterr().err)
    assert all(word in message for word in words), message
    assert "inversion" not in message


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
