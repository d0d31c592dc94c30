"""Tests of reading SEG-Y files: byte orders, sample formats, truncated files."""

from __future__ import annotations

import numpy as np
import pytest
import segyio
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcfwi.convert.layout import FIELDS, Field, Headers
from hpcfwi.convert.segy import AT_ONCE, find_layout, read_headers, read_traces, tell_floats
from hpcfwi.errors import InputError
from tests.convert.examples import DTYPES, N_SAMPLES, N_TRACES, line_fields, line_traces, write_segy

PLAIN = Headers(FIELDS, {})


def read_all(path, headers=PLAIN):
    layout = find_layout(path, headers)
    return read_traces(layout, np.arange(layout.n_traces))


@pytest.mark.parametrize("texts", [0, 2])
@pytest.mark.parametrize("endian", [">", "<"])
@pytest.mark.parametrize("code", DTYPES)
def test_every_sample_format_is_read_in_either_byte_order(code, endian, texts, tmp_path):
    path = write_segy(tmp_path / "line.sgy", code=code, endian=endian, texts=texts)
    layout = find_layout(path, PLAIN)
    assert (layout.endian, layout.code) == (endian, code)
    assert (layout.n_traces, layout.n_samples) == (N_TRACES, N_SAMPLES)
    np.testing.assert_array_equal(read_all(path), line_traces())
    found = read_headers(layout, ["receiver_x", "coordinate_scalar"])
    np.testing.assert_array_equal(found["receiver_x"], line_fields()["receiver_x"])
    assert (found["coordinate_scalar"] == -10).all()


@pytest.mark.parametrize("endian", ["big", "little"])
@pytest.mark.parametrize("code", [1, 5])
def test_file_written_by_segyio_is_read(code, endian, tmp_path):
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
    found = read_headers(layout, ["receiver_x"])["receiver_x"]
    np.testing.assert_array_equal(found, -1000 * np.arange(7))


def test_traces_are_read_in_the_requested_order(tmp_path):
    layout = find_layout(write_segy(tmp_path / "line.sgy"), PLAIN)
    numbers = np.array([3, 4, 5, 2, 9, 9, 8])
    np.testing.assert_array_equal(read_traces(layout, numbers), line_traces()[numbers])
    assert read_traces(layout, numbers[:0]).shape == (0, N_SAMPLES)


def test_file_larger_than_one_read_is_read(tmp_path):
    traces = line_traces(AT_ONCE // 4000 + 5, 1000)
    fields = {"channel": np.arange(len(traces))}
    path = write_segy(tmp_path / "line.sgy", fields, traces)
    np.testing.assert_array_equal(read_all(path), traces)
    found = read_headers(find_layout(path, PLAIN), ["channel"])["channel"]
    np.testing.assert_array_equal(found, fields["channel"])


@pytest.mark.parametrize(("kind", "value"), [("f4", 12.5), ("f8", 1e-3), ("u2", 65535), ("i4", -9)])
def test_header_field_can_be_at_any_byte_and_of_any_type(kind, value, tmp_path):
    path = write_segy(tmp_path / "line.sgy", endian="<")
    content = bytearray(path.read_bytes())
    content[3600 + 202 : 3600 + 202 + int(kind[1])] = np.array([value], f"<{kind}").tobytes()
    path.write_bytes(content)
    headers = Headers({**FIELDS, "source_x": Field(203, kind)}, {})
    assert read_headers(find_layout(path, headers), ["source_x"])["source_x"][0] == value


def test_given_value_overrides_the_header(tmp_path):
    path = write_segy(tmp_path / "line.sgy", header={3221: ("u2", 0), 3225: ("i2", 77)})
    given = Headers(FIELDS, {"samples": N_SAMPLES, "format": 5, "delay": 12})
    np.testing.assert_array_equal(read_all(path, given), line_traces())
    assert (read_headers(find_layout(path, given), ["delay"])["delay"] == 12).all()


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ({3225: ("i2", 77)}, r"bytes 3225-3226: found 77"),
        ({3225: ("i2", 4)}, r"bytes 3225-3226: found 4"),
        ({3225: ("i2", 6)}, r"it ends within trace 24: .* format=CODE"),
    ],
)
def test_error_for_an_impossible_file_header_names_its_bytes(header, told, tmp_path):
    path = write_segy(tmp_path / "line.sgy", header=header)
    with pytest.raises(InputError, match=told):
        find_layout(path, PLAIN)


@pytest.mark.parametrize("size", [0, 100, 3599, 3600, 3601, 3840, 3600 + 440 * 5 - 1])
def test_truncated_file_is_refused(size, tmp_path):
    path = write_segy(tmp_path / "line.sgy")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InputError, match=r"line.sgy: it (has|ends).*cut short"):
        find_layout(path, PLAIN)


def test_file_that_becomes_shorter_while_reading_is_refused(tmp_path):
    path = write_segy(tmp_path / "line.sgy")
    layout = find_layout(path, PLAIN)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(InputError, match="it became shorter"):
        read_traces(layout, np.arange(N_TRACES))


# IBM and IEEE floats


def as_ieee(numbers):
    return np.clip(numbers, -3e38, 3e38).astype(np.float32).view(np.uint32)


