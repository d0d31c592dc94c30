"""Tests of `hpcfwi forward --to`, which simulates the shots of a survey file into another file."""

from __future__ import annotations

import os
import signal

import h5py
import numpy as np
import pytest
import segyio

from hpcfwi.model import Model
from hpcfwi.operators.simulator import Simulator
from hpcfwi.storage.models import read_model, write_model
from tests.inversion.examples import (
    N_RECEIVERS,
    N_SAMPLES,
    N_SHOTS,
    read_vp,
    true_model,
    write_input,
)
from tests.ranks import run_ranks

# Receivers that move with the source; some of them are outside the model
SPREAD = {"count": 12, "depth": 40.0, "offset": -40.0, "spacing": 40.0}
NO_KEYS = dict.fromkeys(
    f"survey.{key}" for key in ("sources", "receivers", "wavelet", "dt", "duration")
)
RICKER = {"kind": "ricker", "frequency": 8.0, "delay": 0.12}


def traces_of(path):
    with h5py.File(path) as file:
        return file["data"][...]


@pytest.fixture(scope="module")
def field(tmp_path_factory):
    """A folder and the file of a survey simulated from keys, with spreads of different lengths."""
    folder = tmp_path_factory.mktemp("field")
    path = write_input(folder, {"survey.receivers": SPREAD}, "keys")
    run_ranks(1, ["-m", "hpcfwi", "forward", str(path)], warm=True)
    return folder, folder / "run" / "observed.h5"


def name_survey(folder, observed, changes=None, name="file"):
    given = {**NO_KEYS, "survey.file": str(observed), "model.initial": {"linear": [1500.0, 1.0]}}
    return write_input(folder, {**given, **(changes or {})}, name)


def test_survey_from_a_file_gives_the_same_bits_as_from_keys(hpcfwi, field):
    folder, observed = field
    before = observed.read_bytes()
    assert hpcfwi("forward", name_survey(folder, observed), "--to", folder / "again.h5") == 0
    with h5py.File(observed) as one, h5py.File(folder / "again.h5") as other:
        assert not one["mask"][...].all()
        for name in ("data", "sources", "receivers", "wavelet", "mask"):
            np.testing.assert_array_equal(one[name], other[name])
    assert observed.read_bytes() == before


def test_automatic_number_of_ranks_per_shot_needs_no_keys_of_the_inversion(hpcfwi, field):
    folder, observed = field
    missing = {"model.initial": {"file": "missing.h5"}, "wave.ranks_per_shot": "auto"}
    path = name_survey(folder, observed, missing, "auto")
    assert hpcfwi("forward", path, "--to", folder / "auto.h5") == 0


