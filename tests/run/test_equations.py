"""Tests of inversions with equations other than the acoustic one, for several parameters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcfwi.model import Model
from hpcfwi.storage.models import read_images, read_model, write_model
from tests.inversion.examples import WATER, read_history, true_model, write_input
from tests.ranks import messages
from tests.run.test_ranks import Jobs
from tests.wave.media import FIRST_ORDER

pytestmark = pytest.mark.usefixtures("no_figures")

# Receivers on the sea floor, between grid points; a step too long for the scheme is divided.
KEYS: dict[str, Any] = {
    "survey.receivers.depth": 55.0,
    "wave.free_surface": True,
    "inversion.epochs": 4,
    "inversion.batch": 5,
    "output.every": 4,
    "output.checkpoint": 1,
}
INVERTED = {
    "elastic": ["vp", "vs"],
    "acoustic-density": ["vp", "rho"],
    "acoustic-vti": ["vp", "epsilon", "delta"],
    "elastic-vti": ["vp", "vs", "epsilon"],
    "elastic-tti": ["vp", "vs", "theta"],
    "viscoacoustic": ["vp", "qp"],
    "viscoelastic": ["vp", "vs"],
}
MODULI = {
    "inversion.parametrization": "lame",
    "inversion.tied": {"rho": "gardner"},
    "inversion.optimizer": {"name": "lbfgs", "step": 50.0},
}

COMPONENTS = {
    "survey.receivers.components": ["vz", "pressure", "strain"],
    "survey.receivers.direction": [0.0, 1.0],
    "survey.receivers.gauge": 25.0,
    "survey.receivers.first": 100.0,
    "survey.receivers.last": 800.0,
    "survey.sources.moment": [[1.0, 0.2], [0.2, 0.5]],
}
IN_TURN = {
    "inversion.bounds": {"vp": [1400.0, 2800.0], "vs": [300.0, 1600.0], "rho": [900.0, 2400.0]},
    "inversion.tied": {"rho": "gardner"},
    "stage": [
        {"inversion": {"parameters": ["vp"], "epochs": 2}},
        {"inversion": {"parameters": ["vs"], "epochs": 2}},
        {"inversion": {"parameters": ["vs", "vp"], "epochs": 1}},
    ],
}
# The keys that `hpcfwi migrate` sets for images of vp, epsilon and delta
IMAGES = {
    "inversion.sampling": "all",
    "inversion.linear": True,
    "inversion.optimizer": {"name": "cg", "balance": True},
    "inversion.precondition": {"illumination": 0.001},
}
# The equations and changes of the inputs of `programs.equations`
ON_RANKS: dict[str, tuple[str, dict[str, Any]]] = {
    "elastic": ("elastic", {}),
    "acoustic-density": ("acoustic-density", {}),
    "moduli and tied density": ("elastic", MODULI),
    "viscoelastic": ("viscoelastic", {}),
    "several components": ("elastic", COMPONENTS),
    "stages of parameters": ("elastic", IN_TURN),
    "images": ("acoustic-vti", IMAGES),
}


def write_medium(folder: Path, **changes: float) -> None:
    """Write the model of the examples with arrays for every equation, and no S waves in water."""
    folder.mkdir(parents=True, exist_ok=True)
    model = true_model()
    vp = model["vp"]
    rock = vp > 1500.0
    arrays = {
        "vp": vp,
        "vs": np.where(rock, 0.5 * vp, 0.0),
        "rho": np.where(rock, 310.0 * vp**0.25, 1000.0),
        "epsilon": np.where(rock, 0.1, 0.0),
        "delta": np.where(rock, 0.05, 0.0),
        "theta": np.where(rock, 30.0, 0.0),
        "qp": np.where(rock, 40.0, 1e4),
        "qs": np.where(rock, 25.0, 1e4),
    }
    for name, factor in changes.items():
        arrays[name] = factor * arrays[name]
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    write_model(folder / "true.h5", Model(model.grid, arrays))


def write_elastic(folder: Path, equation: str, **changes: Any) -> Path:
    """Write the input of an inversion with an equation, and its model."""
    write_medium(folder)
    names = INVERTED[equation]
    keys = {**KEYS, "wave.equation": equation, "inversion.parameters": names, **changes}
    return write_input(folder, keys)


def assert_refused(
    hpcfwi: Any, path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Assert that a run ends with exit code 2 and one message, which has these words."""
    assert hpcfwi("run", path, "--quiet") == 2
    (message,) = messages(capsys.readouterr().err)
    assert all(word in message for word in words), message


