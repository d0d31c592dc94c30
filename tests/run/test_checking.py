"""Tests of the checks of observed data, which warn before the first update."""

from __future__ import annotations

import os
import re
import shutil

import h5py
import numpy as np
import pytest
import torch

from hpcfwi.config import load_config
from hpcfwi.inversion.conditioning import Band
from hpcfwi.inversion.preparation import prepare
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.watch import StopRequest
from hpcfwi.report import style
from hpcfwi.run.session import simulate_observed
from hpcfwi.storage.models import write_model
from tests.inversion.bad_inputs import FILE_INSTEAD
from tests.inversion.examples import true_model, write_input

# The example with a starting model in which no arrival is off by half a period
GOOD = {"survey.wavelet.frequency": 6.0, "survey.wavelet.delay": 0.2, "inversion.epochs": 1}


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    """The file of the observed data of the example."""
    folder = tmp_path_factory.mktemp("observed")
    context = Context.alone(threads=2)
    experiment = prepare(load_config(write_input(folder, GOOD)), context)
    experiment.observed.parent.mkdir()
    with StopRequest(context) as stop:
        simulate_observed(experiment, context, stop, quiet=True)
    return experiment.observed


def write_damaged(folder, observed, damage, changes=None):
    """Write an input that names a copy of the data, changed by the function `damage`."""
    path = write_input(folder, {**GOOD, **FILE_INSTEAD, **(changes or {})})
    shutil.copy(observed, folder / "given.h5")
    with h5py.File(folder / "given.h5", "a") as file:
        damage(file)
    return path


def scale(file, factor):
    file["data"][:] *= np.float32(factor)


def make_white(file):
    data = file["data"]
    noise = np.random.default_rng(0).normal(size=data.shape)
    data[:] = noise * np.std(data)


def set_sample(file, value):
    file["data"][7, 11, 60] = value


def silence(file):
    file["data"][4] = 0.0


def kill_trace(file):
    file["data"][4, 12] = 0.0


def shift(file, samples):
    file["data"][:] = np.roll(file["data"], samples, axis=2)


def use_milliseconds(file):
    file.attrs["dt"] = 4.0


def use_kilometres(file):
    file["sources"][:] *= 1e-3
    file["receivers"][:] *= 1e-3


def raise_to_surface(file):
    file["sources"][:, 0] = 0.0


WARNED = {
    "amplitudes times 1e4": (
        lambda file: scale(file, 1e4),
        ("1e+04 times the simulated", "normalized"),
    ),
    "polarity flipped": (lambda file: scale(file, -1.0), ("opposite sign", "by -1")),
    "white noise": (make_white, ("the traces are noise", "noise")),
    "one spike": (lambda file: set_sample(file, 50.0), ("1 of 300 traces", "shot 7, receiver 11")),
    "one NaN": (lambda file: set_sample(file, np.nan), ("not finite", "shot 7, receiver 11")),
    "a dead shot": (silence, ("1 shots are silent, the first is shot 4", "data.edit")),
    "a dead trace": (kill_trace, ("dead, but their neighbours", "shot 4, receiver 12")),
    "a late trigger": (lambda file: shift(file, 18), ("72 ms later", "delay")),
}
REFUSED = {
    "zeros": (lambda file: scale(file, 0.0), {}, ("all observed traces in use are zero",)),
    "on the free surface": (raise_to_surface, {"wave.free_surface": True}, ("free surface",)),
    "km for m": (use_kilometres, {}, ("seem to be in km",)),
    "ms for s": (use_milliseconds, {}, ("in milliseconds: give 0.004",)),
}


def joined(text):
    return " ".join(text.split())


def test_good_data_are_summarised_and_drawn_without_a_warning(observed, hpcfwi, tmp_path, capsys):
    path = write_damaged(tmp_path, observed, lambda _: None)
    assert hpcfwi("check", path) == 0
    told = joined(capsys.readouterr().out)
    assert "no problems found" in told
    assert "their sign is the same" in told
    assert "of all 300 traces, 0 are not finite, 0 have a spike, 0 are dead, 0 are loud" in told
    assert "0 are loud; 0 silent" in told
    assert (tmp_path / "run" / "check.png").read_bytes().startswith(b"\x89PNG")


def test_findings_are_written_even_if_the_run_directory_takes_no_files(
    observed, hpcfwi, tmp_path, capsys
):
    path = write_damaged(tmp_path, observed, make_white)
    (tmp_path / "run" / "check.json").mkdir(parents=True)
    assert hpcfwi("check", path) == 2
    found = capsys.readouterr()
    assert "first arrivals" in found.out
    assert "check.json" in found.err


