"""Tests of computing positions from trace headers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.convert.layout import FIELDS, FileLayout, Headers
from hpcfwi.convert.request import Request
from hpcfwi.convert.segy import NAMES, Files, choose_line, find_positions, scale
from hpcfwi.errors import InputError


def request(**options):
    return Request([Path("a.sgy")], Path("a.h5"), **options)


def layout(in_feet=False):
    return FileLayout(Path("a.sgy"), Headers(FIELDS, {}), 10**6, ">", 5, 10, 3600, 2, 4000, in_feet)


FILES = Files((layout(),))


def columns(**given):
    return {name: np.array(given.get(name, [0, 0])) for name in NAMES}


@pytest.mark.parametrize(
    ("scalar", "metres"), [(10, 1250.0), (1, 125.0), (0, 125.0), (-1, 125.0), (-10, 12.5)]
)
def test_positive_scalar_multiplies_and_negative_scalar_divides(scalar, metres):
    found = find_positions(
        columns(
            coordinate_scalar=[scalar] * 2,
            elevation_scalar=[scalar] * 2,
            source_x=[125, 125],
            source_y=[0, 250],
            receiver_x=[250, 0],
            source_depth=[125, 0],
            receiver_elevation=[-125, 125],
        ),
        layout(),
        request(),
    )
    assert found["source"].tolist() == [[metres, 0.0, metres], [metres, 2 * metres, 0.0]]
    assert found["receiver"].tolist() == [[2 * metres, 0.0, metres], [0.0, 0.0, -metres]]


def test_each_trace_uses_its_own_scalar():
    found = find_positions(
        columns(coordinate_scalar=[-100, 10], source_x=[125, 125]), layout(), request()
    )
    assert found["source"][:, 0].tolist() == [1.25, 1250.0]


@given(st.integers(-(2**31), 2**31 - 1), st.sampled_from([1, 10, 100, 1000, 10000]))
def test_scaled_length_is_the_nearest_float_of_its_decimals(number, divisor):
    """It equals the parsed decimal text to the bit, so that conversions can be reversed."""
    decimals = len(str(divisor)) - 1
    found = scale(np.array([float(number)]), np.array([-divisor]))[0]
    assert found == float(f"{number / divisor:.{decimals}f}")


def test_depths_are_relative_to_the_datum():
    given = columns(
        source_elevation=[300, 310],
        source_depth=[10, 12],
        receiver_elevation=[305, 295],
        receiver_depth=[0, 20],
    )
    found = find_positions(given, layout(), request(datum=500.0))
    assert found["source"][:, 2].tolist() == [210.0, 202.0]
    assert found["receiver"][:, 2].tolist() == [195.0, 225.0]


def test_feet_are_converted_to_metres():
    found = find_positions(columns(source_x=[1000, 2000]), layout(in_feet=True), request())
    np.testing.assert_allclose(found["source"][:, 0], [304.8, 609.6])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"unit": [1, 2]}, r"bytes 89-90 \(unit\): found 2: coordinates in seconds of arc"),
        ({"unit": [3, 3]}, "degrees.*--value unit=1"),
        (
            {"receiver_elevation": [0, 30000]},
            r"bytes 41-44 \(receiver_elevation\).*bytes 69-70.*trace 2 has a receiver depth of -3",
        ),
        (
            {"source_x": [2**31 - 1, 0]},
            r"bytes 73-76 \(source_x\).*bytes 71-72.*trace 1 has a source coordinate of 2.1",
        ),
    ],
)
def test_error_for_an_impossible_header_names_its_bytes(given, told):
    with pytest.raises(InputError, match=told):
        find_positions(columns(**given), layout(), request())


def places(sources, receivers):
    return {"source": np.array(sources, float), "receiver": np.array(receivers, float)}


ALONG_X = places([[100, 7, 5], [200, 7, 5]], [[150, 7, 10], [300, 7, 10]])


def test_positions_on_a_line_along_x_are_those_of_the_headers():
    line = choose_line(ALONG_X, request(), FILES)
    assert line.along(ALONG_X["source"]).tolist() == [[5.0, 100.0], [5.0, 200.0]]
    assert line.along(ALONG_X["receiver"]).tolist() == [[10.0, 150.0], [10.0, 300.0]]


@pytest.mark.parametrize("angle", [0.3, 1.2, 2.5, -1.0, np.pi / 2])
def test_positions_on_an_oblique_line_are_distances_from_its_western_end(angle):
    along = np.array([0.0, 130.0, 210.0, 400.0])
    points = np.zeros((4, 3))
    points[:, 0] = 5e5 + np.cos(angle) * along
    points[:, 1] = 6e6 + np.sin(angle) * along
    line = choose_line(places(points[:2], points[2:]), request(), FILES)
    is_west = np.cos(angle) < -1e-9
    np.testing.assert_allclose(
        line.along(points)[:, 1], 400.0 - along if is_west else along, atol=1e-6
    )
    assert line.away(points).max() < 1e-6


def test_crooked_line_is_projected_onto_its_least_squares_line():
    rng = np.random.default_rng(0)
    points = np.zeros((200, 3))
    points[:, 0] = np.linspace(0, 4000, 200)
    points[:, 1] = 0.5 * points[:, 0] + rng.normal(size=200)
    line = choose_line(places(points, points), request(), FILES)
    slope = line.direction[1] / line.direction[0]
    _, _, vectors = np.linalg.svd(points[:, :2] - points[:, :2].mean(axis=0))
    assert slope == pytest.approx(vectors[0, 1] / vectors[0, 0], rel=1e-6)


def test_given_line_is_used():
    line = choose_line(ALONG_X, request(line=(100.0, 0.0, 100.0, 50.0)), FILES)
    assert line.along(np.array([[100.0, 30.0, 2.0]])).tolist() == [[2.0, 30.0]]


@pytest.mark.parametrize("given", [None, (431250.37, 6512880.12, 441942.45, 6518328.0)])
def test_text_of_a_line_gives_the_same_positions(given):
    along = 50.0 * np.arange(200)
    points = np.stack([431250.37 + 0.89 * along, 6512880.12 + 0.45 * along, along], axis=1)
    table = places(points[:100], points[100:])
    line = choose_line(table, request(line=given), FILES)
    again = choose_line(table, request(line=tuple(map(float, str(line).split(",")))), FILES)
    np.testing.assert_array_equal(again.along(points), line.along(points))


@pytest.mark.parametrize(
    ("end", "azimuth"), [((0.0, 9.0), 0.0), ((9.0, 0.0), 90.0), ((-5.0, -5.0), 225.0)]
)
def test_azimuth_of_a_line_is_measured_from_north_to_east(end, azimuth):
    line = choose_line(ALONG_X, request(line=(0.0, 0.0, *end)), FILES)
    assert line.azimuth() == pytest.approx(azimuth)


AREA = places([[0, 0, 5], [1000, 800, 5]], [[1000, 0, 5], [0, 800, 5]])


def test_points_of_an_area_need_the_axes_option():
    with pytest.raises(InputError, match=r"cover .* by .*, not a line.*--axes zyx.*--axes zx"):
        choose_line(AREA, request(), FILES)
    assert choose_line(AREA, request(axes="zyx"), FILES) is None
    assert choose_line(AREA, request(axes="zx"), FILES) is not None