@pytest.mark.parametrize("equation", FIRST_ORDER)
def test_inversion_of_several_parameters_fits_the_data_and_keeps_the_others(
    hpcfwi: Any, tmp_path: Path, equation: str
) -> None:
    names, run = INVERTED[equation], tmp_path / "run"
    sizes = {"epsilon": 0.05, "delta": 0.05, "theta": 10.0, "qp": 20.0}
    scale = {name: sizes.get(name, 100.0) for name in names}
    path = write_elastic(tmp_path, equation, **{"inversion.scale": scale, "inversion.batch": 10})
    assert hpcfwi("run", path, "--quiet") == 0
    entries = read_history(run)
    assert entries[-1]["loss"] < 0.8 * entries[0]["loss"]
    assert all(f"model_error_{name}" in entries[-1] for name in names[1:])
    result, true = read_model(run / "model.h5"), read_model(tmp_path / "true.h5")
    water = true.grid.coordinates(0) <= WATER
    for name, array in result.arrays.items():
        if name in names:
            assert not np.array_equal(array[~water], true[name][~water])
        np.testing.assert_array_equal(array[water], true[name][water])


def test_elastic_run_from_few_states_has_the_bits_of_one_from_snapshots(
    hpcfwi: Any, tmp_path: Path
) -> None:
    path, models = write_elastic(tmp_path, "elastic"), []
    for name, table in (
        ("stored", '{kind = "snapshots", format = "full", interval = 2}'),
        ("repeated", '{kind = "recompute", states = 2, interval = 2}'),
    ):
        run = tmp_path / name
        setting = ("--set", f"wave.history={table}")
        assert hpcfwi("run", path, "--quiet", "--output", run, *setting) == 0
        models.append(read_model(run / "model.h5"))
    for name in INVERTED["elastic"]:
        np.testing.assert_array_equal(models[0][name], models[1][name])


