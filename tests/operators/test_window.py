"""Windows of shots: the part of the model that is simulated, and the receivers in it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpcfwi.survey
from hpcfwi.model import Grid
from hpcfwi.operators.simulator import Aperture, group_shots
from hpcfwi.survey import Components, Survey

LINE = Grid((20, 200), (10.0, 25.0), (0.0, 1000.0))
VOLUME = Grid((20, 80, 200), (10.0, 20.0, 25.0), (0.0, -500.0, 1000.0))


def window(grid, aperture, source, receivers):
    survey = Survey(np.array([source]), np.array([receivers]), np.zeros(4, np.float32), 0.001)
    (found,) = aperture.find_windows(grid, survey)
    return found


def test_aperture_extends_from_outermost_source_or_receiver():
    found = window(LINE, Aperture(500.0), [5.0, 3000.0], [[50.0, 2500.0], [50.0, 2900.0]])
    assert found.cells == ((0, 20), (40, 101)), "2000 to 3500 m"
    assert found.receivers is None


def test_aperture_in_3d_extends_along_both_horizontal_axes():
    found = window(VOLUME, Aperture(300.0), [5.0, 0.0, 3000.0], [[5.0, 100.0, 2500.0]])
    assert found.cells == ((0, 20), (10, 46), (48, 93)), "y -300 to 400 m, x 2200 to 3300 m"


def test_window_contains_the_ends_of_the_gauge_of_a_fibre():
    places = np.array([[[5.0, 3000.0], [5.0, 3200.0]]])
    fibre = Components(("strain",), None, 1000.0, np.array([[0.0, 1.0], [1.0, 0.0]]))
    source, wavelet = np.array([[5.0, 3100.0]]), np.zeros(4, np.float32)
    survey = Survey(source, places, wavelet, 0.001, components=fibre)
    ((_, found),) = (each.cells for each in Aperture(250.0).find_windows(LINE, survey))
    assert found == (50, 111), "2250 to 3750 m: 250 m beyond 2500 to 3500 m"


def test_window_is_rounded_outwards_to_whole_cells():
    found = window(LINE, Aperture(500.0), [5.0, 3001.0], [[5.0, 2999.0]])
    assert found.cells[1] == (59, 102), "2499 to 3501 m"


def test_window_ends_at_edges_of_model():
    assert window(LINE, Aperture(500.0), [5.0, 1000.0], [[5.0, 1100.0]]).cells[1] == (0, 25)
    assert window(LINE, Aperture(1e6), [5.0, 3000.0], [[5.0, 1100.0]]).cells == ((0, 20), (0, 200))


def test_window_without_aperture_is_whole_model():
    assert window(LINE, Aperture(), [5.0, 3000.0], [[5.0, 1100.0]]).cells == ((0, 20), (0, 200))


@given(st.floats(1000.0, 5975.0), st.floats(0.01, 3000.0))
def test_window_holds_at_least_eight_cells_and_stencils_of_its_points(x, aperture):
    first, end = window(LINE, Aperture(aperture), [5.0, x], [[5.0, x]]).cells[1]
    cell = (x - 1000.0) / 25.0
    assert end - first >= 8
    assert first == 0 or first <= cell - 4
    assert end == 200 or end - 1 >= cell + 4


def test_receivers_beyond_max_offset_are_left_out_of_window():
    receivers = [[5.0, 1500.0], [5.0, 2000.0], [5.0, 4000.0], [5.0, 4001.0]]
    found = window(LINE, Aperture(500.0, max_offset=1000.0), [5.0, 3000.0], receivers)
    assert found.receivers.tolist() == [False, True, True, False], "1000 m itself is within"
    assert found.cells[1] == (20, 141), "1500 to 4500 m"
    assert np.array([1, 2, 3, 4])[found.trace_mask].tolist() == [2, 3]


def test_shots_without_aperture_keep_all_receivers_and_are_grouped():
    far = window(LINE, Aperture(max_offset=100.0), [5.0, 3000.0], [[5.0, 1100.0], [5.0, 3000.0]])
    near = window(LINE, Aperture(), [5.0, 5000.0], [[5.0, 1100.0], [5.0, 3000.0]])
    assert [shots.tolist() for shots in group_shots([far, near])] == [[0, 1]]


def test_offset_is_horizontal_distance():
    aperture = Aperture(max_offset=100.0)
    deep = aperture.within_offsets(
        np.array([0.0, 3000.0]), np.array([[190.0, 3100.0], [0.0, 3101.0]])
    )
    assert deep.tolist() == [True, False]
    across = np.array([[[0.0, 80.0, 3080.0], [0.0, 60.0, 3080.0]]])
    assert aperture.within_offsets(np.array([[0.0, 0.0, 3000.0]]), across).tolist() == [
        [False, True]
    ]


@pytest.mark.parametrize("shared", [True, False])
def test_shots_with_equal_windows_are_grouped(shared):
    receivers = np.array([[5.0, 1500.0], [5.0, 3000.0]])
    sources = np.array([[5.0, 2000.0], [5.0, 5000.0], [5.0, 2500.0]])
    if not shared:
        receivers = np.stack([receivers] * 3)
    survey = Survey(sources, receivers, np.zeros(4, np.float32), 0.001)
    found = Aperture(250.0).find_windows(LINE, survey)
    assert [w.cells[1] for w in found] == [(10, 91), (10, 171), (10, 91)]
    assert [shots.tolist() for shots in group_shots(found)] == [[0, 2], [1]]


def test_shots_with_different_receivers_are_not_grouped():
    receivers = np.array([[5.0, 1000.0], [5.0, 2000.0], [5.0, 3000.0], [5.0, 5900.0]])
    sources = np.array([[5.0, x] for x in (1500.0, 1550.0, 2500.0)])
    survey = Survey(sources, receivers, np.zeros(4, np.float32), 0.001)
    found = Aperture(1e5, max_offset=600.0).find_windows(LINE, survey)
    assert [shots.tolist() for shots in group_shots(found)] == [[0, 1], [2]]


@pytest.mark.parametrize("at_a_time", [1, 40, 2**20])
def test_windows_found_in_parts_match_windows_of_single_shots(at_a_time, monkeypatch):
    monkeypatch.setattr(hpcfwi.survey, "AT_A_TIME", at_a_time)
    draw = np.random.default_rng(0)
    low, high = np.array(VOLUME.origin), np.array(VOLUME.last)
    sources, receivers = (low + draw.random(s) * (high - low) for s in ((30, 3), (30, 7, 3)))
    aperture = Aperture(100.0, max_offset=2000.0)
    survey = Survey(sources, receivers, np.zeros(4, np.float32), 0.001)
    together = aperture.find_cells(VOLUME, survey)
    for shot in range(30):
        alone = window(VOLUME, aperture, sources[shot], receivers[shot])
        assert together[shot].tolist() == [list(ends) for ends in alone.cells]
