"""Tests of converting SEG-Y to gathers: times, wavelets, units, memory, ranks, inversions."""

from __future__ import annotations

import logging
import re
import sys

import h5py
import numpy as np
import pytest

from hpcfwi.wave.numerics import ricker
from tests.convert.examples import (
    DT,
    N_SAMPLES,
    N_TRACES,
    interrupt_fourth_read,
    line_fields,
    line_traces,
    read_gathers,
    write_parts,
    write_segy,
)
from tests.inversion.examples import read_history, write_input
from tests.ranks import run_command, run_ranks


def padded():
    """Return the traces of `line_traces` by shots, padded with zeros."""
    found, first = np.zeros((6, 8, N_SAMPLES), np.float32), 0
    for shot, count in enumerate((5, 8, 3, 8, 6, 4)):
        found[shot, :count] = line_traces()[first : first + count]
        first += count
    return found


# Times


def test_records_are_padded_or_cut_to_begin_at_time_zero(convert, tmp_path):
    delay = np.zeros(N_TRACES, dtype=int)
    delay[:5], delay[5:13] = 40, -20  # ms
    write_segy(tmp_path / "a.sgy", {**line_fields(), "delay": delay})
    _, found = read_gathers(convert("a.sgy", "a.h5"))
    assert found.shape[2] == N_SAMPLES + 10
    assert not found[0, :, :10].any()
    np.testing.assert_array_equal(found[0, :, 10:], padded()[0])
    np.testing.assert_array_equal(found[1, :, : N_SAMPLES - 5], padded()[1, :, 5:])
    assert not found[1:, :, N_SAMPLES:].any()


def test_time_window_begins_at_the_given_time(convert, tmp_path):
    write_segy(tmp_path / "a.sgy")
    survey, found = read_gathers(convert("a.sgy", "a.h5", "--keep", "time=0.02:0.1"))
    assert (survey.n_samples, survey.dt) == (21, DT)
    np.testing.assert_array_equal(found, padded()[..., 5:26])


@pytest.mark.parametrize("revision", [1, 2])
@pytest.mark.parametrize(("scalar", "delay"), [(0, 40), (1, 40), (10, 4), (-10, 400), (-1, 40)])
def test_delay_scalar_in_bytes_215_is_applied(scalar, delay, revision, convert, tmp_path):
    fields = {**line_fields(), "delay": delay, "time_scalar": scalar}
    write_segy(tmp_path / "a.sgy", fields, header={3501: ("u1", revision)})
    _, found = read_gathers(convert("a.sgy", "a.h5"))
    assert found.shape[2] == N_SAMPLES + 10
    np.testing.assert_array_equal(found[..., 10:], padded())


@pytest.mark.parametrize(("revision", "scalar"), [(0, 10), (1, 7), (1, 8224)])
def test_invalid_delay_scalar_is_refused_and_can_be_overridden(
    revision, scalar, convert, tmp_path, refuse
):
    fields = {**line_fields(), "delay": 40, "time_scalar": scalar}
    write_segy(tmp_path / "a.sgy", fields, header={3501: ("u1", revision)})
    told = rf"bytes 215-216 \(time_scalar\): found {scalar} .*Give --value time_scalar=1 "
    assert re.search(told, refuse("a.sgy", "a.h5"))
    for number, option in enumerate(("time_scalar=1", "delay=40")):
        _, found = read_gathers(convert("a.sgy", f"{number}.h5", "--value", option))
        np.testing.assert_array_equal(found[..., 10:], padded())


def test_delay_scalar_without_delays_is_ignored(convert, tmp_path):
    write_segy(tmp_path / "a.sgy", {**line_fields(), "time_scalar": 8224})
    np.testing.assert_array_equal(read_gathers(convert("a.sgy", "a.h5"))[1], padded())


