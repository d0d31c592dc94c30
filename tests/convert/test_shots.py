"""Tests of sorting traces into shots."""

from __future__ import annotations

import re

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcfwi.convert.choosing import Gathering
from tests.convert.examples import (
    COUNTS,
    N_SAMPLES,
    N_TRACES,
    line_fields,
    line_traces,
    read_gathers,
    write_segy,
)


def reordered(order):
    fields = {
        name: np.broadcast_to(values, N_TRACES)[order] for name, values in line_fields().items()
    }
    return fields, line_traces()[order]


def contents(path):
    with h5py.File(path) as file:
        names = ("data", "mask", "sources", "receivers", "kinds")
        return {name: file[name][...] if name in file else None for name in names}


@pytest.fixture
def converted(hpcfwi, tmp_path):
    """A function that converts fields and traces through SEG-Y and returns the gathers' arrays."""

    def convert(fields=None, traces=None, *options):
        write_segy(tmp_path / "line.sgy", fields, traces)
        (tmp_path / "line.h5").unlink(missing_ok=True)
        assert hpcfwi("convert", tmp_path / "line.sgy", tmp_path / "line.h5", *options) == 0
        return contents(tmp_path / "line.h5")

    return convert


def check_line(found):
    """Assert that gathers are those of `line_fields`, sorted by record and channel."""
    traces, first = line_traces(), np.cumsum([0, *COUNTS])
    assert found["data"].shape == (len(COUNTS), max(COUNTS), N_SAMPLES)
    for shot, count in enumerate(COUNTS):
        assert found["mask"][shot].tolist() == [True] * count + [False] * (max(COUNTS) - count)
        np.testing.assert_array_equal(
            found["data"][shot, :count], traces[first[shot] : first[shot + 1]]
        )
        assert not found["data"][shot, count:].any()
        x = 100.0 + 100.0 * shot
        assert found["sources"][shot].tolist() == [8.0, x]
        receivers = found["receivers"][shot]
        expected = x + 50.0 + 12.5 * np.arange(count)
        np.testing.assert_array_equal(receivers[:count, 1], expected)
        assert (receivers[:, 0] == 12.5).all()
        assert (receivers[count:] == receivers[count - 1]).all(), (
            "padding repeats the last receiver"
        )


def test_irregular_spreads_are_padded_and_masked(converted):
    check_line(converted())


@given(st.permutations(range(N_TRACES)))
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_gathers_do_not_depend_on_the_order_of_traces(converted, order):
    check_line(converted(*reordered(np.array(order))))


def test_shots_are_found_from_sources_if_records_are_zero(converted):
    check_line(converted({**line_fields(), "record": 0}))


def test_two_records_at_one_position_are_two_shots(converted):
    fields = line_fields()
    fields["source_x"] = np.where(fields["record"] == 102, 1000, fields["source_x"])
    found = converted(fields)
    assert found["sources"][:2].tolist() == [[8.0, 100.0], [8.0, 100.0]]


def test_one_record_with_two_source_positions_is_two_shots(converted):
    fields = line_fields()
    fields["record"] = np.where(fields["record"] == 102, 101, fields["record"])
    check_line(converted(fields))


def test_receivers_without_channels_are_sorted_by_position(converted):
    fields, traces = reordered(np.random.default_rng(1).permutation(N_TRACES))
    check_line(converted({**fields, "channel": 0}, traces))


def test_equal_receivers_of_all_shots_are_stored_once(converted):
    fields = line_fields()
    shot = np.repeat(np.arange(4), 5)
    fields = {
        **{name: value for name, value in fields.items() if np.ndim(value) == 0},
        "record": shot,
        "source_x": 1000 * shot,
        "receiver_x": np.tile(500 * np.arange(5), 4),
    }
    found = converted(fields, line_traces(20))
    assert found["mask"] is None
    np.testing.assert_array_equal(found["receivers"][:, 1], 50.0 * np.arange(5))
    np.testing.assert_array_equal(found["data"].reshape(20, -1), line_traces(20))