def test_check_into_a_directory_without_permission_is_refused_before_the_simulations(
    observed, hpcfwi, tmp_path, capsys, monkeypatch
):
    path, access = write_damaged(tmp_path, observed, make_white), os.access
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path and access(path, mode))
    assert hpcfwi("check", path) == 2
    found = capsys.readouterr()
    assert "cannot be written (Permission denied)" in found.err
    assert "first arrivals" not in found.out


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("name", WARNED)
def test_damaged_data_give_a_warning_before_the_first_update(
    name, observed, hpcfwi, tmp_path, capsys
):
    damage, words = WARNED[name]
    path = write_damaged(tmp_path, observed, damage)
    assert hpcfwi("check", path) == 0
    told = joined(capsys.readouterr().out)
    assert "WARNING" in told
    for word in words:
        assert word in told
    assert hpcfwi("run", path, "--set", "inversion.max_failed_shots=0.5") == 0
    log = (tmp_path / "run" / "log.txt").read_text()
    warnings = [line for line in log.splitlines() if " WARNING " in line]
    (warning,) = [line for line in warnings if words[0] in line]
    assert log.index(warning) < log.index("epoch 1")


@pytest.mark.usefixtures("no_figures")
def test_amplitudes_give_no_warning_if_the_misfit_ignores_them(observed, hpcfwi, tmp_path, capsys):
    path = write_damaged(tmp_path, observed, *WARNED["amplitudes times 1e4"][:1])
    assert hpcfwi("check", path, "--set", "inversion.misfit=correlation") == 0
    told = joined(capsys.readouterr().out)
    assert "times the simulated ones, their sign is the same" in told
    assert "no problems found" in told


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("command", ["check", "run", "plan"])
@pytest.mark.parametrize("name", REFUSED)
def test_impossible_data_and_units_are_refused(name, command, observed, hpcfwi, tmp_path, capsys):
    damage, changes, words = REFUSED[name]
    path = write_damaged(tmp_path, observed, damage, changes)
    assert hpcfwi(command, path) == 2
    message = capsys.readouterr().err
    for word in words:
        assert word in message
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("name", ["one spike", "one NaN", "a dead trace"])
def test_traces_removed_by_an_edit_give_no_warning(name, observed, hpcfwi, tmp_path, capsys):
    path = write_damaged(tmp_path, observed, WARNED[name][0], {"data.edit": {}})
    assert hpcfwi("check", path) == 0
    told = joined(capsys.readouterr().out)
    assert "no problems found" in told
    assert "0 are not finite, 0 have a spike, 0 are dead, 0 are loud; 0 silent" in told


def test_start_equal_to_the_true_model_is_refused(observed, hpcfwi, tmp_path, capsys):
    path = write_damaged(tmp_path, observed, lambda _: None, {"model.initial": {"file": "true.h5"}})
    assert hpcfwi("run", path) == 2
    assert "misfit is zero" in capsys.readouterr().err


@pytest.mark.usefixtures("no_figures")
def test_cycle_skipping_gives_a_warning_with_a_remedy(hpcfwi, tmp_path, capsys):
    """The starting model is a fifth too slow, water included."""
    slow = true_model() * 0.8
    write_model(tmp_path / "start.h5", slow.map(lambda array: array.astype(np.float32)))
    changes = {"model.initial": {"file": "start.h5"}, "survey.duration": 1.0}
    path = write_input(tmp_path, {**GOOD, **changes, "survey.wavelet.frequency": 8.0})
    for command in ("plan", "check"):
        assert hpcfwi(command, path) == 0
        told = joined(capsys.readouterr().out)
        assert "WARNING: model.initial: arrivals are off by more than half a period in" in told
        assert "Start with lower frequencies" in told
        assert "transport" in told


