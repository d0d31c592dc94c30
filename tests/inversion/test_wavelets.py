"""Estimation of wavelets from observed data."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from scipy.signal import hilbert

from hpcfwi.errors import InversionFailure
from hpcfwi.inversion.wavelets import (
    CrossSpectra,
    Estimate,
    GivenWavelet,
    Optimize,
    WaveletEstimate,
    check_estimates,
    give_phase,
)
from hpcfwi.wave.numerics import ricker
from tests.inversion.bad_inputs import FILE_INSTEAD
from tests.inversion.examples import N_SAMPLES, write_input

N, DT = 300, 0.004
RIGHT = ricker(8.0, N, DT, 0.15).astype(np.float32)
GUESS = (0.3 * ricker(9.0, N, DT, 0.2)).astype(np.float32)


def record(wavelet, seed=0, receivers=6):
    """Return traces of a few random reflections."""
    earth = np.zeros((receivers, N))
    generator = np.random.default_rng(seed)
    for trace in earth:
        trace[generator.integers(20, 150, 5)] = generator.standard_normal(5)
    return np.stack([np.convolve(trace, wavelet)[:N] for trace in earth]).astype(np.float32)


def difference(found, expected=RIGHT):
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


def test_emitted_wavelet_is_estimated_from_a_guess():
    estimate = Estimate(damping=1e-6)
    products = CrossSpectra.of(record(GUESS), record(RIGHT))
    assert difference(estimate.estimate(GUESS, products, DT)) < 0.02
    assert difference(GUESS) > 0.5


def test_estimate_from_several_shots_averages_noise():
    generator = np.random.default_rng(1)
    single, several = [], None
    for seed in range(20):
        observed = record(RIGHT, seed)
        observed += generator.standard_normal(observed.shape) * observed.std()
        products = CrossSpectra.of(record(GUESS, seed), observed.astype(np.float32))
        single.append(difference(Estimate().estimate(GUESS, products, DT)))
        several = products if several is None else several + products
    assert difference(Estimate().estimate(GUESS, several, DT)) < 0.4 * np.mean(single)


def test_nonfinite_traces_do_not_count():
    simulated, observed = record(GUESS), record(RIGHT)
    expected = CrossSpectra.of(simulated[1:], observed[1:])
    observed[0, 7] = np.nan
    np.testing.assert_array_equal(CrossSpectra.of(simulated, observed).cross, expected.cross)


def test_zero_traces_leave_the_wavelet_unchanged():
    nothing = CrossSpectra.of(np.zeros((2, N), np.float32), np.zeros((2, N), np.float32))
    np.testing.assert_array_equal(Estimate().estimate(GUESS, nothing, DT), GUESS)


def find(emitted, **keys):
    """Return the estimate from traces of an emitted wavelet."""
    products = CrossSpectra.of(record(GUESS), record(emitted))
    return Estimate(damping=1e-6, **keys).estimate(GUESS, products, DT)


def turn(wavelet, angle):
    """Return a wavelet whose phase is rotated by an angle in radians."""
    return (np.real(hilbert(wavelet) * np.exp(1j * angle))).astype(np.float32)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_zero_phase_wavelet_is_found_with_its_time_and_sign(sign):
    emitted = sign * ricker(8.0, N, DT, 0.1513).astype(np.float32)
    assert difference(find(emitted, phase="zero"), emitted) < 0.03


def test_zero_phase_wavelet_is_symmetric_for_any_emitted_phase():
    found, delay = give_phase(turn(RIGHT, 1.0).astype(np.float64), "zero")
    centre = round(delay)
    # Shifted so that the centre is on a sample
    turns = np.exp(2j * np.pi * np.fft.rfftfreq(N) * (delay - centre))
    around = np.fft.irfft(np.fft.rfft(found) * turns, N)[centre - 25 : centre + 26]
    assert difference(around, around[::-1]) < 0.01
    amplitudes = (np.abs(np.fft.rfft(w)) for w in (found, RIGHT))
    assert difference(*amplitudes) < 0.05


def test_minimum_phase_wavelet_is_unchanged():
    decay = np.exp(-np.arange(N) / 6.0) * np.cos(2.0 * np.pi * 8.0 * DT * np.arange(N))
    emitted = np.roll(decay, 30).astype(np.float32)
    found, began = give_phase(emitted.astype(np.float64), "minimum")
    assert began == pytest.approx(30.0, abs=0.1)
    assert difference(found, emitted) < 0.05


def test_minimum_phase_wavelet_begins_early_and_keeps_amplitudes():
    found, began = give_phase(RIGHT.astype(np.float64), "minimum")
    start = int(began)
    late = np.abs(RIGHT).argmax()
    assert start < late
    assert np.sum(found[: start - 2] ** 2) < 1e-2 * np.sum(found**2)
    amplitudes = (np.abs(np.fft.rfft(w)) for w in (found, RIGHT))
    assert difference(*amplitudes) < 0.05


@pytest.mark.parametrize("phase", ["free", "zero", "minimum"])
def test_estimated_wavelet_is_not_longer_than_given_length(phase):
    found = find(RIGHT, phase=phase, length=0.2)
    there = np.flatnonzero(found)
    assert there[-1] - there[0] < 0.2 / DT
    assert np.sum(found**2) > 0.95 * np.sum(find(RIGHT, phase=phase) ** 2)


def test_taper_brings_a_wavelet_to_zero_within_its_length():
    plain, tapered = (find(RIGHT, length=0.2, **keys) for keys in ({}, {"taper": 0.04}))
    there = np.flatnonzero(plain)
    inner = slice(there[0] + 10, there[-1] - 9)
    np.testing.assert_array_equal(tapered[inner], plain[inner])
    edge = np.abs(tapered[there[0] : there[0] + 10]) / np.abs(plain[there[0] : there[0] + 10])
    assert (np.diff(edge) > 0.0).all()
    assert edge[0] < 0.01


def test_estimate_is_due_at_first_epoch_and_at_given_interval():
    assert [Estimate().is_due(place) for place in range(4)] == [True, False, False, False]
    assert [Estimate(every=2).is_due(place) for place in range(4)] == [True, False, True, False]
    assert not GivenWavelet().is_due(0)


def test_estimate_of_a_shot_is_due_if_missing_or_old():
    found = np.array([0, 1, 4, 6])
    assert Estimate(per="shot").find_due(7, found).tolist() == [True, False, False, False]
    assert Estimate(per="shot", every=3).find_due(7, found).tolist() == [True, True, True, False]


def test_shots_without_an_estimate_get_the_mean_of_the_others():
    several = WaveletEstimate.unknown(3, 2).having(
        np.array([2, 0]), np.array([[3.0, 1.0], [1.0, 3.0]], np.float32), 4
    )
    assert several.epochs.tolist() == [4, 0, 4]
    np.testing.assert_array_equal(several.complete(), [[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]])
    assert WaveletEstimate(GUESS).complete() is GUESS


@pytest.mark.parametrize(("value", "what"), [(0.0, "zero"), (np.nan, "not finite")])
def test_zero_or_nonfinite_estimate_is_an_error_that_names_the_shot(value, what):
    found = np.stack([GUESS, np.full_like(GUESS, value)])
    with pytest.raises(
        InversionFailure, match=f"wavelet of shot 7 is {what}.* silent.*leave out such"
    ):
        check_estimates(found, ["shot 3", "shot 7"])
    check_estimates(found[:1], ["the survey"])


def test_wavelet_step_is_a_fraction_of_peak_of_first_wavelet():
    gradient = np.linspace(-1e-20, 2e-20, N)
    first = Optimize(step=0.1).step(WaveletEstimate(GUESS), gradient)
    unit = np.abs(GUESS).max()
    np.testing.assert_allclose(first.wavelet, GUESS - 0.1 * unit * gradient / 2e-20, atol=1e-7)
    further = Optimize(step=0.1).step(first, gradient)
    np.testing.assert_allclose(
        further.wavelet, GUESS - 0.2 * unit * gradient / 2e-20, atol=1e-6 * unit
    )


def test_wavelet_step_has_only_frequencies_of_the_gradient():
    gradient = np.sin(2.0 * np.pi * 10 * np.arange(N) / N)
    estimated = WaveletEstimate(np.zeros(N, np.float32) + 1.0)
    for k in range(5):
        estimated = Optimize(step=0.1).step(estimated, (-1.0) ** k * (1.0 + k) * gradient)
    change = np.abs(np.fft.rfft(estimated.wavelet - 1.0))
    others = np.arange(change.size) != 10
    assert change[others].max() < 1e-5 * change.max()


def test_zero_gradient_leaves_the_wavelet_unchanged():
    estimated = Optimize().step(WaveletEstimate(GUESS), np.zeros(N))
    np.testing.assert_array_equal(estimated.wavelet, GUESS)


def test_state_of_wavelet_steps_survives_a_checkpoint():
    estimated = Optimize().step(WaveletEstimate(GUESS), RIGHT.astype(np.float64))
    kept = WaveletEstimate.from_table(estimated.to_table())
    one, other = (Optimize().step(e, GUESS.astype(np.float64)) for e in (estimated, kept))
    np.testing.assert_array_equal(one.wavelet, other.wavelet)


@pytest.fixture
def right(hpcfwi, tmp_path):
    """Write data to true/run/observed.h5 with a wrong wavelet, and return the right one."""
    assert hpcfwi("forward", write_input(tmp_path / "true")) == 0
    with h5py.File(tmp_path / "true" / "run" / "observed.h5", "a") as file:
        emitted = file["wavelet"][...]
        file["wavelet"][...] = (1e3 * ricker(9.0, N_SAMPLES, 0.004, 0.2)).astype(np.float32)
    return emitted


def find_wavelet(hpcfwi, folder, changes, epoch=1):
    """Return the wavelet that an inversion of these data estimates last, in this epoch."""
    changes = {
        **FILE_INSTEAD,
        "survey.file": "../true/run/observed.h5",
        "inversion.epochs": 1,
        "inversion.batch": 10,
        "inversion.optimizer.lr": 1e-3,
        **changes,
    }
    assert hpcfwi("run", write_input(folder, changes)) == 0
    with h5py.File(folder / "run" / "wavelet.h5") as file:
        assert (file.attrs["epoch"], file.attrs["dt"], file.attrs["start"]) == (epoch, 0.004, 0.0)
        return file["wavelet"][...]


@pytest.mark.parametrize("encoding", ["none", "signs"])
@pytest.mark.usefixtures("no_figures")
def test_inversion_estimates_wavelet_from_observed_data(hpcfwi, right, tmp_path, encoding):
    changes = {
        "model.initial.smooth": 20.0,
        "inversion.wavelet": {"name": "estimate", "damping": 1e-5},
        "inversion.encoding": encoding,
    }
    assert difference(find_wavelet(hpcfwi, tmp_path / "unknown", changes), right) < 0.15


@pytest.mark.usefixtures("no_figures")
def test_file_without_a_wavelet_requires_an_estimate_in_all_stages(hpcfwi, right, tmp_path, capsys):
    with h5py.File(tmp_path / "true" / "run" / "observed.h5", "a") as file:
        file["wavelet"][...] = 0.0
    changes = {
        "model.initial.smooth": 20.0,
        "inversion.wavelet": {"name": "estimate", "damping": 1e-5},
    }
    assert difference(find_wavelet(hpcfwi, tmp_path / "unknown", changes), right) < 0.15
    known = {**FILE_INSTEAD, "survey.file": "../true/run/observed.h5"}
    assert hpcfwi("run", write_input(tmp_path / "known", known)) == 2
    assert 'set inversion.wavelet = "estimate" in all stages' in capsys.readouterr().err


@pytest.mark.usefixtures("no_figures")
def test_optimized_wavelet_is_better_than_a_damped_estimate(hpcfwi, right, tmp_path):
    """The model starts close to the truth, and is updated by tiny steps."""
    keys = {"furthest": 300.0, "damping": 0.05}
    changes = {"model.initial.smooth": 20.0, "inversion.epochs": 30, "output.every": 10}
    estimated, stepped = (
        find_wavelet(
            hpcfwi,
            tmp_path / wavelet["name"],
            {**changes, "inversion.wavelet": {**wavelet, **keys}},
            epoch,
        )
        for wavelet, epoch in (({"name": "estimate"}, 1), ({"name": "optimize", "step": 0.01}, 30))
    )
    assert difference(stepped, right) < 0.5 * difference(estimated, right)


@pytest.fixture(scope="module")
def strengths():
    """Return the strengths of the wavelets of ten shots, one of which is negative."""
    return np.where(np.arange(10) == 4, -1.0, np.linspace(0.5, 2.0, 10)).astype(np.float32)


def find_each(hpcfwi, folder, strengths, changes):
    """Return the estimates, and their epochs, of shots scaled by these strengths."""
    observed = folder.parent / "true" / "run" / "observed.h5"
    with h5py.File(observed, "a") as file:
        if "applied" not in file.attrs:
            file["data"][...] *= strengths[:, None, None]
            file.attrs["applied"] = True
    find_wavelet(hpcfwi, folder, changes)
    with h5py.File(folder / "run" / "wavelet.h5") as file:
        return file["wavelet"][...], file["epochs"][...]


@pytest.mark.usefixtures("no_figures")
def test_wavelet_of_each_shot_is_estimated_from_its_traces(hpcfwi, right, tmp_path, strengths):
    changes = {
        "model.initial.smooth": 20.0,
        "inversion.wavelet": {"name": "estimate", "damping": 1e-5, "per": "shot"},
    }
    found, epochs = find_each(hpcfwi, tmp_path / "each", strengths, changes)
    assert epochs.tolist() == [1] * 10
    for shot, strength in enumerate(strengths):
        assert difference(found[shot], strength * right) < 0.15
    changes["inversion.batch"] = 4
    some, epochs = find_each(hpcfwi, tmp_path / "some", strengths, changes)
    assert sorted(epochs) == [0] * 6 + [1] * 4
    np.testing.assert_array_equal(some, np.where(epochs[:, None], found, 0.0))


@pytest.mark.usefixtures("no_figures", "right")
def test_silent_shot_ends_a_run_that_estimates_its_wavelet(hpcfwi, tmp_path, capsys):
    with h5py.File(tmp_path / "true" / "run" / "observed.h5", "a") as file:
        file["data"][6] = 0.0
    changes = {**FILE_INSTEAD, "inversion.wavelet": {"name": "estimate", "per": "shot"}}
    changes |= {"survey.file": "../true/run/observed.h5", "inversion.batch": 10}
    assert hpcfwi("run", write_input(tmp_path / "silent", changes)) == 1
    assert "finds that the wavelet of shot 6 is zero; 1 of 10" in capsys.readouterr().err


@pytest.mark.usefixtures("no_figures", "right")
def test_wavelet_from_near_traces_does_not_depend_on_other_traces(hpcfwi, tmp_path):
    near, none_else, all_traces = (
        find_wavelet(
            hpcfwi,
            tmp_path / name,
            {"inversion.wavelet": {"name": "estimate", **keys}, "inversion.max_offset": most},
        )
        for name, keys, most in (
            ("near", {"furthest": 300.0}, None),
            ("none_else", {}, 300.0),
            ("all", {}, None),
        )
    )
    np.testing.assert_array_equal(near, none_else)
    assert difference(near, all_traces) > 0.01
