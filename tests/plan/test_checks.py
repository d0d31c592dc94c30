"""Problems that would spoil a run are found before it starts, with the key and a remedy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import hpcfwi.survey
from hpcfwi.model import Grid, Model
from hpcfwi.plan.checks import check_experiment, check_water, time_to_floor_and_back
from hpcfwi.storage.models import write_model
from hpcfwi.survey import Spectrum, Survey
from hpcfwi.wave.numerics import ricker
from tests.inversion.bad_inputs import FILE_INSTEAD, write_given
from tests.inversion.examples import (
    N_RECEIVERS,
    N_SHOTS,
    prepare_alone,
    prepared,
    true_model,
    write_input,
)

# Without findings: sources and receivers are below the fixed cells, and waves have time to return.
SOUND = {
    "survey.sources.depth": 100.0,
    "survey.receivers.depth": 100.0,
    "survey.duration": 1.0,
    "survey.wavelet.delay": 0.2,
    "survey.wavelet.frequency": 6.0,
}


def findings_of(folder, changes=None):
    experiment = prepared(folder, {**SOUND, **(changes or {})})
    return check_experiment(experiment, experiment.survey.dt)


def test_sound_survey_gives_no_finding(tmp_path):
    assert findings_of(tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "severity", "where", "words"),
    [
        (
            {"survey.wavelet.frequency": 14.0},
            "warning",
            "model.spacing",
            ("a spacing of 20 m", "1500 m/s", "% of the wavelet's energy"),
        ),
        (
            {"survey.wavelet.frequency": 60.0},
            "error",
            "model.spacing",
            ("Give a spacing of",),
        ),
        (
            {"survey.wavelet.delay": 0.05},
            "warning",
            "survey.wavelet",
            ("begins at", "longer survey.wavelet.delay"),
        ),
        ({"survey.wavelet.delay": 0.96}, "warning", "survey.wavelet", ("ends at",)),
        (
            {"survey.sources.depth": 20.0},
            "note",
            "inversion.fixed_above",
            ("all sources lie", "60 m", "set to zero there"),
        ),
        (
            {"survey.receivers.depth": 60.0},
            "note",
            "inversion.fixed_above",
            ("all receivers lie",),
        ),
        (
            {"survey.receivers.depth": 40.0, "survey.sources.depth": 40.0},
            "note",
            "inversion.fixed_above",
            ("all sources and receivers lie",),
        ),
        (
            {
                "survey.sources.depth": 20.0,
                "inversion.fixed_above": None,
                "inversion.fixed": {"above_velocity": 1600.0},
            },
            "note",
            "inversion.fixed",
            ("all sources lie", "fixed cells down to 60 m", "otherwise give a lower velocity"),
        ),
        (
            {"wave.boundary": 2},
            "warning",
            "wave.boundary",
            ("absorbing boundary of 2 cells reflects", "10 cells or more"),
        ),
        ({"wave.boundary": 0}, "warning", "wave.boundary", ("without an absorbing boundary",)),
        (
            {"survey.duration": 0.4},
            "warning",
            "survey.duration",
            ("ends at 0.396 s", "is back only at", "Record"),
        ),
    ],
)
def test_fault_is_found_and_its_key_is_named(changes, severity, where, words, tmp_path):
    by_key = {finding.where: finding for finding in findings_of(tmp_path, changes)}
    assert by_key[where].severity == severity
    for word in words:
        assert word in str(by_key[where])


@pytest.mark.parametrize(("rows", "severity"), [(4, "warning"), (40, "error")])
def test_unresolved_waves_in_few_cells_are_a_warning(rows, severity, tmp_path):
    grid = Grid((41, 60), (20.0, 20.0), (0.0, 0.0))
    vp = np.full(grid.shape, 2500.0, np.float32)
    vp[:rows] = 500.0
    write_model(tmp_path / "true.h5", Model(grid, {"vp": vp}))
    found = findings_of(
        tmp_path, {"survey.wavelet.frequency": 12.0, "model.initial": {"file": "true.h5"}}
    )
    (spacing,) = [finding for finding in found if finding.where == "model.spacing"]
    assert spacing.severity == severity


def test_wavelet_outside_the_band_of_constant_quality_factors_is_reported(tmp_path):
    model = true_model()
    arrays = {"rho": 2000.0, "qp": 50.0}
    filled = {name: np.full(model.grid.shape, value, "f4") for name, value in arrays.items()}
    write_model(tmp_path / "true.h5", Model(model.grid, {**model.arrays, **filled}))
    changes = {"wave.equation": "viscoacoustic"}
    assert findings_of(tmp_path, changes) == []
    for band in ([0.1, 2.0], [30.0, 60.0]):
        (found,) = findings_of(tmp_path, {**changes, "wave.attenuation": {"band": band}})
        assert (found.severity, found.where) == ("warning", "wave.attenuation.band")
    *_, low, _, high, _ = found.remedy.split()
    wide = {"wave.attenuation": {"band": [float(low), float(high)]}}
    assert findings_of(tmp_path, {**changes, **wide}) == []


def test_recommended_spacing_removes_the_finding(tmp_path):
    changes = {"survey.wavelet.frequency": 14.0, "survey.dt": 0.002}
    (finding,) = findings_of(tmp_path, changes)
    spacing = float(finding.remedy.split()[4])
    assert 5.0 < spacing < 20.0, "finer, but not more than needed"
    assert findings_of(tmp_path, {**changes, "model.spacing": spacing}) == []


def test_finding_about_a_survey_in_a_file_names_the_file(tmp_path):
    write_given(tmp_path)
    experiment = prepared(tmp_path, FILE_INSTEAD)
    where = {finding.where for finding in check_experiment(experiment, 0.004)}
    assert str(tmp_path / "given.h5") in where, "a wavelet that lasts as long as the record"


def test_time_to_floor_and_back_uses_velocities_along_the_path(tmp_path):
    grid = Grid((41, 60), (20.0, 20.0), (0.0, 0.0))
    vp = np.full(grid.shape, 1600.0, np.float32)
    write_model(tmp_path / "true.h5", Model(grid, {"vp": vp}))
    start = {"model.initial": {"file": "true.h5"}, "survey.receivers.depth": 300.0}
    experiment = prepared(tmp_path, {**SOUND, **start})
    expected = 0.2 + (700.0 + 500.0) / 1600.0
    assert time_to_floor_and_back(experiment) == pytest.approx(expected, rel=1e-6)


def test_energy_above_a_frequency_matches_spectrum_of_ricker_wavelet():
    """Expected is the integral of x^4 exp(-2 x^2), x = f / peak, over that for all x."""
    dt, peak = 1e-3, 10.0
    wavelet = ricker(peak, 2000, dt, 1.0).astype(np.float32)
    x = np.linspace(0.0, 6.0, 60001)
    density = x**4 * np.exp(-2.0 * x**2)
    expected = density[x > 1.5].sum() / density.sum()
    assert Spectrum.of(wavelet, dt).energy_above(15.0) == pytest.approx(expected, rel=0.05)
    assert Spectrum.of(wavelet, dt).frequency_below(1.0 - expected) == pytest.approx(15.0, abs=0.3)


def test_check_water_stops_at_first_shot_with_receivers_in_free_cells(tmp_path, monkeypatch):
    experiment = prepared(tmp_path, {**SOUND, "survey.receivers.depth": 20.0})
    expected = list(check_water(experiment))
    experiment = replace(experiment, survey=experiment.survey.select(np.arange(N_SHOTS)))
    monkeypatch.setattr(hpcfwi.survey, "AT_A_TIME", N_RECEIVERS)
    counts, receiver_positions = [], Survey.receiver_positions
    monkeypatch.setattr(
        Survey, "receiver_positions", lambda s: counts.append(s.n_shots) or receiver_positions(s)
    )
    assert list(check_water(experiment)) == expected != []
    assert counts == [1] * N_SHOTS
    counts.clear()
    below = replace(experiment.survey, receivers=experiment.survey.receivers + 200.0)
    assert list(check_water(replace(experiment, survey=below))) == []
    assert counts == [1]


@pytest.mark.parametrize("section", ["inversion", "migration"])
def test_note_on_fixed_cells_of_a_migration_names_the_section_that_has_the_key(section, tmp_path):
    changes = {**SOUND, "migration.iterations": 1, "inversion.fixed_above": 150.0}
    if section == "migration":
        changes["migration.fixed_above"] = 200.0
    (note,) = check_water(prepare_alone(write_input(tmp_path, changes), migrates=True))
    assert note.where == f"{section}.fixed_above"


def test_points_belong_to_nearest_cells_also_outside_the_grid():
    points = np.array([[0.0, 1004.0], [19.0, 1016.0], [500.0, 1000.0]])
    cells = Grid((5, 7), (10.0, 10.0), (0.0, 1000.0)).cells_of(points)
    assert [c.tolist() for c in cells] == [[0, 2, 4], [0, 2, 0]]
