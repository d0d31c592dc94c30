"""SEG-Y files as others write them: byte orders, formats of samples, what is cut short."""

from __future__ import annotations

import numpy as np
import pytest
import segyio

from hpcfwi.convert.headers import FIELDS, Field, Headers
from hpcfwi.convert.segy import AT_ONCE, TraceReader, find_layout, read_headers
from hpcfwi.errors import InputError
from tests.convert.examples import (
    DTYPES,
    N_SAMPLES,
    N_TRACES,
    line_fields,
    line_traces,
    write_segy,
)

PLAIN = Headers(FIELDS, {})


def read_all(path, headers=PLAIN):
    layout = find_layout(path, headers)
    with TraceReader(layout) as reader:
        return reader.read(np.arange(layout.n_traces))


@pytest.mark.parametrize("texts", [0, 2])
@pytest.mark.parametrize("endian", [">", "<"])
@pytest.mark.parametrize("code", DTYPES)
def test_every_format_in_either_byte_order_is_read(code, endian, texts, tmp_path):
    path = write_segy(tmp_path / "line.sgy", code=code, endian=endian, texts=texts)
    layout = find_layout(path, PLAIN)
    assert (layout.endian, layout.code) == (endian, code)
    assert (layout.n_traces, layout.n_samples) == (N_TRACES, N_SAMPLES)
    np.testing.assert_array_equal(read_all(path), line_traces())
    found = read_headers(layout, PLAIN, ["receiver_x", "coordinate_scalar"])
    np.testing.assert_array_equal(found["receiver_x"], line_fields()["receiver_x"])
    assert (found["coordinate_scalar"] == -10).all()


@pytest.mark.parametrize("endian", ["big", "little"])
@pytest.mark.parametrize("code", [1, 5])
def test_what_segyio_writes_is_what_is_read(code, endian, tmp_path):
    spec = segyio.spec()
    spec.format, spec.tracecount, spec.endian = code, 7, endian
    spec.samples = 4 * np.arange(N_SAMPLES)
    traces = line_traces(7) - 50.0
    with segyio.create(tmp_path / "made.sgy", spec) as file:
        for number, trace in enumerate(traces):
            file.header[number] = {segyio.TraceField.GroupX: -1000 * number}
            file.trace[number] = trace
    layout = find_layout(tmp_path / "made.sgy", PLAIN)
    assert layout.interval == 4000
    np.testing.assert_array_equal(read_all(tmp_path / "made.sgy"), traces)
    found = read_headers(layout, PLAIN, ["receiver_x"])["receiver_x"]
    np.testing.assert_array_equal(found, -1000 * np.arange(7))


def test_traces_come_in_the_order_asked(tmp_path):
    layout = find_layout(write_segy(tmp_path / "line.sgy"), PLAIN)
    numbers = np.array([3, 4, 5, 2, 9, 9, 8])
    with TraceReader(layout) as reader:
        np.testing.assert_array_equal(reader.read(numbers), line_traces()[numbers])
        assert reader.read(numbers[:0]).shape == (0, N_SAMPLES)


def test_more_than_is_read_at_once_is_read(tmp_path):
    traces = line_traces(AT_ONCE // 4000 + 5, 1000)
    fields = {"channel": np.arange(len(traces))}
    path = write_segy(tmp_path / "line.sgy", fields, traces)
    np.testing.assert_array_equal(read_all(path), traces)
    found = read_headers(find_layout(path, PLAIN), PLAIN, ["channel"])["channel"]
    np.testing.assert_array_equal(found, fields["channel"])


@pytest.mark.parametrize(("kind", "value"), [("f4", 12.5), ("f8", 1e-3), ("u2", 65535), ("i4", -9)])
def test_a_field_may_be_anywhere_and_of_any_type(kind, value, tmp_path):
    path = write_segy(tmp_path / "line.sgy", endian="<")
    content = bytearray(path.read_bytes())
    content[3600 + 202 : 3600 + 202 + int(kind[1])] = np.array([value], f"<{kind}").tobytes()
    path.write_bytes(content)
    headers = Headers({**FIELDS, "source_x": Field(203, kind)}, {})
    assert read_headers(find_layout(path, headers), headers, ["source_x"])["source_x"][0] == value


def test_a_value_that_is_given_takes_the_place_of_the_header(tmp_path):
    path = write_segy(tmp_path / "line.sgy", header={3221: ("u2", 0), 3225: ("i2", 77)})
    given = Headers(FIELDS, {"samples": N_SAMPLES, "format": 5, "delay": 12})
    np.testing.assert_array_equal(read_all(path, given), line_traces())
    assert (read_headers(find_layout(path, given), given, ["delay"])["delay"] == 12).all()


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ({3225: ("i2", 77)}, r"bytes 3225-3226: found 77"),
        ({3225: ("i2", 4)}, r"bytes 3225-3226: found 4"),
        ({3221: ("u2", 0)}, r"bytes 3221-3222: found 0 samples"),
        ({3221: ("u2", N_SAMPLES + 1)}, r"it ends within trace 34: .*--value samples=NUMBER"),
        ({3225: ("i2", 6)}, r"it ends within trace 24: .* --value format=CODE"),
        ({3505: ("i2", -1)}, r"bytes 3505-3506: found -1"),
        ({3505: ("i2", 30000)}, r"it ends within trace 1"),
    ],
)
def test_a_file_header_that_cannot_be_meant_is_told_with_its_bytes(header, told, tmp_path):
    path = write_segy(tmp_path / "line.sgy", header=header)
    with pytest.raises(InputError, match=told):
        find_layout(path, PLAIN)


@pytest.mark.parametrize("size", [0, 100, 3599, 3600, 3601, 3840, 3600 + 440 * 5 - 1])
def test_a_file_that_is_cut_short_is_told(size, tmp_path):
    path = write_segy(tmp_path / "line.sgy")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InputError, match=r"line.sgy: it (has|ends).*cut short"):
        find_layout(path, PLAIN)


def test_a_file_that_becomes_shorter_while_it_is_read_is_told(tmp_path):
    path = write_segy(tmp_path / "line.sgy")
    layout = find_layout(path, PLAIN)
    path.write_bytes(path.read_bytes()[:5000])
    with TraceReader(layout) as reader, pytest.raises(InputError, match="shorter meanwhile"):
        reader.read(np.arange(N_TRACES))


def test_a_directory_is_no_file(tmp_path):
    with pytest.raises(InputError, match="directory"):
        find_layout(tmp_path, PLAIN)