def as_ibm(numbers):
    """Return normalized IBM floats, whose fraction has a first hexadecimal digit other than 0."""
    power = np.ceil(np.log2(np.abs(np.where(numbers == 0.0, 1.0, numbers))) / 4.0).astype(int)
    power += np.abs(numbers) >= 16.0**power
    fraction = np.minimum(np.rint(np.abs(numbers) * 16.0 ** (6 - power)), 2**24 - 1)
    bits = (numbers < 0).astype(np.uint32) << 31 | (power + 64).astype(np.uint32) << 24
    return np.where(numbers == 0.0, 0, bits | fraction.astype(np.uint32)).astype(np.uint32)


def as_blocks(numbers):
    """Return unnormalized IBM floats with a common exponent for blocks of 500."""
    found = []
    for block in np.array_split(numbers, max(1, numbers.size // 500)):
        power = int(np.ceil(np.log2(np.abs(block).max() or 1.0) / 4.0))
        fraction = np.minimum(np.rint(np.abs(block) * 16.0 ** (6 - power)), 2**24 - 1)
        found.append((power + 64 << 24) + fraction.astype(np.uint32))
    return np.concatenate(found).astype(np.uint32)


BROAD = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "exponential": lambda rng, n: rng.laplace(size=n),
    "heavy tails": lambda rng, n: rng.standard_cauchy(n),
    "lognormal": lambda rng, n: rng.lognormal(0.0, 3.0, n),
    "energy": lambda rng, n: rng.standard_normal(n) ** 2,
    "decaying": lambda rng, n: rng.standard_normal(n) * np.exp(-np.linspace(0.0, 12.0, n)),
    "mostly silent": lambda rng, n: rng.standard_normal(n) * (rng.uniform(size=n) < 0.5),
    "counts": lambda rng, n: np.rint(3000.0 * rng.standard_normal(n)),
}
NARROW = {
    "uniform": lambda rng, n: rng.uniform(-1.0, 1.0, n),
    "positive": lambda rng, n: rng.uniform(0.2, 1.0, n),
    "about 10": lambda rng, n: 10.0 + rng.standard_normal(n),
    "velocities": lambda rng, n: rng.uniform(1500.0, 4500.0, n),
    "layers": lambda rng, n: rng.choice([1500.0, 2100.0, 2600.0, 4000.0], n),
    "ramp": lambda _, n: np.arange(float(n)),
    "small integers": lambda rng, n: np.rint(20.0 * rng.standard_normal(n)),
    "two decimals": lambda rng, n: np.rint(100.0 * rng.standard_normal(n)) / 100.0,
    "clipped": lambda rng, n: np.clip(rng.standard_normal(n), -0.5, 0.5),
    "half precision": lambda rng, n: rng.standard_normal(n).astype(np.float16).astype(float),
    "sine": lambda _, n: np.sin(0.1 * np.arange(n)),
    "wavelet": lambda _, n: (lambda t: (1.0 - 2.0 * t * t) * np.exp(-t * t))(np.linspace(-6, 6, n)),
    "constant": lambda _, n: np.full(n, 3.0),
    "zero": lambda _, n: np.zeros(n),
    "tails": lambda rng, n: 1.0 + rng.pareto(4.0, n),
}
seeds = st.integers(0, 2**32 - 1)
sizes = st.sampled_from([1, 30, 400, 3000, 30000])
scales = st.floats(-25.0, 25.0) | st.just(0.0)


@given(st.sampled_from(sorted({**BROAD, **NARROW})), seeds, sizes, scales, st.booleans())
@settings(max_examples=400, deadline=None)
def test_ibm_and_ieee_floats_are_not_confused(kind, seed, size, scale, whole):
    numbers = {**BROAD, **NARROW}[kind](np.random.default_rng(seed), size) * 10.0**scale
    numbers = np.rint(numbers) if whole else numbers
    numbers = np.clip(numbers, -3e38, 3e38)
    assert tell_floats(as_ieee(numbers)) in (None, 5)
    assert tell_floats(as_ibm(numbers)) in (None, 1)
    assert tell_floats(as_blocks(numbers)) in (None, 1)


@given(st.sampled_from(sorted(BROAD)), seeds, st.floats(-20.0, 20.0))
@settings(max_examples=100, deadline=None)
def test_float_format_of_recorded_traces_is_recognised(kind, seed, scale):
    scale = abs(scale) if kind == "counts" else scale
    numbers = BROAD[kind](np.random.default_rng(seed), 30000) * 10.0**scale
    assert tell_floats(as_ieee(numbers)) == 5
    assert tell_floats(as_ibm(numbers)) == 1


@pytest.mark.parametrize("endian", [">", "<"])
@pytest.mark.parametrize(("said", "right", "encode"), [(1, 5, as_ieee), (5, 1, as_ibm)])
def test_wrong_float_format_is_refused_and_can_be_overridden(said, right, encode, endian, tmp_path):
    traces = np.random.default_rng(1).standard_normal((N_TRACES, 200))
    bits = encode(traces).view(np.float32)
    path = write_segy(tmp_path / "a.sgy", None, bits, endian=endian)
    content = bytearray(path.read_bytes())
    content[3224:3226] = np.array([said], f"{endian}i2").tobytes()
    path.write_bytes(content)
    told = rf"bytes 3225-3226: found {said} as format, .*Give --value format={right}"
    with pytest.raises(InputError, match=told):
        find_layout(path, PLAIN)
    found = read_all(path, Headers(FIELDS, {"format": right}))
    np.testing.assert_allclose(found, traces, rtol=1e-6)
    assert find_layout(path, Headers(FIELDS, {"format": said})).code == said


def test_directory_in_place_of_a_segy_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="directory"):
        find_layout(tmp_path, PLAIN)
