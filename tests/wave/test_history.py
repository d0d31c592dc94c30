"""Tests of histories: sampling intervals, and the choice of what fits in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.survey import Spectrum
from hpcfwi.wave import Auto, Boundary, Recompute, Snapshots
from hpcfwi.wave.history import (
    KINDS,
    History,
    choose,
    kind_of,
    parse,
    sampled_steps,
    sampling_interval,
    sampling_offset,
)
from hpcfwi.wave.numerics import ricker
from tests.wave.examples import EXACT, relative, smooth_shots

DT = 1e-3


def test_automatic_interval_gives_the_gradient_within_1e_4() -> None:
    shots = smooth_shots()
    observed = replace(shots, vp=1.03 * shots.vp).acoustic()
    exact = shots.simulate(history=EXACT)
    residual = exact.data - observed
    expected = exact.backpropagate(residual).model["vp"]
    found = shots.simulate(history="auto").backpropagate(residual).model["vp"]
    assert sampling_interval(Auto(), shots.wavelet.numpy(), shots.dt, 1) > 10
    assert 0.0 < relative(found, expected) < 1e-4


def test_interval_beyond_the_nyquist_rate_gives_a_wrong_gradient() -> None:
    shots = smooth_shots()
    exact = shots.simulate(history=EXACT)
    expected = exact.backpropagate(exact.data).model["vp"]
    assert (
        relative(
            shots.simulate(history=Snapshots(28)).backpropagate(exact.data).model["vp"], expected
        )
        > 0.1
    )


def test_automatic_interval_of_a_white_wavelet_is_one() -> None:
    white = np.random.default_rng(0).normal(size=400)
    assert sampling_interval(Auto(), white, DT, 1) == 1


@given(st.floats(3.0, 60.0), st.integers(1, 8))
def test_automatic_interval_is_the_longest_for_the_band_of_the_wavelet(
    frequency: float, substeps: int
) -> None:
    wavelet = ricker(frequency, 1000, DT, delay=0.5)
    interval = sampling_interval(Auto(), wavelet, DT, substeps)
    nyquist_step = 0.5 / Spectrum.of(wavelet, DT).highest()
    step = DT / substeps
    assert interval * step <= nyquist_step * (1.0 + 1e-9)
    assert (interval + 1) * step > nyquist_step


def test_interval_follows_from_a_given_frequency() -> None:
    white = np.random.default_rng(0).normal(size=400)
    assert sampling_interval(Snapshots(frequency=50.0), white, DT, 1) == 10


def test_given_interval_is_used() -> None:
    assert sampling_interval(Snapshots(7), np.ones(10), DT, 3) == 7


@given(st.integers(0, 300), st.integers(1, 40))
def test_sampled_steps_begin_in_the_middle_of_the_first_interval(steps: int, interval: int) -> None:
    kept = [n for n in range(steps) if n % interval == sampling_offset(interval)]
    assert list(sampled_steps(steps, interval)) == kept


def test_gradient_of_a_silent_wavelet_is_zero() -> None:
    shots = smooth_shots(samples=50)
    silent = replace(shots, wavelet=0.0 * shots.wavelet).simulate(history="auto")
    assert not silent.backpropagate(silent.data + 1.0).model["vp"].any()


@pytest.mark.parametrize("name", ["auto", *KINDS])
def test_history_given_by_name_is_chosen_automatically(name: str) -> None:
    assert parse(name) == Auto(kind=None if name == "auto" else name)


def test_unknown_history_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match='"auto", "snapshots", "boundary", "recompute"'):
        parse("everything")


def footprint(history: History) -> int:
    """Return 30 bytes, plus 100 for snapshots, 80 for a perimeter or 10 per state."""
    if isinstance(history, Recompute):
        return 30 + 10 * history.states
    size = {"snapshots": 100, "boundary": 80}[kind_of(history)]
    return 30 + size * {"full": 4, "float16": 2, "int8": 1}[history.format] // 4


@pytest.mark.parametrize(
    ("memory", "chosen"),
    [
        (130, Snapshots(7)),
        (129, Snapshots(7, format="float16")),
        (79, Snapshots(7, format="int8")),
        (54, Recompute(7, states=2)),
        (40, Recompute(7, states=1)),
    ],
)
def test_fastest_history_that_fits_in_memory_is_chosen(memory: int, chosen: History) -> None:
    assert choose(Auto(7, exact=True), KINDS, memory, footprint) == chosen


def test_shorter_format_is_chosen_if_the_history_need_not_be_exact() -> None:
    assert choose(Auto(7), KINDS, 1000, footprint) == Snapshots(7, format="float16")
    shots = smooth_shots(samples=300)
    single = replace(shots, vp=shots.vp.float())
    for simulated, interval, format in (
        (single, None, "float16"),
        (single, 1, "full"),
        (shots, None, "full"),
    ):
        asked = Auto(interval, memory=10**9)
        assert simulated.simulate(history=asked).history.format == format


def test_requested_kind_of_history_is_made_to_fit() -> None:
    auto = Auto(7, kind="boundary", exact=True)
    assert choose(auto, KINDS, 110, footprint) == Boundary(7)
    assert choose(auto, KINDS, 109, footprint) == Boundary(7, format="float16")
    assert choose(Auto(7, kind="recompute"), KINDS, 99, footprint) == Recompute(7, states=6)


def test_error_without_a_fitting_history_names_the_needed_memory() -> None:
    with pytest.raises(MemoryError, match=r"needs 40 B .* 39 B .* fewer shots"):
        choose(Auto(7), KINDS, 39, footprint)


@pytest.mark.parametrize(
    ("kind", "kept", "found_and_expected"),
    [
        (Snapshots, {"interval": 0}, "interval is 0; expected a number of steps, 1 or more"),
        (Snapshots, {"interval": 1.5}, "interval is 1.5; expected a number of steps, 1 or more"),
        (Snapshots, {"frequency": -5.0}, "frequency is -5.0; expected a positive frequency"),
        (Snapshots, {"format": "float8"}, "format is 'float8'; expected one of full, float32, "),
        (Boundary, {"format": "float8"}, "format is 'float8'; expected one of full, float32, "),
        (Recompute, {"states": 1.5}, "states is 1.5; expected a number of states, 1 or more"),
    ],
)
def test_history_without_meaning_is_refused(
    kind: type[History], kept: dict[str, Any], found_and_expected: str
) -> None:
    with pytest.raises(ValueError, match=found_and_expected):
        kind(**kept)