def test_stopped_simulation_continues_on_other_ranks_to_the_same_bits(hpcfwi, field, monkeypatch):
    folder, observed = field
    path, target, simulate = name_survey(folder, observed), folder / "late.h5", Simulator.simulate

    def stopped(*args, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        return simulate(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Simulator, "simulate", stopped)
        assert hpcfwi("forward", path, "--to", target) == 3
    assert not target.exists()
    words = ["-m", "hpcfwi", "forward", str(path), "--to", str(target)]
    done = run_ranks(2, words, warm=True)
    assert "Continuing with the simulation: " in done.stdout
    np.testing.assert_array_equal(traces_of(target), traces_of(observed))
    assert hpcfwi("forward", path, "--to", target) == 0, "the file exists already"


def test_file_of_other_data_is_not_overwritten(hpcfwi, field, capsys):
    folder, observed = field
    before = observed.read_bytes()
    faster = write_input(folder, {**NO_KEYS, "survey.file": str(observed)}, "faster")
    write_model(folder / "faster.h5", true_model().map(lambda vp: 1.1 * vp))
    words = ("--model", folder / "faster.h5", "--to", observed)
    assert hpcfwi("forward", faster, *words) == 2
    assert "these data are of another model or survey" in capsys.readouterr().err
    assert observed.read_bytes() == before


def test_model_option_replaces_the_model_of_the_input(hpcfwi, field):
    folder, observed = field
    path, target = name_survey(folder, observed), folder / "other.h5"
    assert hpcfwi("forward", path, "--model", folder / "run" / "none.h5", "--to", target) == 2
    model = read_model(folder / "true.h5").map(lambda vp: np.where(vp > 2900.0, 2500.0, vp))
    write_model(folder / "flat.h5", Model(model.grid, model.arrays))
    assert hpcfwi("forward", path, "--model", folder / "flat.h5", "--to", target) == 0
    by_key = name_survey(folder, observed, {"model.file": "flat.h5"}, "flat")
    assert hpcfwi("forward", by_key, "--to", folder / "by_key.h5") == 0
    np.testing.assert_array_equal(traces_of(target), traces_of(folder / "by_key.h5"))
    assert not np.array_equal(traces_of(target), traces_of(observed))


def test_starting_model_and_run_directory_are_not_used(hpcfwi, field):
    folder, observed = field
    changes = {"model.initial": {"file": "nowhere.h5"}, "output.directory": str(folder / "unused")}
    path = name_survey(folder, observed, changes, "apart")
    assert hpcfwi("forward", path, "--to", folder / "apart.h5") == 0
    assert not (folder / "unused").exists()
    np.testing.assert_array_equal(traces_of(folder / "apart.h5"), traces_of(observed))


def test_simulated_traces_can_be_written_as_seg_y(hpcfwi, field):
    folder, observed = field
    target = folder / "synthetic.sgy"
    assert hpcfwi("forward", name_survey(folder, observed), "--to", target) == 0
    with h5py.File(observed) as file:
        mask = file["mask"][...]
        expected, x = file["data"][...][mask], file["receivers"][..., 1][mask]
    with segyio.open(target, ignore_geometry=True) as file:
        np.testing.assert_array_equal(file.trace.raw[:], expected)
        scalar = file.attributes(segyio.TraceField.SourceGroupScalar)[:]
        found = file.attributes(segyio.TraceField.GroupX)[:] / np.abs(scalar)
        np.testing.assert_allclose(found, x, atol=1e-3)
    assert not (folder / "synthetic.sgy.h5").exists()
    assert hpcfwi("forward", name_survey(folder, observed), "--to", target) == 2


def test_wavelet_and_time_axis_of_the_input_replace_those_of_the_file(hpcfwi, field):
    folder, observed = field
    changes = {"survey.wavelet": RICKER, "survey.dt": 0.002, "survey.duration": 0.3}
    path = name_survey(folder, observed, changes, "own")
    assert hpcfwi("forward", path, "--to", folder / "own.h5") == 0
    keys = {**changes, "survey.receivers": SPREAD, "output.directory": str(folder / "own_run")}
    assert hpcfwi("forward", write_input(folder, keys, "own_keys")) == 0
    found = traces_of(folder / "own.h5")
    assert found.shape == (N_SHOTS, 12, 150)
    np.testing.assert_array_equal(found, traces_of(folder / "own_run" / "observed.h5"))


@pytest.mark.parametrize("changes", [{"survey.dt": 0.002}, {"survey.duration": 0.3}])
def test_time_axis_of_existing_data_cannot_be_changed(changes, hpcfwi, field, capsys):
    folder, observed = field
    given = {"survey.wavelet": RICKER, **changes}
    assert hpcfwi("check", name_survey(folder, observed, given, "axis")) == 2
    (key,) = changes
    assert f"hpcfwi: {key}: found" in capsys.readouterr().err
    assert hpcfwi("check", name_survey(folder, observed, changes, "alone")) == 2
    assert "belongs to a wavelet: give wavelet too" in capsys.readouterr().err


@pytest.mark.usefixtures("no_figures")
def test_inversion_of_a_file_without_a_wavelet_uses_that_of_the_input(hpcfwi, tmp_path):
    keys = write_input(tmp_path, {"inversion.epochs": 1})
    assert hpcfwi("run", keys) == 0
    with h5py.File(tmp_path / "run" / "observed.h5", "a") as file:
        file["wavelet"][...] = 0.0
    (tmp_path / "field.h5").write_bytes((tmp_path / "run" / "observed.h5").read_bytes())
    changes = {"survey.wavelet": RICKER, "inversion.epochs": 1, "model.initial": {"smooth": 80.0}}
    path = name_survey(tmp_path, tmp_path / "field.h5", changes)
    assert hpcfwi("run", path, "--output", tmp_path / "again") == 0
    found, expected = (read_vp(tmp_path / run) for run in ("again", "run"))
    np.testing.assert_array_equal(found, expected)


def test_seg_y_as_the_survey_is_refused_with_the_command_to_convert_it(hpcfwi, tmp_path, capsys):
    keys = write_input(tmp_path)
    assert hpcfwi("forward", keys) == 0
    line, gathers = tmp_path / "line.sgy", tmp_path / "line.h5"
    assert hpcfwi("convert", tmp_path / "run" / "observed.h5", line) == 0
    path = name_survey(tmp_path, line, {"survey.wavelet": RICKER})
    for command in (("check",), ("run",), ("forward", "--to", tmp_path / "new.h5")):
        capsys.readouterr()
        assert hpcfwi(command[0], path, *command[1:]) == 2
        told = capsys.readouterr().err
        assert f"`hpcfwi convert {line} {gathers}`" in told
    assert hpcfwi("convert", line, gathers) == 0
    path = name_survey(tmp_path, gathers, {"survey.wavelet": RICKER})
    assert hpcfwi("forward", path, "--to", tmp_path / "new.h5") == 0
    found = traces_of(tmp_path / "new.h5")
    assert found.shape == (N_SHOTS, N_RECEIVERS, N_SAMPLES)
    expected = traces_of(tmp_path / "run" / "observed.h5")
    np.testing.assert_allclose(found, expected, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("option", "name", "message"),
    [
        ("", "", "--to synthetic.h5"),
        ("--model", "true.h5", "--model: given without --to"),
        ("--to", "a.npy", "gathers file (.h5) or a SEG-Y file (.sgy)"),
    ],
    ids=["no target", "model without target", "target of another format"],
)
def test_forward_of_a_survey_file_needs_a_valid_target(
    option, name, message, hpcfwi, field, capsys
):
    folder, observed = field
    words = (option, folder / name) if option else ()
    assert hpcfwi("forward", name_survey(folder, observed), *words) == 2
    assert message in capsys.readouterr().err


def test_traces_that_seg_y_cannot_hold_are_refused_before_simulating(hpcfwi, field, capsys):
    folder, observed = field
    changes = {"survey.wavelet": RICKER, "survey.dt": 0.0035555, "survey.duration": 0.3}
    path = name_survey(folder, observed, changes, "odd")
    assert hpcfwi("forward", path, "--to", folder / "odd.sgy") == 2
    assert "whole microseconds" in capsys.readouterr().err
    assert not list(folder.glob("odd.sgy*"))


def test_seg_y_output_has_the_record_numbers_and_map_coordinates(hpcfwi, field, tmp_path):
    _, observed = field
    with h5py.File(observed) as file:
        heard, x, start = file["mask"].shape, file["receivers"][..., 1], file["sources"][:, 1]
    line = tmp_path / "line.h5"
    line.write_bytes(observed.read_bytes())
    with h5py.File(line, "a") as file:
        file["records"] = 900 + 2 * np.arange(N_SHOTS)
        zero = np.zeros_like(x)
        file["receiver_map"] = np.stack([4e5 + x, 6e6 + zero, 310.0 + zero, zero], axis=-1)
        file["source_map"] = np.stack([4e5 + start, 6e6 + 0 * start, 310 + 0 * start], axis=-1)[
            :, [0, 1, 2, 2]
        ] - [0, 0, 0, 306]
        file["channels"] = 5 + np.zeros(heard, dtype=int)
        file.attrs["start"] = 0.5
    assert hpcfwi("forward", name_survey(tmp_path, line), "--to", tmp_path / "a.sgy") == 0
    with h5py.File(line) as file, segyio.open(tmp_path / "a.sgy", ignore_geometry=True) as found:
        mask = file["mask"][...]
        divisor = -found.header[0][segyio.TraceField.SourceGroupScalar]
        for field_name, expected in (
            ("FieldRecord", np.repeat(file["records"][...], mask.sum(axis=1))),
            ("TraceNumber", np.full(mask.sum(), 5)),
            ("DelayRecordingTime", np.full(mask.sum(), 500)),
            ("GroupX", np.rint(divisor * file["receiver_map"][..., 0][mask])),
            ("GroupY", np.full(mask.sum(), round(6e6 * divisor))),
        ):
            values = found.attributes(getattr(segyio.TraceField, field_name))[:]
            np.testing.assert_array_equal(values, expected, err_msg=field_name)