def test_sampling_interval_of_fractional_microseconds_is_read(convert, tmp_path):
    header = {3501: ("u1", 2), 3273: ("f8", 1333.25)}
    write_segy(tmp_path / "a.sgy", {**line_fields(), "interval": 1333}, header=header)
    assert read_gathers(convert("a.sgy", "a.h5"))[0].dt == 1333.25 / 1e6


@pytest.mark.parametrize("interval", [np.nan, np.inf, -4000.0, 1e9])
def test_invalid_sampling_interval_is_refused_and_can_be_overridden(
    interval, convert, tmp_path, refuse
):
    write_segy(tmp_path / "a.sgy", header={3501: ("u1", 2), 3273: ("f8", interval)})
    assert re.search(r"bytes 3273-3280 .*found .* microseconds.*--dt", refuse("a.sgy", "a.h5"))
    assert read_gathers(convert("a.sgy", "a.h5", "--dt", "0.004"))[0].dt == 0.004


@pytest.mark.parametrize("name", ["a.su", "a.sgy"])
def test_seismic_unix_file_is_converted_with_any_suffix(name, convert, tmp_path):
    path = write_segy(tmp_path / name, {**line_fields(), "time_scalar": 0}, endian="<")
    path.write_bytes(path.read_bytes()[3600:])
    survey, found = read_gathers(convert(name, "a.h5"))
    assert survey.dt == DT
    np.testing.assert_array_equal(found, padded())


def test_seismic_unix_target_is_refused(convert, tmp_path, refuse):
    write_segy(tmp_path / "a.sgy")
    convert("a.sgy", "a.h5")
    assert "read, not written. Give a name that ends with .sgy" in refuse("a.h5", "a.su")
    assert not (tmp_path / "a.su").exists()


# Additional headers, and depths


def test_additional_trace_headers_give_a_warning(convert, tmp_path, capsys):
    write_segy(tmp_path / "a.sgy", header={3501: ("u1", 2), 3507: ("u4", 1)}, extra=1)
    np.testing.assert_array_equal(read_gathers(convert("a.sgy", "a.h5"))[1], padded())
    assert "WARNING" in (out := capsys.readouterr().out)
    assert "some additional trace headers are not read" in out


@pytest.mark.parametrize(("endian", "encoding"), [(">", "ascii"), ("<", "cp037")])
def test_coordinates_in_the_trace_header_extension_are_used_if_not_zero(
    endian, encoding, convert, tmp_path, capsys
):
    """They are doubles in m, to which the scalars of the standard header do not apply."""
    header = {3501: ("u1", 2), 3507: ("u4", 1)}
    path = write_segy(tmp_path / "a.sgy", header=header, extra=1, endian=endian)
    content = bytearray(path.read_bytes())
    for trace, x in enumerate(line_fields()["receiver_x"].tolist()):
        start = 3600 + trace * (480 + 4 * N_SAMPLES) + 240
        doubles = {41: 2.25, 113: 0.1 * x + 0.0625 if trace % 2 else 0.0}
        for at, value in doubles.items():
            content[start + at - 1 : start + at + 7] = np.array(value, f"{endian}f8").tobytes()
        content[start + 232 : start + 240] = "SEG00001".encode(encoding)
    path.write_bytes(content)
    plain = write_segy(tmp_path / "plain.sgy")
    expected, survey = (read_gathers(convert(p.name, f"{p.stem}.h5"))[0] for p in (plain, path))
    out = capsys.readouterr().out
    assert "receiver_depth (bytes 281-288), receiver_x (bytes 353-360)" in out
    assert "not read" not in out
    moved = (survey.receivers - expected.receivers)[expected.mask]
    np.testing.assert_allclose(moved[:, 0], 2.25)
    np.testing.assert_allclose(moved[:, 1], np.where(np.arange(N_TRACES) % 2, 0.0625, 0.0))
    kept = convert(path.name, "kept.h5", "--value", "receiver_depth=0")
    np.testing.assert_allclose(read_gathers(kept)[0].receivers[..., 0], expected.receivers[..., 0])