@pytest.mark.usefixtures("no_figures")
def test_stages_with_the_same_data_are_checked_together(observed, hpcfwi, tmp_path, capsys):
    stages = [
        {"name": "low", "data": {"band": [0.0, 5.0]}},
        {"name": "near", "data": {"offsets": [0.0, 400.0]}},
        {"name": "low again", "data": {"band": [0.0, 5.0]}, "inversion": {"epochs": 2}},
    ]
    path = write_damaged(tmp_path, observed, lambda file: scale(file, 1e4), {"stage": stages})
    assert hpcfwi("check", path) == 0
    told = joined(capsys.readouterr().out)
    assert told.count("in the starting model:") == 2
    assert told.index("stages low, low again:") < told.index("stage near:")
    assert told.count("of all 300 traces") == 1, "only for the first stage"
    assert told.count("times the simulated ones: the misfit") == 1, "once for all stages"
    for name in ("check_1.png", "check_2.png"):
        assert name in told
    assert hpcfwi("plan", path) == 0
    assert joined(capsys.readouterr().out).count("in the starting model:") == 3


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("command", ["check", "run", "plan"])
def test_error_in_a_later_stage_is_raised_before_anything_runs(
    command, observed, hpcfwi, tmp_path, capsys
):
    def make_slow(file):
        file["data"][:] = np.hanning(file["data"].shape[2]) ** 4

    stages = [{"name": "all"}, {"name": "high", "data": {"band": [14.0, 16.0]}}]
    path = write_damaged(tmp_path, observed, make_slow, {"stage": stages})
    assert hpcfwi(command, path) == 2
    message = capsys.readouterr().err
    assert "data.band, stage high: only a share of" in message
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_figures_of_a_stage_with_a_band_begin_before_the_shot(
    hpcfwi, tmp_path, capsys, monkeypatch
):
    axes = []

    def note(_, axis, *__):
        axes.append(axis)
        return style.new_figure(1.0, 1.0)

    monkeypatch.setattr("hpcfwi.report.figures.comparison_figure", note)
    stages = [{"data": {"band": [0.0, 5.0]}}, {}]
    path = write_input(tmp_path, {**GOOD, "stage": stages})
    config = load_config(path)
    lead = Band(0.0, 5.0, round(config.survey.duration / config.survey.dt), config.survey.dt).lead
    assert lead > 0.1
    assert hpcfwi("plan", path) == 0
    told = joined(capsys.readouterr().out)
    assert told.count(f"records begin {1e3 * lead:.3g} ms before the shot") == 1
    assert f"the last {1e3 * lead:.3g} ms of the observed data are not compared" in told
    assert hpcfwi("check", path) == 0
    assert [axis.start for axis in axes] == pytest.approx([-lead, 0.0])


def test_figure_gets_the_opposite_sign_and_the_picks_of_mutes(
    observed, hpcfwi, tmp_path, monkeypatch
):
    drawn = []

    def note(gathers, _, ratio, *__):
        drawn.append((gathers, ratio))
        return style.new_figure(1.0, 1.0)

    monkeypatch.setattr("hpcfwi.report.figures.comparison_figure", note)
    mute = {"data.mute": {"picks": "picks.txt", "delay": -1.0}}
    path = write_damaged(tmp_path, observed, lambda file: scale(file, -1.0), mute)
    rows = [f"{shot} {receiver} 0.125" for shot in range(10) for receiver in (0, 29)]
    (tmp_path / "picks.txt").write_text("\n".join(["shot receiver time", *rows]))
    assert hpcfwi("check", path) == 0
    ((gathers, ratio),) = drawn
    assert ratio == pytest.approx(-1.0, abs=0.3)
    for _, offsets, *_, picks in gathers:
        np.testing.assert_allclose(picks, np.full((1, len(offsets)), 0.125))


@pytest.mark.usefixtures("no_figures")
def test_data_of_deepwave_are_recognised_and_the_advised_factor_is_right(
    observed, hpcfwi, tmp_path, capsys
):
    """Deepwave does not divide sources by the area of a cell, and has the opposite sign."""
    deepwave = pytest.importorskip("deepwave")
    path = write_damaged(tmp_path, observed, lambda _: None)
    model = true_model()
    h = model.grid.spacing[0]
    with h5py.File(tmp_path / "given.h5", "a") as file:
        shots = file["sources"].shape[0]
        receivers = np.broadcast_to(file["receivers"][:], (shots, *file["receivers"].shape[-2:]))
        cells = [
            torch.from_numpy(np.rint(points / h).astype(np.int64))
            for points in (file["sources"][:][:, None], receivers.copy())
        ]
        emitted = np.broadcast_to(file["wavelet"][:], (shots, 1, file["data"].shape[-1]))
        *_, traces = deepwave.scalar(
            torch.from_numpy(model["vp"].astype(np.float32)),
            h,
            float(file.attrs["dt"]),
            source_amplitudes=torch.from_numpy(emitted.copy()),
            source_locations=cells[0],
            receiver_locations=cells[1],
            accuracy=4,
            pml_freq=6.0,
        )
        file["data"][:] = traces.numpy()
    assert hpcfwi("check", path) == 0
    told = joined(capsys.readouterr().out)
    assert "of Deepwave's scalar, whose sources" in told
    (factor,) = re.findall(r"multiply the data by (\S+) ", told)
    assert float(factor) == pytest.approx(-1.0 / h**2)
    with h5py.File(tmp_path / "given.h5", "a") as file:
        scale(file, float(factor))
    assert hpcfwi("check", path) == 0
    assert "no problems found" in joined(capsys.readouterr().out)