def test_dead_and_auxiliary_traces_are_left_out(converted):
    fields = line_fields()
    code = np.ones(N_TRACES, dtype=int)
    code[[0, 5, 6, 33]] = 2, 3, 10, -1
    found = converted({**fields, "code": code})
    assert found["mask"].sum(axis=1).tolist() == [4, 6, 3, 8, 6, 4], "code -1 is not a dead trace"
    np.testing.assert_array_equal(found["data"][0, :4], line_traces()[1:5])


REFUSED = {
    "no source": ({"source_x": 0}, (), r"bytes 73-76 \(source_x\).*0 in all traces"),
    "no receiver": (
        {"receiver_x": 0},
        (),
        r"bytes 81-84 \(receiver_x\), bytes 85-88 \(receiver_y\): .*--bytes receiver_x=POSITION",
    ),
    "some receivers": (
        {
            "source_x": 10**7 + line_fields()["source_x"],
            "receiver_x": np.where(
                np.arange(N_TRACES) % 9 == 4, 0, 10**7 + line_fields()["receiver_x"]
            ),
        },
        (),
        r"receiver_x.*0 in 4 of 34 traces, and far from there in the others.*--keep offset",
    ),
    "every trace a record": (
        {"record": np.arange(N_TRACES)},
        (),
        r"bytes 9-12 \(record\): every trace .*--value record=0",
    ),
    "all dead": ({"code": 2}, (), r"bytes 29-30 \(code\): no trace is left of 34.*code=1"),
    "other lengths": ({"samples": 49}, (), r"bytes 115-116 \(samples\): 34 of 34 .*has 49"),
    "no interval": (
        {"interval": 4001},
        (),
        r"3217-3218 and bytes 117-118.*0.004 s, 0.004001 s.*--dt",
    ),
    "a delay between samples": ({"delay": 3}, (), r"bytes 109-110 \(delay\).*between samples"),
    "no offset": ({}, ("--keep", "offset=5e4:6e4"), r"--keep offset: no trace is left"),
    "no shot": ({}, ("--keep", "shots=6:9"), r"--keep shots: no shot is left"),
    "no time": ({}, ("--keep", "time=0.2:0.4"), r"--keep time: traces begin at 0 s"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_error_for_impossible_headers_names_bytes_and_a_remedy(fault, tmp_path, refuse):
    changes, options, told = REFUSED[fault]
    write_segy(tmp_path / "line.sgy", {**line_fields(), **changes})
    message = refuse("line.sgy", "line.h5", *options)
    assert re.search(told, message), message
    assert [path.name for path in tmp_path.iterdir()] == ["line.sgy"]


def test_wrong_headers_can_be_overridden(converted):
    fields = {**line_fields(), "record": np.arange(N_TRACES), "code": 2, "samples": 3}
    fields |= {"coordinate_scalar": 0, "interval": 77}
    better = ("record=0", "code=1", f"samples={N_SAMPLES}", "coordinate_scalar=-10")
    options = [word for value in better for word in ("--value", value)]
    check_line(converted(fields, None, *options, "--dt", "0.004"))


def test_bytes_option_reads_a_field_from_another_place(converted):
    fields = line_fields()
    fields["cdp_x"], fields["source_x"] = fields["source_x"], 0
    check_line(converted(fields, None, "--bytes", "source_x=181"))


def test_keep_option_selects_shots_offsets_and_traces(converted):
    full, some = converted(), converted(None, None, "--keep", "shots=1:6:2")
    counts = full["mask"].sum(axis=1)[1::2]
    assert some["mask"].sum(axis=1).tolist() == counts.tolist()
    np.testing.assert_array_equal(some["sources"], full["sources"][1::2])
    near = converted(None, None, "--keep", "offset=0:80")
    assert near["mask"] is None
    assert near["data"].shape == (6, 3, N_SAMPLES), "50, 62.5 and 75 m"
    first = converted(None, None, "--keep", "traces=2:10")
    assert first["mask"].sum(axis=1).tolist() == [3, 5]


def test_line_and_times_are_those_of_the_kept_shots(converted):
    fields, last = line_fields(), np.repeat(np.arange(6), COUNTS) == 5
    full = converted(fields)
    fields["source_y"], fields["delay"] = 5000 * last, 40 * last
    some = converted(fields, None, "--keep", "shots=0:5")
    for name in ("data", "sources", "receivers"):
        np.testing.assert_array_equal(some[name], full[name][:5])


def test_selection_of_no_shots_is_empty():
    gathering = Gathering({"trace": np.arange(5)}, np.array([0, 2, 5]))
    assert gathering.select(slice(7, 9)).table["trace"].size == 0
    np.testing.assert_array_equal(gathering.select(slice(1, 2)).table["trace"], [2, 3, 4])
    np.testing.assert_array_equal(gathering.pad(np.arange(5.0)), [[0, 1, 1], [2, 3, 4]])


# Components, repeated records, traces without coordinates


def four(values, n_traces=N_TRACES):
    """Return each value of the traces four times."""
    return np.repeat(np.broadcast_to(values, n_traces), 4)


def four_components(codes=(11, 12, 13, 14)):
    """Return fields and traces of the line recorded with four components per receiver."""
    fields = {name: four(values) for name, values in line_fields().items()}
    fields["channel"] = 4 * fields["channel"] + np.tile(np.arange(4), N_TRACES)
    fields["code"] = np.tile(codes, N_TRACES)
    traces = 1000.0 * np.tile(np.arange(4), N_TRACES)[:, None] + line_traces().repeat(4, axis=0)
    return fields, traces.astype(np.float32)


@pytest.fixture
def refused(refuse, tmp_path):
    """A function that returns the error for a file of fields and traces."""

    def convert(fields=None, traces=None, *options):
        write_segy(tmp_path / "line.sgy", fields, traces)
        (tmp_path / "line.h5").unlink(missing_ok=True)
        return refuse("line.sgy", "line.h5", *options)

    return convert


def remedy_of(message):
    """Return the first options in the remedy of a message."""
    return re.search(r"(--\w+ \w+=[\w:.-]+)", message.split(". ", 1)[1])[1].split()


VOLUME = ("--axes", "zyx")


@pytest.mark.parametrize("codes", [(11, 12, 13, 14), (14, 13, 12, 1), (13, 11, 14, 12)])
def test_components_are_traces_of_a_receiver_in_the_order_of_their_names(
    codes, converted, tmp_path
):
    fields, traces = four_components(codes)
    found = converted(fields, traces, *VOLUME)
    assert read_gathers(tmp_path / "line.h5")[0].components.names == ("pressure", "vz", "vy", "vx")
    plain = converted({**line_fields(), "code": 11}, None, *VOLUME)
    order = np.argsort([{1: 0, 11: 0, 12: 1, 13: 2, 14: 3}[code] for code in codes])
    for shot, there in enumerate(plain["mask"]):
        data, mine = plain["data"][shot, there], found["mask"][shot]
        kinds = found["kinds"][shot, mine]
        np.testing.assert_array_equal(kinds, np.repeat(np.arange(4), there.sum()))
        for kind, place in enumerate(order):
            given = found["data"][shot, mine][kinds == kind]
            np.testing.assert_array_equal(given, (data + 1000.0 * place).astype(np.float32))


def test_components_that_a_line_lacks_are_refused_and_the_others_are_read(
    converted, refused, tmp_path
):
    fields, traces = four_components()
    message = refused(fields, traces)
    assert re.search(r"bytes 29-30 \(code\): 34 traces of cross-line motion \(code 13\)", message)
    assert "--keep code=11,12,14." in message
    for option, names in (("code=11,12,14", ("pressure", "vz", "vx")), ("code=12", ("vz",))):
        converted(fields, traces, "--keep", option)
        assert read_gathers(tmp_path / "line.h5")[0].components.names == names


def test_rotated_components_are_refused_and_can_be_named(converted, refused, tmp_path):
    fields = {**line_fields(), "code": np.where(np.arange(N_TRACES) == 3, 17, 16)}
    message = refused(fields)
    assert "found rotated components: 33 traces of code 16 (transverse motion), 1 traces" in message
    converted(fields, None, "--value", "code=14")
    assert read_gathers(tmp_path / "line.h5")[0].components.names == ("vx",)


def test_particle_velocity_has_no_reciprocity(refused):
    message = refused({**line_fields(), "code": 12}, None, "--reciprocity")
    assert "possible for pressure of explosive sources only" in message


def test_kind_of_sources_is_written(converted, tmp_path):
    converted(None, None, "--source-kind", "force-z")
    survey, _ = read_gathers(tmp_path / "line.h5")
    assert survey.source_kinds == {"force-z": 1.0}


def test_traces_of_pressure_give_no_warning(converted, capsys):
    check_line(converted({**line_fields(), "code": 11}))
    assert "code" not in capsys.readouterr().out


def test_vibrator_signals_are_left_out(converted):
    code = np.where(np.arange(N_TRACES) % 7 == 0, 20, 1)
    assert converted({**line_fields(), "code": code})["mask"].sum() == N_TRACES - 5


def test_error_for_a_missing_trace_code_names_the_existing_ones(refused):
    assert "34 traces of code 1" in refused(None, None, "--keep", "code=11")


@pytest.mark.parametrize("channel", ["own", "shared"])
def test_components_without_codes_are_refused_and_one_can_be_chosen(channel, converted, refused):
    fields, traces = four_components((1, 1, 1, 1))
    if channel == "shared":
        fields["channel"] //= 4
    message = refused(fields, traces)
    assert re.search(
        r"102 of 136 traces .* receiver position .* traces 1, 2, 3, 4 of \S+ in record 101, at "
        r"x = 150, y = 0, z = 12.5 m.*--keep repeat=0, up to 3",
        message,
    )
    check_line(converted(fields, traces, *remedy_of(message)))
    third = converted(fields, traces, "--keep", "repeat=2")
    third["data"] -= np.where(third["mask"], 2000.0, 0.0)[..., None].astype(np.float32)
    check_line(third)
    assert "0 to 3" in refused(fields, traces, "--keep", "repeat=4")


def test_repeated_record_is_refused_and_one_can_be_chosen(converted, refused):
    order = np.concatenate([np.arange(N_TRACES), np.arange(5, 13)])
    fields, traces = reordered(order)
    message = refused(fields, traces)
    assert "8 of 42 traces" in message
    check_line(converted(fields, traces, *remedy_of(message)))
    first = converted(fields, traces, "--keep", "shots=2:")
    assert first["sources"].shape[0] == 4, "the first two shots are not kept"


def test_receivers_at_different_depths_are_different(converted):
    fields = {**line_fields(), "receiver_x": 5000, "receiver_y": 0}
    fields["receiver_elevation"] = -100 * line_fields()["channel"]
    assert converted(fields)["mask"].sum() == N_TRACES


def without_coordinates(fields, which):
    """Return fields in which some traces have no coordinates."""
    return fields | {name: np.where(which, 0, fields[name]) for name in ("source_x", "receiver_x")}


def test_dead_traces_without_coordinates_are_left_out(converted, capsys):
    dead = np.arange(N_TRACES) == 6
    traces = line_traces() * ~dead[:, None]
    near = line_fields()
    found = converted(without_coordinates(near, dead), traces)
    assert found["mask"].sum(axis=1).tolist() == [5, 7, 3, 8, 6, 4]
    assert "line.sgy: 1 of 34 traces are left out: they are 0" in capsys.readouterr().out
    far = {**near, "source_x": near["source_x"] + 10**7, "receiver_x": near["receiver_x"] + 10**7}
    found = converted(without_coordinates(far, dead), traces)
    assert found["mask"].sum(axis=1).tolist() == [5, 7, 3, 8, 6, 4]
    assert "line.sgy: 1 of 34 traces are left out: their source and" in capsys.readouterr().out


def test_receiver_at_a_source_at_the_origin_is_kept(converted):
    fields = line_fields()
    x = {name: fields[name] - 1000 for name in ("source_x", "receiver_x")}
    first = np.arange(N_TRACES) == 0
    found = converted(fields | x | {"receiver_x": np.where(first, 0, x["receiver_x"])})
    assert found["mask"].sum() == N_TRACES
    np.testing.assert_array_equal(found["data"][0, :5], line_traces()[:5])


def test_receivers_without_coordinates_are_left_out_with_the_remedy(converted, refused):
    changes, _, _ = REFUSED["some receivers"]
    fields = {**line_fields(), **changes}
    message = refused(fields)
    assert remedy_of(message)[0] == "--keep"
    assert converted(fields, None, *remedy_of(message))["mask"].sum() == N_TRACES - 4