def test_depths_in_elevation_fields_give_a_warning_and_an_option(convert, tmp_path, capsys):
    fields = {**line_fields(), "receiver_elevation": 125, "source_elevation": 80, "source_depth": 0}
    write_segy(tmp_path / "a.sgy", fields)
    assert (read_gathers(convert("a.sgy", "up.h5"))[0].sources[:, 0] == -8.0).all()
    out = capsys.readouterr().out
    for told in ("sources are above z = 0, at z from -8 to -8", "receivers are above z = 0"):
        assert re.search(rf"WARNING: All {told}.*--depths positive-elevation", out)
    survey, _ = read_gathers(convert("a.sgy", "down.h5", "--depths", "positive-elevation"))
    assert (survey.sources[:, 0] == 8.0).all()
    assert (survey.receiver_positions()[..., 0] == 12.5).all()
    assert "above z = 0" not in capsys.readouterr().out


# The wavelet


@pytest.mark.parametrize("kind", [".npy", ".txt", ".h5"])
def test_wavelet_is_read_from_a_file_and_padded_with_zeros(kind, convert, tmp_path):
    write_segy(tmp_path / "a.sgy")
    wavelet, path = np.arange(1.0, 8.0), tmp_path / f"wavelet{kind}"
    if kind == ".npy":
        np.save(path, wavelet)
    elif kind == ".txt":
        np.savetxt(path, wavelet)
    else:
        with h5py.File(path, "w") as file:
            file["wavelet"] = wavelet
    found = read_gathers(convert("a.sgy", "a.h5", "--wavelet", path))[0].wavelet
    np.testing.assert_array_equal(found, np.pad(wavelet, (0, N_SAMPLES - 7)))


def test_wavelet_file_can_have_a_wavelet_per_shot(convert, tmp_path):
    write_segy(tmp_path / "a.sgy")
    np.save(tmp_path / "w.npy", np.arange(18.0).reshape(6, 3))
    found = read_gathers(convert("a.sgy", "a.h5", "--wavelet", tmp_path / "w.npy"))[0].wavelet
    np.testing.assert_array_equal(found[:, :3], np.arange(18.0).reshape(6, 3))


@pytest.mark.parametrize(
    ("wavelet", "told"),
    [
        (np.ones(N_SAMPLES + 1), rf"{N_SAMPLES + 1} samples .* but the traces have {N_SAMPLES} of"),
        (np.ones((5, 3)), r"shape is \(5, 3\), expected \(time,\) or \(6, time\)"),
        (np.array([1.0, np.nan]), "not finite"),
        (np.array(["a"]), "not an array of real numbers"),
        (np.array([{}]), "NumPy cannot read it"),
        (None, "w.npy: it cannot be read"),
    ],
)
def test_wavelet_that_does_not_fit_is_refused(wavelet, told, tmp_path, refuse):
    write_segy(tmp_path / "a.sgy")
    if wavelet is not None:
        np.save(tmp_path / "w.npy", wavelet)
    words = ("--wavelet", tmp_path / "w.npy")
    assert re.search(told, refuse("a.sgy", "a.h5", *words))


def tone(times):
    """Return a Ricker wavelet of 12 Hz around 0.08 s."""
    a = (np.pi * 12.0 * (times - 0.08)) ** 2
    return (1.0 - 2.0 * a) * np.exp(-a)


def save_wavelet(path, times, values, name):
    """Write a wavelet with its sampling times to a file of one of the supported layouts."""
    columns = np.stack([times, values], axis=1)
    if name.endswith(".h5"):
        with h5py.File(path / name, "w") as file:
            file["wavelet"] = values
            file.attrs.update(dt=times[1] - times[0], start=times[0])
    elif name.endswith(".npy"):
        np.save(path / name, columns.T if "rows" in name else columns)
    else:
        np.savetxt(path / name, columns, header="s, Pa", delimiter=", " if "comma" in name else " ")
    return path / name


