"""Picks of first breaks: reading, interpolation, and mutes by picks."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from hpcfwi.errors import InputError
from hpcfwi.inversion.conditioning import read_picks
from hpcfwi.report.text import read_metrics
from hpcfwi.survey import Survey
from tests.inversion.examples import N_RECEIVERS, N_SHOTS, prepared, write_input

X = np.arange(0.0, 500.0, 100.0)
SURVEY = Survey(
    np.array([[5.0, 0.0], [5.0, 200.0], [5.0, 400.0]]),
    np.column_stack([np.full(X.size, 10.0), X]),
    np.ones(200, np.float32),
    0.01,
)


def read(folder, text, survey=SURVEY):
    path = folder / "picks.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_picks(path, survey)


def times(picks, shot, survey=SURVEY):
    one = survey.select(np.array([shot]))
    return picks.find_times(one.sources[0], one.receivers[0])


NUMBERED = "shot receiver time\n1 4 0.4 # far\n1 0 0.3\n\n1 2 0.1\n0 1 0.2\n"
WRITTEN = [
    NUMBERED,
    "\ufeffSHOT, Receiver, time\r\n1, 4, 0.4\r\n1, 0, 0.3\r\n1, 2, 0.1\r\n0, 1, 0.2\r\n",
    "# by hand\ntime receiver_x source_x\n0.4 400 200\n0.3 0 200.4\n0.1 200 200\n0.2 99.5 0\n",
]


@pytest.mark.parametrize("text", WRITTEN)
def test_picks_are_interpolated_in_offset_on_each_side_of_the_source(text, tmp_path):
    picks = read(tmp_path, text)
    np.testing.assert_allclose(times(picks, 1), [0.3, 0.2, 0.1, 0.25, 0.4])
    np.testing.assert_allclose(times(picks, 0), [np.nan, 0.2, np.nan, np.nan, np.nan])
    assert np.isnan(times(picks, 2)).all(), "a shot without picks"


def test_picks_in_3d_may_differ_between_receivers_of_equal_offset(tmp_path):
    sources = np.array([[5.0, 0.0, 0.0]])
    receivers = np.array([[10.0, 0.0, 100.0], [10.0, 100.0, 0.0], [10.0, 60.0, 80.0]])
    survey = Survey(sources, receivers, np.ones(200, np.float32), 0.01)
    text = "source_x source_y receiver_x receiver_y time\n0 0 100 0 0.2\n0 0 0 100 0.4\n"
    picks = read(tmp_path, text, survey)
    np.testing.assert_allclose(times(picks, 0, survey), [0.2, 0.4, 0.3])


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", None, "it has no pick"),
        ("shot receiver time\n", None, "it has no pick"),
        ("1 2 0.1\n", 1, "expected the names of the columns: shot receiver time, or source_x"),
        ("shot receiver time\n1 2\n", 2, "expected 3 numbers: shot receiver time"),
        ("shot receiver time\n1 2 nan\n", 2, "expected 3 numbers"),
        ("shot receiver time\n1 2 0.1\n\n1 2 0.2\n", 4, "already has a pick"),
        ("shot receiver time\n0 5 0.1\n", 2, "expected 0 to 2 and 0 to 4"),
        ("shot receiver time\n0.5 1 0.1\n", 2, "Count both from 0"),
        ("shot receiver time\n1 2 150\n1 3 250\n", 2, "divide the times by 1000"),
        ("shot receiver time\n1 2 0.1\n1 1 2.5\n1 3 2500\n", 3, "Give picks of this survey"),
        ("source_x receiver_x time\n0 100 0.1\n0.2 0.1 0.1\n", 3, "receiver of this shot"),
        ("source_x receiver_x time\n150 100 0.1\n", 2, "the nearest source of the survey is 50 m"),
    ],
)
def test_pick_that_does_not_fit_the_survey_is_refused_with_its_line(text, line, words, tmp_path):
    if "0.2 0.1 0.1" in text:
        text = text.replace("0.2 0.1", "0.2 50")
    with pytest.raises(InputError) as refused:
        read(tmp_path, text)
    assert words in str(refused.value)
    where = str(tmp_path / "picks.txt")
    assert refused.value.where == (where if line is None else f"{where}, line {line}")


def write_picks(folder, delay=0.0):
    """Write first breaks of the direct wave at every second receiver, for all shots."""
    folder.mkdir(exist_ok=True)
    experiment = prepared(folder)
    survey = experiment.survey
    rows = ["shot receiver time"]
    for shot in range(N_SHOTS):
        for receiver in range(0, N_RECEIVERS, 2):
            path = np.linalg.norm(survey.receivers[receiver] - survey.sources[shot])
            rows.append(f"{shot} {receiver} {path / 1500.0 + delay:.6f}")
    (folder / "picks.txt").write_text("\n".join(rows))
    return survey


def test_mute_begins_at_picks_and_zeros_traces_beyond_them(tmp_path):
    survey = write_picks(tmp_path)
    mute = {"picks": "picks.txt", "delay": 0.05, "taper": 0.0}
    experiment = prepared(tmp_path, {"data.mute": mute})
    shots = np.arange(N_SHOTS)
    observed = np.ones(survey.shape, np.float32)
    factors = experiment.conditioning().apply(observed, survey.select(shots)).factors
    last = N_RECEIVERS - 1  # beyond the last pick of shots whose source is to its left
    for shot in (0, 4, 5):
        for receiver in (0, 8, 14):
            path = np.linalg.norm(survey.receivers[receiver] - survey.sources[shot])
            kept = np.flatnonzero(factors[shot, receiver])
            assert kept[0] == np.floor((path / 1500.0 + 0.05) / survey.dt) + 1
            assert kept[-1] == survey.n_samples - 1
    assert not factors[0, last].any()
    assert factors[0, 7].any(), "interpolated between two picks"


@pytest.mark.usefixtures("no_figures")
def test_mute_by_picks_in_a_stage_is_read_next_to_the_input(hpcfwi, tmp_path, monkeypatch):
    write_picks(tmp_path / "there", 0.2)
    stages = [
        {"inversion": {"epochs": 1}},
        {"inversion": {"epochs": 1}, "data": {"mute": [{"picks": "picks.txt"}]}},
    ]
    changes = {"stage": stages, "inversion.sampling": "all", "inversion.optimizer.lr": 1e-6}
    path = write_input(tmp_path / "there", changes)
    monkeypatch.chdir(tmp_path)
    assert hpcfwi("run", path) == 0
    before, after = (row["loss"] for row in read_metrics(tmp_path / "there/run/metrics.jsonl"))
    assert 0.0 < after < 0.9 * before


def test_encoded_shots_cannot_have_picks(hpcfwi, tmp_path, capsys):
    write_picks(tmp_path)
    changes = {"data.mute": {"picks": "picks.txt"}, "inversion.encoding": "signs"}
    assert hpcfwi("check", write_input(tmp_path, changes)) == 2
    assert "data.mute (except `after`) depends on the offset" in capsys.readouterr().err


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(("late", "sign"), [(0.0, 1.0), (0.03, -1.0)])
def test_check_reports_delay_of_picks_to_simulated_arrivals_and_sign(
    late, sign, hpcfwi, tmp_path, capsys
):
    path = write_input(tmp_path)
    assert hpcfwi("forward", path) == 0
    observed = tmp_path / "run" / "observed.h5"
    rows = ["shot receiver time"]
    with h5py.File(observed, "a") as file:
        data = file["data"][...]
        for shot, receiver in np.ndindex(data.shape[:2]):
            trace = np.abs(data[shot, receiver])
            if trace.any():
                onset = (trace > 0.05 * trace.max()).argmax() * 0.004
                rows.append(f"{shot} {receiver} {onset + late:.4f}")
        file["data"][...] = sign * data
    (tmp_path / "field.h5").write_bytes(observed.read_bytes())
    (tmp_path / "picks.txt").write_text("\n".join(rows))
    keys = ("sources", "receivers", "wavelet", "dt", "duration")
    changes = {
        **{f"survey.{key}": None for key in keys},
        "survey.file": "field.h5",
        "model.initial": {"smooth": 5.0},
        # A mute that ends after the pick must not move the simulated arrival
        "data.mute": {"picks": "picks.txt", "delay": 0.05},
    }
    capsys.readouterr()
    path = write_input(tmp_path, changes)
    assert hpcfwi("check", path, "--output", tmp_path / "check") == 0
    (output,) = [line for line in capsys.readouterr().out.splitlines() if "picks in" in line]
    assert (
        f"of these traces are {1000 * late:.0f} ms later than the first simulated arrivals"
        in output
    )
    assert output.endswith(f"the opposite in {0 if sign > 0 else 100} %")


@pytest.mark.usefixtures("no_figures")
def test_check_warns_of_picks_off_by_more_than_a_period(hpcfwi, tmp_path, capsys):
    write_picks(tmp_path, 0.25)
    mute = {"picks": "picks.txt", "keep": "above"}
    assert hpcfwi("check", write_input(tmp_path, {"data.mute": mute})) == 0
    output = capsys.readouterr().out
    assert "data.mute.picks" in output
    assert "later than the first simulated arrivals" in output