def test_plan_and_run_count_the_samples_of_inverted_parameters_only(
    hpcfwi: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_elastic(tmp_path, "elastic", **{"inversion.epochs": 1})
    assert hpcfwi("plan", path, "--quick") == 0
    planned = re.search(r"at once: ([\d.]+ MB) of", capsys.readouterr().out)
    assert planned is not None
    assert hpcfwi("run", path) == 0
    assert f", {planned[1]} per shot" in capsys.readouterr().out


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of inversions on one, two and three ranks; those on three are continued."""
    jobs = Jobs(tmp_path_factory.mktemp("job"))
    for name, (equation, changes) in ON_RANKS.items():
        write_elastic(jobs.folder / "equations" / name, equation, **changes)
    jobs.run(4, "equations")
    return jobs.directory("equations")


@pytest.mark.parametrize("name", ON_RANKS)
def test_ranks_and_restarts_do_not_change_the_bits(on_ranks: Path, name: str) -> None:
    one, *others = (on_ranks / name / str(size) for size in (1, 2, 3))
    entries = read_history(one)
    assert entries[-1]["loss"] < entries[0]["loss"]
    results = [(read_model, "model.h5")]
    if name == "images":
        results.append((lambda path: read_images(path, INVERTED["acoustic-vti"])[0], "image.h5"))
    for read, file in results:
        expected = read(one / file)
        for other in others:
            found = read(other / file)
            for key, array in expected.arrays.items():
                np.testing.assert_array_equal(found[key], array)


@pytest.mark.parametrize("name", ["2_of_2", "2_of_4", "3_of_3"])
def test_ranks_that_simulate_a_shot_together_do_not_change_the_bits(
    on_ranks: Path, name: str
) -> None:
    folder = on_ranks / "several components"
    found, expected = (read_model(folder / run / "model.h5") for run in (name, "1"))
    for key, array in expected.arrays.items():
        np.testing.assert_array_equal(found[key], array)
    one, other = (read_history(folder / run) for run in ("1", name))
    assert [e["loss"] for e in other] == [e["loss"] for e in one]


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [("velocity", "adam"), ("impedance", "lbfgs"), ("lame", "gauss-newton"), ("log", "adam")],
)
def test_inversion_of_every_kind_of_unknowns_fits_the_data(
    hpcfwi: Any, tmp_path: Path, name: str, optimizer: str
) -> None:
    keys = {
        "inversion.parameters": ["vp", "vs"],
        "inversion.parametrization": name,
        "inversion.tied": {"rho": "gardner"},
        "inversion.bounds": {"vp": [1400.0, 2800.0], "rho": [1000.0, 2250.0]},
        "inversion.optimizer": {"name": optimizer, "lr" if optimizer == "adam" else "step": 50.0},
        "inversion.batch": 10,
    }
    assert hpcfwi("run", write_elastic(tmp_path, "elastic", **keys), "--quiet") == 0
    run = tmp_path / "run"
    entries = read_history(run)
    assert entries[-1]["loss"] < 0.5 * entries[0]["loss"]
    assert "model_error_rho" in entries[-1]
    start, result = read_model(run / "initial.h5"), read_model(run / "model.h5")
    water = start.grid.coordinates(0) <= WATER
    for key, array in result.arrays.items():
        np.testing.assert_array_equal(array[water], start[key][water])
    tied = start["rho"] * (result["vp"] / start["vp"]) ** 0.25
    np.testing.assert_allclose(
        result["rho"], np.where(water[:, None], start["rho"], tied.clip(1000.0, 2250.0)), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("equation", "names"), [("elastic", ["vp"]), ("viscoacoustic", ["vp", "qp"])]
)
def test_migration_finds_the_reflectors(
    hpcfwi: Any, tmp_path: Path, equation: str, names: list[str]
) -> None:
    keys = {"migration": {"iterations": 2, "parameters": names}, "model.initial": {"smooth": 60.0}}
    path = write_elastic(tmp_path, equation, **{**keys, "survey.receivers.depth": 30.0})
    assert hpcfwi("migrate", path, "--quiet") == 0
    images, _ = read_images(tmp_path / "run" / "image.h5")
    assert [*images.arrays] == names
    assert all(np.isfinite(image).all() and image.any() for image in images.arrays.values())
    entries = read_history(tmp_path / "run")
    assert entries[-1]["loss"] < entries[0]["loss"]
    assert entries[-1]["correlation"] > 0.3


@pytest.mark.parametrize(
    ("equation", "changes", "words"),
    [
        (
            "elastic",
            {"survey.receivers.components": ["pressure", "vy"]},
            ["survey.receivers.components", "has vy; expected some of pressure, vz, vx, strain"],
        ),
        (
            "acoustic-density",
            {"survey.sources.moment": [[1.0, 0.0], [0.0, 1.0]]},
            ["survey.sources.moment", "moment-zz; expected explosive, force-z, force-x"],
        ),
        (
            "acoustic-density",
            {"survey.sources.depth": 0.0},
            ["survey.sources.depth", "lie on the free surface", "emit nothing"],
        ),
        (
            "acoustic-density",
            {"survey.receivers.depth": 0.0},
            ["survey.receivers.depth", "the pressure, and so their traces, are zero"],
        ),
        (
            "elastic",
            {
                "survey.receivers.components": ["strain"],
                "survey.receivers.direction": [1.0, 1.0],
                "survey.receivers.gauge": 20.0,
            },
            ["first ends of gauges", "lie outside the model, the first at [47.929, -7.071] m"],
        ),
        ("elastic", {"wave.engine": "deepwave"}, ["wave.engine", "for the equation elastic"]),
        ("elastic", {"data.components": {"vz": 2.0}}, ["data.components", "survey has pressure"]),
        (
            "elastic",
            {"data.components": {"pressure": 0.0}},
            ["data.components", "found 0 for pressure, which are all components"],
        ),
        (
            "elastic",
            {"survey.receivers.depth": 0.0},
            ["survey.receivers.depth", "the pressure, and so their traces, are zero"],
        ),
        (
            "elastic",
            {"wave.attenuation": {"mechanisms": 2}},
            ["wave.attenuation", 'waves of wave.equation = "elastic" are not attenuated'],
        ),
        (
            "viscoelastic",
            {"wave.attenuation": {"band": [30.0, 3.0]}},
            ["wave.attenuation", "expected the smaller frequency first"],
        ),
        (
            "acoustic-density",
            {"model.initial": {"smooth": 80.0, "qp": {"constant": 50.0}}},
            ["model.initial.qp", "has no qp, only vp, rho"],
        ),
    ],
)
def test_keys_that_make_no_sense_for_the_equation_are_refused(
    hpcfwi: Any,
    tmp_path: Path,
    equation: str,
    changes: dict[str, Any],
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write_elastic(tmp_path, equation, **changes)
    assert_refused(hpcfwi, path, words, capsys)


def test_resolution_of_an_elastic_run_is_measured(hpcfwi: Any, tmp_path: Path) -> None:
    path = write_elastic(tmp_path, "elastic", **{"inversion.epochs": 1})
    assert hpcfwi("run", path, "--quiet") == 0
    assert hpcfwi("resolve", tmp_path / "run", "--quiet") == 0


def test_resolution_of_a_parameter_that_is_zero_everywhere_is_measured(
    hpcfwi: Any, tmp_path: Path
) -> None:
    changes = {"inversion.parameters": ["delta", "vp"], "survey.duration": 0.4}
    path = write_elastic(tmp_path, "elastic-vti", **changes)
    write_medium(tmp_path, delta=0.0)
    assert hpcfwi("resolve", path, "--quiet") == 0
    with h5py.File(tmp_path / "run" / "resolution.h5") as file:
        assert file.attrs["parameter"] == "delta"
        assert not file["values"][...].any()
        assert np.isfinite(file["width"][...]).any()


def test_vertical_forces_and_geophones_on_a_free_surface_are_inverted(
    hpcfwi: Any, tmp_path: Path
) -> None:
    path = write_elastic(
        tmp_path,
        "acoustic-density",
        **{
            "survey.sources.depth": 0.0,
            "survey.sources.kind": "force-z",
            "survey.receivers.depth": 0.0,
            "survey.receivers.components": ["vz"],
        },
    )
    assert hpcfwi("run", path, "--quiet") == 0
    entries = read_history(tmp_path / "run")
    assert 0.0 < entries[-1]["loss"] < entries[0]["loss"]


@pytest.mark.parametrize(
    ("equation", "changes", "words"),
    [
        ("elastic", {"vs": 1.5}, ["model.file", "vs is above vp / sqrt(2)", "wave.equation"]),
        ("acoustic-vti", {"delta": 3.0}, ["model.file", "epsilon is below delta"]),
        ("elastic-vti", {"delta": 40.0}, ["model.file", "vs, epsilon and delta contradict"]),
        ("elastic-tti", {"delta": 40.0}, ["model.file", "vs, epsilon and delta contradict"]),
        ("elastic-tti", {"theta": 7.0}, ["true.h5, /theta", "0 to 210", "expected"]),
        ("viscoacoustic", {"qp": 0.1}, ["true.h5, /qp", "4 to 1000", "expected 5"]),
        ("viscoelastic", {"vs": 1.41}, ["model.file", "vs is above vp / sqrt(2)"]),
    ],
)
def test_medium_in_which_waves_are_unstable_is_refused(
    hpcfwi: Any,
    tmp_path: Path,
    equation: str,
    changes: dict[str, float],
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write_elastic(tmp_path, equation)
    write_medium(tmp_path, **changes)
    assert_refused(hpcfwi, path, words, capsys)


def test_starting_model_has_quality_factors_of_its_own(hpcfwi: Any, tmp_path: Path) -> None:
    initial = {"smooth": 80.0, "qp": {"constant": 60.0}, "qs": {"file": str(tmp_path / "true.h5")}}
    keys = {"model.initial": initial, "inversion.epochs": 1}
    assert hpcfwi("run", write_elastic(tmp_path, "viscoelastic", **keys), "--quiet") == 0
    true, found = (read_model(tmp_path / name) for name in ("true.h5", "run/initial.h5"))
    rock = true["vs"] > 0.0
    np.testing.assert_array_equal(found["qp"], np.where(rock, 60.0, 1e4))
    np.testing.assert_array_equal(found["qs"], true["qs"])


@pytest.mark.parametrize("kind", ["smooth", "linear", "file"])
def test_starting_model_has_s_velocities_and_densities_of_their_own(
    hpcfwi: Any, tmp_path: Path, kind: str
) -> None:
    write_medium(tmp_path)
    true = read_model(tmp_path / "true.h5")
    write_model(tmp_path / "start.h5", Model(true.grid, {"vp": true["vp"] - np.float32(100.0)}))
    starts = {"smooth": 80.0, "linear": [1600.0, 1.5], "file": "start.h5"}
    initial = {kind: starts[kind], "vs": {"ratio": 2.2}, "rho": {"gardner": True}}
    path = write_elastic(tmp_path, "elastic", **{"model.initial": initial, "inversion.epochs": 1})
    assert hpcfwi("run", path, "--quiet") == 0
    found = read_model(tmp_path / "run" / "initial.h5")
    water = true["vs"] == 0.0
    np.testing.assert_array_equal(found["vs"][water], 0.0)
    np.testing.assert_array_equal(found["rho"][water], true["rho"][water])
    np.testing.assert_allclose(found["vs"][~water], found["vp"][~water] / 2.2, rtol=1e-6)
    np.testing.assert_allclose(found["rho"][~water], 310.0 * found["vp"][~water] ** 0.25, rtol=1e-6)


def test_model_with_p_velocities_alone_starts_an_elastic_inversion(
    hpcfwi: Any, tmp_path: Path
) -> None:
    path = write_elastic(tmp_path, "elastic", **{"inversion.epochs": 1})
    assert hpcfwi("forward", path, "--to", tmp_path / "line.h5") == 0
    true = read_model(tmp_path / "true.h5")
    write_model(tmp_path / "vp.h5", Model(true.grid, {"vp": true["vp"]}))
    own = ("sources", "receivers", "wavelet", "dt", "duration")
    changes: dict[str, Any] = dict.fromkeys(f"survey.{key}" for key in own)
    initial = {"smooth": 80.0, "vs": {"ratio": 2.0}, "rho": {"constant": 2100.0}}
    changes |= {"survey.file": "line.h5", "model.file": "vp.h5", "model.initial": initial}
    path = write_elastic(tmp_path, "elastic", **{"inversion.epochs": 1}, **changes)
    assert hpcfwi("run", path, "--quiet") == 0
    found = read_model(tmp_path / "run" / "initial.h5")
    water = true["vs"] == 0.0
    np.testing.assert_array_equal(found["vs"] == 0.0, water)
    np.testing.assert_array_equal(found["rho"], np.where(water, 1000.0, 2100.0))


def test_water_stays_a_fluid_where_no_cell_is_fixed(hpcfwi: Any, tmp_path: Path) -> None:
    # On the coarser grid of the waves, cells at the sea floor are means of water and rock.
    path = write_elastic(
        tmp_path,
        "elastic",
        **{
            "inversion.fixed_above": None,
            "wave.spacing": 40.0,
            "inversion.optimizer": {"name": "lbfgs", "step": 60.0},
            "inversion.batch": 10,
        },
    )
    assert hpcfwi("run", path, "--quiet") == 0
    entries = read_history(tmp_path / "run")
    assert entries[-1]["loss"] < 0.9 * entries[0]["loss"]
    result, initial = (
        read_model(tmp_path / "run" / f"{name}.h5")["vs"] for name in ("model", "initial")
    )
    np.testing.assert_array_equal(result == 0.0, initial == 0.0)
    assert (result != initial).any()


def test_steps_keep_vs_within_its_limit(hpcfwi: Any, tmp_path: Path) -> None:
    write_medium(tmp_path, vs=1.38)
    path = write_input(
        tmp_path,
        {
            **KEYS,
            "wave.equation": "elastic",
            "inversion.parameters": ["vp", "vs"],
            "inversion.optimizer.lr": 60.0,
        },
    )
    assert hpcfwi("run", path, "--quiet") == 0
    result = read_model(tmp_path / "run" / "model.h5")
    ratio = result["vs"] / result["vp"]
    assert 0.7 < ratio.max() <= 0.5**0.5
