"""Tests of writing gathers as SEG-Y."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import segyio

from hpcfwi.parallel.context import Context
from hpcfwi.storage.gathers import create_gathers
from hpcfwi.survey import Components, Survey
from tests.convert.examples import read_gathers
from tests.inversion.examples import read_vp, write_input


def example_survey(ndim=2, shots=5, receivers=7):
    rng = np.random.default_rng(3)
    survey = Survey(
        rng.integers(0, 3000, (shots, ndim)) / 10.0,
        rng.integers(0, 30000, (shots, receivers, ndim)) / 100.0,
        rng.normal(size=40).astype(np.float32),
        0.002,
    )
    return survey, rng.normal(size=survey.shape).astype(np.float32)


def write_gathers(path, survey, data):
    with create_gathers(path, survey, Context.alone()) as writer:
        writer.write(np.arange(survey.n_shots), data)
    return path


@pytest.mark.parametrize("ndim", [2, 3])
def test_gathers_converted_to_segy_and_back_are_the_same(ndim, convert, tmp_path):
    survey, data = example_survey(ndim)
    first = write_gathers(tmp_path / "a.h5", survey, data)
    convert("a.h5", "a.sgy")
    options = ("--axes", "zyx") if ndim == 3 else ()
    found, traces = read_gathers(convert("a.sgy", "b.h5", "--wavelet", first, *options))
    np.testing.assert_array_equal(traces, data)
    for name in ("sources", "receivers", "wavelet", "dt", "mask"):
        np.testing.assert_array_equal(getattr(found, name), getattr(survey, name))


def test_components_have_trace_codes_and_are_the_same_after_converting_back(convert, tmp_path):
    survey, data = example_survey(ndim=3, receivers=8)
    kinds = np.repeat(np.arange(4, dtype=np.int8), 2)
    places = np.concatenate([survey.receivers[:, :2]] * 4, axis=1)
    places = places[:, np.argsort(np.tile([0, 1], 4) + 2 * kinds)]
    components = Components(("pressure", "vz", "vy", "vx"), kinds)
    survey = replace(survey, receivers=places, components=components)
    first = write_gathers(tmp_path / "a.h5", survey, data)
    with segyio.open(convert("a.h5", "a.sgy"), ignore_geometry=True) as file:
        codes = file.attributes(segyio.TraceField.TraceIdentificationCode)[:]
    np.testing.assert_array_equal(codes.reshape(5, 8), [[11, 11, 12, 12, 13, 13, 14, 14]] * 5)
    options = ("--wavelet", first, "--axes", "zyx")
    found, traces = read_gathers(convert("a.sgy", "b.h5", *options))
    assert found.components.names == components.names
    np.testing.assert_array_equal(found.components.kinds, kinds)
    np.testing.assert_array_equal(found.receivers, places)
    np.testing.assert_array_equal(traces, data)


def test_parts_of_a_survey_that_segy_does_not_hold_are_named(convert, tmp_path, capsys):
    survey, data = example_survey()
    fibre = Components(("strain",), None, 10.0, np.tile([0.0, 1.0], (7, 1)))
    forces = {"force-z": np.ones(())}
    write_gathers(tmp_path / "a.h5", replace(survey, components=fibre, source_kinds=forces), data)
    convert("a.h5", "a.sgy")
    told = capsys.readouterr().out
    assert "SEG-Y has no code for strain" in told
    assert "SEG-Y does not hold the kinds of the sources" in told


def test_masked_traces_are_not_written_to_segy(convert, tmp_path):
    survey, data = example_survey()
    mask = np.arange(7) < np.array([7, 3, 5, 1, 7])[:, None]
    data[~mask] = np.nan
    first = write_gathers(tmp_path / "a.h5", replace(survey, mask=mask), data)
    convert("a.h5", "a.sgy")
    found, traces = read_gathers(convert("a.sgy", "b.h5", "--wavelet", first))
    np.testing.assert_array_equal(found.mask, mask)
    np.testing.assert_array_equal(traces, np.where(mask[..., None], data, 0.0))
    np.testing.assert_array_equal(found.receivers[mask], survey.receivers[mask])


def test_segyio_reads_the_written_file(convert, tmp_path):
    survey, data = example_survey()
    write_gathers(tmp_path / "a.h5", survey, data)
    with segyio.open(convert("a.h5", "a.sgy"), ignore_geometry=True) as file:
        np.testing.assert_array_equal(file.trace.raw[:], data.reshape(35, 40))
        assert segyio.tools.dt(file) == 2000.0
        counts = segyio.BinField.Traces, segyio.BinField.AuxTraces
        assert [file.bin[count] for count in counts] == [7, 0], "the traces of a shot"
        header = file.header[8]
        assert header[segyio.TraceField.FieldRecord] == 2
        scalar = -header[segyio.TraceField.SourceGroupScalar]
        assert header[segyio.TraceField.GroupX] / scalar == survey.receivers[1, 1, 1]
        assert "Written by hpcfwi" in segyio.tools.wrap(file.text[0])


def test_rounding_of_positions_in_segy_is_reported(convert, tmp_path, capsys):
    survey, data = example_survey()
    survey.sources[0, 1] = 100.0 / 3.0  # has more digits than a header field can hold
    write_gathers(tmp_path / "a.h5", survey, data)
    convert("a.h5", "a.sgy")
    assert "a.h5, positions are rounded to 0.0001 m" in capsys.readouterr().out
    found, _ = read_gathers(convert("a.sgy", "b.h5"))
    assert abs(found.sources[0, 1] - 100.0 / 3.0) <= 0.5e-4


@pytest.mark.usefixtures("no_figures")
def test_inversion_after_conversion_through_segy_has_the_same_bits(hpcfwi, convert, tmp_path):
    changes = {
        "inversion.epochs": 2,
        "wave.engine": "eager",
        "survey.duration": 0.3,
        "survey.sources.last": 1125.0,  # whole multiples of 0.1 m, as SEG-Y needs them
        "survey.receivers.last": 1160.0,
    }
    config = write_input(tmp_path, changes)
    assert hpcfwi("run", config, "--quiet") == 0
    convert("run/observed.h5", "line.sgy")
    convert("line.sgy", "again.h5", "--wavelet", tmp_path / "run" / "observed.h5")
    for name in ("run/observed.h5", "again.h5"):
        survey = {"survey": {"file": str(tmp_path / name)}}
        start = {"model.initial": {"file": str(tmp_path / "run" / "initial.h5")}}
        directory = tmp_path / f"of {name.replace('/', ' ')}"
        other = {k: v for k, v in changes.items() if not k.startswith("survey")}
        other |= {**survey, **start, "output.directory": str(directory)}
        assert hpcfwi("run", write_input(tmp_path, other, "other"), "--quiet") == 0
    models = [read_vp(folder) for folder in sorted(tmp_path.glob("of *"))]
    assert models[0].tobytes() == models[1].tobytes()