@pytest.mark.parametrize("dt", [0.002, 0.0025, DT, 0.0061])
@pytest.mark.parametrize("name", ["w.h5", "w.npy", "rows.npy", "w.txt", "comma.txt"])
def test_wavelet_with_other_sampling_times_is_resampled(name, dt, convert, tmp_path):
    write_segy(tmp_path / "a.sgy")
    times = dt * np.arange(round(0.18 / dt))
    path = save_wavelet(tmp_path, times, tone(times), name)
    found = read_gathers(convert("a.sgy", "a.h5", "--wavelet", path))[0].wavelet
    np.testing.assert_allclose(found, tone(DT * np.arange(N_SAMPLES)), atol=2e-3)


@pytest.mark.parametrize("start", [0.02, 0.021])
def test_start_time_of_a_wavelet_is_applied(start, convert, tmp_path):
    write_segy(tmp_path / "a.sgy")
    times = start + DT * np.arange(40)
    path = save_wavelet(tmp_path, times, tone(times - start), "w.h5")
    found = read_gathers(convert("a.sgy", "a.h5", "--wavelet", path))[0].wavelet
    np.testing.assert_allclose(found, tone(DT * np.arange(N_SAMPLES) - start), atol=3e-3)
    if start == 0.02:
        np.testing.assert_array_equal(found[5:45], tone(times - start).astype(np.float32))


def test_resampled_wavelet_is_filtered_below_the_nyquist_frequency(convert, tmp_path, capsys):
    write_segy(tmp_path / "a.sgy")
    times = 0.001 * np.arange(180)
    noise = np.sin(2.0 * np.pi * 200.0 * times) * np.exp(-(((times - 0.08) / 0.02) ** 2))
    path = save_wavelet(tmp_path, times, tone(times) + noise, "w.txt")
    found = read_gathers(convert("a.sgy", "a.h5", "--wavelet", path))[0].wavelet
    np.testing.assert_allclose(found, tone(DT * np.arange(N_SAMPLES)), atol=5e-3)
    assert re.search(r"WARNING: .*energy is above 125 Hz", capsys.readouterr().out)


def test_wavelet_that_begins_before_the_shot_is_refused_with_a_remedy(convert, tmp_path, refuse):
    write_segy(tmp_path / "a.sgy")
    times = -0.05 + 0.002 * np.arange(90)
    path = save_wavelet(tmp_path, times, tone(times + 0.05), "w.txt")
    words = ("--wavelet", path)
    remedy = re.search(r"begins at -0.05 s.*Give --keep (\S+) ", refuse("a.sgy", "a.h5", *words))[1]
    survey, found = read_gathers(convert("a.sgy", "a.h5", *words, "--keep", remedy))
    assert remedy == "time=-0.052:"
    np.testing.assert_allclose(
        survey.wavelet, tone(DT * np.arange(survey.n_samples) - 0.002), atol=3e-3
    )
    assert not found[..., :13].any()
    np.testing.assert_array_equal(found[..., 13:], padded())


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("0 1\n4 2\n8 3\n", r"first column: found .* of 4 s, .*looks like milliseconds"),
        ("0.1 1\n0.1 2\n0.3 3\n", "the first ones are not times that grow evenly"),
        ("time amplitude\n0 1\n", "not a list of numbers"),
        ("0 1\n0.1 2\n0.2 3\n", r"3 samples of 0.1 s and ends at 0.2 s, but the traces have 50 of"),
    ],
)
def test_wavelet_file_with_invalid_times_is_refused(content, told, tmp_path, refuse):
    write_segy(tmp_path / "a.sgy")
    (tmp_path / "w.txt").write_text(content)
    words = ("--wavelet", tmp_path / "w.txt")
    assert re.search(told, refuse("a.sgy", "a.h5", *words))


# Units


IN = line_fields()
SLIPS = {
    "km": ({"coordinate_scalar": -10000}, (), r"look like km.*For km the scalar is 1000"),
    "mm": ({"coordinate_scalar": 100}, (), r"too far for any wave .*look like cm or mm"),
    "dt in ms": ({"interval": 4}, (), r"4e-06 s.*4 looks like milliseconds.*Give --dt 0.004"),
    "--dt in ms": ({}, ("--dt", "4.0"), r"--dt: found .* of 4 s.*milliseconds: 0.004 s"),
    "--dt below 0": ({}, ("--dt", "-1"), r"--dt: found .* of -1 s"),
    "degrees": ({"unit": 3}, (), r"bytes 89-90 \(unit\): found 3: coordinates in degrees"),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_error_for_wrong_units_names_the_likely_unit(slip, tmp_path, refuse):
    changes, options, told = SLIPS[slip]
    header = {3217: ("u2", 4)} if slip == "dt in ms" else None
    fields, traces = {**IN, **changes}, np.tile(line_traces(), (1, 40))
    if slip != "mm":  # longer records, in which no receiver is too far
        fields["samples"] = traces.shape[1]
    else:
        traces = line_traces()
    write_segy(tmp_path / "a.sgy", fields, traces, header=header)
    assert re.search(told, refuse("a.sgy", "a.h5", *options))


def test_given_coordinate_scalar_is_not_checked(convert, tmp_path):
    write_segy(tmp_path / "a.sgy", IN)
    survey, _ = read_gathers(convert("a.sgy", "a.h5", "--value", "coordinate_scalar=-10000"))
    assert survey.sources[0, 1] == 0.1


def test_distances_that_contradict_the_offset_headers_give_a_warning(convert, tmp_path, capsys):
    write_segy(tmp_path / "a.sgy", {**IN, "coordinate_scalar": 1})
    convert("a.sgy", "a.h5")
    assert re.search(r"WARNING: .*10 times as far .* bytes 37-40", capsys.readouterr().out)


# With other commands


def test_converted_irregular_line_is_planned_inverted_and_drawn(hpcfwi, convert, tmp_path, capsys):
    traces = np.pad(line_traces(), ((0, 0), (0, 50)))
    write_segy(tmp_path / "a.sgy", {**IN, "samples": 100}, traces)
    np.save(tmp_path / "w.npy", ricker(8.0, 60, DT, 0.12))
    convert("a.sgy", "line.h5", "--wavelet", tmp_path / "w.npy")
    with h5py.File(tmp_path / "line.h5", "r+") as file:
        file["data"][2, 3:] = np.nan
    config = write_input(
        tmp_path,
        {
            "survey": {"file": str(tmp_path / "line.h5")},
            "model.initial": {"file": str(tmp_path / "true.h5")},
            "inversion.fixed_above": None,
            "inversion.epochs": 1,
            "inversion.batch": 6,
            "inversion.max_offset": 120.0,
            "wave.aperture": 200.0,
            "wave.engine": "eager",
            "output.every": 1,
        },
    )
    assert hpcfwi("plan", config, "--quiet") == 0
    assert hpcfwi("run", config, "--quiet") == 0
    (epoch,) = read_history(tmp_path / "run")
    assert epoch["failed"] == []
    assert epoch["loss"] > 0.0
    assert hpcfwi("show", tmp_path / "run") == 0
    assert "observed_data.png" in capsys.readouterr().out


def test_segyio_is_imported_only_by_convert():
    program = "import sys, hpcfwi.cli, hpcfwi.run.job; sys.exit('segyio' in sys.modules)"
    run_command([sys.executable, "-c", program])


def test_existing_target_is_not_overwritten(tmp_path, refuse):
    write_segy(tmp_path / "a.sgy")
    (tmp_path / "a.h5").write_text("precious")
    assert "this file exists already" in refuse("a.sgy", "a.h5")
    assert (tmp_path / "a.h5").read_text() == "precious"


def test_traces_that_are_not_finite_give_a_warning(convert, tmp_path, capsys):
    traces = line_traces()
    traces[7, 3] = np.nan
    write_segy(tmp_path / "a.sgy", None, traces)
    convert("a.sgy", "a.h5")
    assert "WARNING: 1 of 6 shots have traces that are not finite; the first is shot 1" in (
        capsys.readouterr().out
    )
    logging.getLogger("hpcfwi").handlers.clear()


# Size and ranks


def write_sparse(path, shots, receivers, samples):
    """Write a survey of zeros as a sparse file, in which only headers use disk space."""
    write_segy(path, {}, np.zeros((1, samples), np.float32))
    start = path.read_bytes()[:3600]
    trace = 240 + 4 * samples
    with path.open("wb") as file:
        file.write(start)
        file.truncate(3600 + shots * receivers * trace)
        for shot in range(shots):
            for receiver in range(receivers):
                header = np.zeros(60, ">i4")
                header[2], header[3] = shot, receiver
                header[18], header[20] = 25 * shot, 25 * receiver + 12
                file.seek(3600 + (shot * receivers + receiver) * trace)
                file.write(header.tobytes())
    return path


PEAK = """
import sys
from hpcfwi.system import peak_resident_bytes, resident_bytes
from hpcfwi import cli
from hpcfwi.convert import to_gathers
import segyio
import h5py
before = resident_bytes()
sys.argv = ["hpcfwi", "convert", *sys.argv[1:], "--quiet"]
try:
    cli.main()
except SystemExit as end:
    print(end.code, before, peak_resident_bytes())
"""


def test_large_file_is_converted_in_less_memory_than_its_size(tmp_path):
    path = write_sparse(tmp_path / "a.sgy", 250, 200, 2000)
    size = path.stat().st_size
    done = run_command([sys.executable, "-c", PEAK, path, tmp_path / "a.h5"])
    code, before, peak = map(int, done.stdout.split()[-3:])
    assert code == 0
    assert size > 4e8
    assert peak - before < 3e8, f"{peak - before} bytes of {size}"
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["data"].shape == (250, 200, 2000)


@pytest.mark.parametrize("same", [True, False])
def test_interrupted_conversion_continues_only_for_the_same_file(
    same, hpcfwi, convert, tmp_path, monkeypatch
):
    path = write_segy(tmp_path / "a.sgy")
    calls = interrupt_fourth_read(monkeypatch)
    assert hpcfwi("convert", path, tmp_path / "a.h5") == 1
    assert not (tmp_path / "a.h5").exists()
    if not same:
        write_segy(path, None, line_traces() + 1)
    _, found = read_gathers(convert("a.sgy", "a.h5"))
    assert len(calls) == 4 + (3 if same else 6)
    np.testing.assert_array_equal(found[0, :5], line_traces()[:5] + (not same))
    if same:
        np.testing.assert_array_equal(found, padded())


@pytest.mark.timeout(200)
def test_three_ranks_convert_three_files_like_one_rank_one_file(convert, tmp_path):
    write_segy(tmp_path / "all.sgy")
    alone = convert("all.sgy", "alone.h5")
    paths = [*write_parts(tmp_path, np.arange(N_TRACES) % 3), tmp_path / "together.h5"]
    words = ["-m", "hpcfwi", "convert", *map(str, paths)]
    run_ranks(3, words, timeout=150, warm=True)
    with h5py.File(alone) as one, h5py.File(tmp_path / "together.h5") as other:
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.timeout(200)
def test_ranks_refuse_a_damaged_file_with_one_message(tmp_path):
    path = write_segy(tmp_path / "a.sgy")
    path.write_bytes(path.read_bytes()[:-7])
    words = ["-m", "hpcfwi", "convert", str(path), str(tmp_path / "a.h5")]
    done = run_ranks(2, words, timeout=150, warm=True, code=2)
    assert done.stderr.count("hpcfwi: ") == 1
    assert "it ends within trace 34" in done.stderr
