"""Tests of gathers files in one process; `test_storage_on_ranks` tests several ranks."""

from __future__ import annotations

import errno
import re
import time
from dataclasses import replace as changed

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.errors import InputError
from hpcfwi.parallel.context import Context
from hpcfwi.storage.gathers import GatherReader, create_gathers, read_layout
from hpcfwi.survey import Survey
from tests.storage.examples import N_RECEIVERS, N_SHOTS, example_survey, example_traces


def write_example(path, per_shot=False, ndim=2):
    survey = example_survey(per_shot, ndim)
    with create_gathers(path, survey, Context.alone(), {"made_by": "a test"}) as writer:
        writer.write(np.array([3, 0]), example_traces()[[3, 0]])
        writer.write(np.array([], dtype=int), example_traces()[:0])
        writer.write(np.array([1, 2, 4]), example_traces()[[1, 2, 4]])
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_example(tmp_path_factory.mktemp("gathers") / "observed.h5")


@given(shots=st.lists(st.integers(0, N_SHOTS - 1), max_size=8))
def test_shots_are_read_in_the_requested_order(shots, path):
    with GatherReader(path, Context.alone()) as reader:
        traces = reader.read(np.array(shots, dtype=np.int64))
    assert traces.dtype == np.float32
    np.testing.assert_array_equal(traces, example_traces()[shots])


@pytest.mark.parametrize("ndim", [2, 3])
@pytest.mark.parametrize("per_shot", [False, True])
def test_survey_is_read_as_it_was_written(per_shot, ndim, tmp_path):
    path = write_example(tmp_path / "observed.h5", per_shot, ndim)
    with GatherReader(path, Context.alone()) as reader:
        read, written = reader.survey, example_survey(per_shot, ndim)
        assert read_layout(reader._path) == (read.shape, {"made_by": "a test"})
    assert read.dt == written.dt
    for name in ("sources", "receivers", "wavelet"):
        np.testing.assert_array_equal(getattr(read, name), getattr(written, name))
        assert getattr(read, name).dtype == getattr(written, name).dtype


MASK = np.random.default_rng(5).uniform(size=(N_SHOTS, N_RECEIVERS)) < 0.7


@pytest.mark.parametrize("unheard", [np.nan, np.inf, 7.0])
def test_masked_traces_are_read_as_zero(unheard, tmp_path):
    traces = np.where(MASK[..., None], example_traces(), np.float32(unheard))
    path, survey = tmp_path / "observed.h5", changed(example_survey(), mask=MASK)
    with create_gathers(path, survey, Context.alone()) as writer:
        writer.write(np.arange(N_SHOTS), traces)
    with h5py.File(path) as file:
        assert file["mask"].dtype == bool
    with GatherReader(path, Context.alone()) as reader:
        np.testing.assert_array_equal(reader.survey.mask, MASK)
        shots = np.array([4, 1])
        np.testing.assert_array_equal(
            reader.read(shots), np.where(MASK[..., None], example_traces(), 0.0)[shots]
        )


@pytest.mark.parametrize("kind", ["i1", "u1", "i4", "f8"])
def test_attributes_as_arrays_and_masks_of_numbers_are_read(kind, tmp_path):
    """MATLAB, C and Fortran write such files."""
    path = write_example(tmp_path / "observed.h5")
    with h5py.File(path, "a") as file:
        file["mask"] = MASK.astype(kind)
        file.attrs["dt"] = np.array([[0.0025]])
        file.attrs["version"] = np.array([1.0])
        file.attrs["format"] = np.bytes_(b"hpcfwi-gathers  ")
    with GatherReader(path, Context.alone()) as reader:
        assert reader.survey.dt == 0.0025
        assert reader.survey.mask.dtype == bool
        np.testing.assert_array_equal(reader.survey.mask, MASK)


def test_missing_shots_come_in_rounds_of_limited_size(tmp_path):
    writer = create_gathers(tmp_path / "observed.h5", example_survey(), Context.alone())
    writer.write(np.array([1]), example_traces()[1:2])
    writer.close()
    with create_gathers(tmp_path / "observed.h5", example_survey(), Context.alone()) as writer:
        rounds = list(writer.rounds(2))
        assert max(shots.size for shots in rounds) == 2
        np.testing.assert_array_equal(np.concatenate(rounds), [0, *range(2, N_SHOTS)])
        for shots in rounds:
            writer.write(shots, example_traces()[shots])


def test_unfinished_file_with_another_mask_is_not_continued(tmp_path):
    for mask in (MASK, None, MASK, ~MASK):
        survey = changed(example_survey(), mask=mask)
        writer = create_gathers(tmp_path / "observed.h5", survey, Context.alone())
        assert writer.left.size == N_SHOTS
        writer.write(np.array([0]), example_traces()[:1])
        writer.close()


def test_reader_with_a_known_survey_does_not_read_it_again(tmp_path):
    path = write_example(tmp_path / "observed.h5")
    with GatherReader(path, Context.alone()) as reader:
        survey, traces = reader.survey, reader.read(np.array([2, 0]))
    with h5py.File(path, "a") as file:
        del file["receivers"]
    with GatherReader(path, Context.alone(), survey) as reader:
        assert reader.survey is survey
        np.testing.assert_array_equal(reader.read(np.array([2, 0])), traces)
    with h5py.File(path, "a") as file:
        shape = file["data"].shape
        del file["data"]
        file["data"] = np.zeros((shape[0] + 1, *shape[1:]), np.float32)
    with pytest.raises(InputError, match=r"/data: its shape is .*, but was .* when the survey"):
        GatherReader(path, Context.alone(), survey)


def test_traces_are_stored_in_one_chunk_per_shot(path):
    with h5py.File(path) as file:
        assert file["data"].chunks == (1, *file["data"].shape[1:])


def test_shot_larger_than_a_chunk_has_several_chunks(tmp_path):
    shape = (1, 2**20 + 1, 2**10)
    survey = Survey(
        np.zeros((1, 3)), np.zeros((shape[1], 3)), np.zeros(shape[2], np.float32), 0.002
    )
    create_gathers(tmp_path / "observed.h5", survey, Context.alone()).close()
    with h5py.File(tmp_path / "observed.h5.part") as file:
        assert file["data"].shape == shape
        assert file["data"].chunks == (1, 2**20 - 1, 2**10)


def test_file_gets_its_final_name_when_it_is_finished(tmp_path):
    path = tmp_path / "observed.h5"
    writer = create_gathers(path, example_survey(), Context.alone())
    writer.write(np.arange(N_SHOTS), example_traces())
    assert not path.exists()
    writer.finish()
    assert list(tmp_path.iterdir()) == [path]


def test_file_with_a_missing_shot_is_not_finished(tmp_path):
    path = tmp_path / "observed.h5"
    with pytest.raises(RuntimeError, match=r"shots \[0\] were never"):  # noqa: SIM117
        with create_gathers(path, example_survey(), Context.alone()) as writer:
            writer.write(np.arange(1, N_SHOTS), example_traces()[1:])
    assert not path.exists()


def replace(key, change):
    def apply(file):
        values = file[key][...]
        del file[key]
        file[key] = change(values)

    return apply


def with_nan(values):
    values.flat[3] = np.nan
    return values


def put_mask(mask):
    return lambda file: file.create_dataset("mask", data=mask)


def attribute(key, value):
    return lambda file: file.attrs.__setitem__(key, value)


BAD = {
    "another format": (attribute("format", "hpcfwi-model"), "attribute format", "hpcfwi-gathers"),
    "newer version": (attribute("version", 9), "attribute version", "found 9"),
    "no data": (lambda file: file.pop("data"), "/data", "holds /digests, /receivers, /sources"),
    "flat data": (replace("data", lambda d: d[0]), "/data", r"\(4, 11\), expected \(shot, rec"),
    "no shots": (replace("data", lambda d: d[:0]), "/data", r"\(0, 4, 11\)"),
    "integers": (replace("data", lambda d: d.astype(int)), "/data", "int64"),
    "complex": (replace("wavelet", lambda w: w * 1j), "/wavelet", "complex"),
    "a missing source": (
        replace("sources", lambda s: s[1:]),
        "/sources",
        r"\(4, 2\).*\(5, 4, 11\)",
    ),
    "x only": (replace("sources", lambda s: s[:, :1]), "/sources", r"\(5, 1\), expected \(5, 2\)"),
    "an additional receiver": (
        replace("receivers", lambda r: np.vstack([r, r[:1]])),
        "/receivers",
        r"\(5, 2\), expected \(4, 2\) or \(5, 4, 2\)",
    ),
    "receivers in 3-D": (
        replace("receivers", lambda r: r[:, [0, 0, 1]]),
        "/receivers",
        r"\(4, 3\), expected \(4, 2\)",
    ),
    "a short wavelet": (replace("wavelet", lambda w: w[:-1]), "/wavelet", r"\(10,\).*\(11,\) or"),
    "NaN position": (replace("receivers", with_nan), "/receivers", r"1 of 8 .* index \(1, 1\)"),
    "NaN source": (replace("sources", with_nan), "/sources", r"1 of 10 .* index \(1, 1\)"),
    "NaN wavelet": (replace("wavelet", with_nan), "/wavelet", r"1 of 11 .* index \(3,\)"),
    "a mask of weights": (
        put_mask(0.5 * MASK),
        "/mask",
        r"found 0\.5, expected true or false, or 1",
    ),
    "a mask of strings": (put_mask(MASK.astype("S1")), "/mask", "S1.*, expected true or"),
    "a short mask": (put_mask(MASK[1:]), "/mask", r"\(4, 4\), expected \(5, 4\)"),
    "a shot without receivers": (
        put_mask(MASK & (np.arange(N_SHOTS) != 2)[:, None]),
        "/mask",
        "1 of 5 shots .* shot 2",
    ),
    "no dt": (lambda file: file.attrs.pop("dt"), "attribute dt", "found None"),
    "dt of 0": (attribute("dt", 0.0), "attribute dt", r"found 0\.0, expected a number above 0"),
    "negative dt": (attribute("dt", -0.002), "attribute dt", "-0.002"),
    "NaN dt": (attribute("dt", np.nan), "attribute dt", "nan"),
    "several dt": (attribute("dt", [0.002, 0.002]), "attribute dt", r"found \[0\.002, 0\.002\]"),
    "dt as text": (attribute("dt", "2 ms"), "attribute dt", "'2 ms'"),
}


@pytest.mark.parametrize("fault", BAD)
def test_error_for_bad_gathers_names_the_file_and_the_key(fault, tmp_path):
    change, where, problem = BAD[fault]
    path = write_example(tmp_path / "observed.h5")
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(InputError) as caught:
        GatherReader(path, Context.alone())
    assert caught.value.where == f"{path}, {where}"
    assert re.search(problem, caught.value.problem)


def elsewhere(path, private, how):
    """Let the traces of a gathers file refer to those of a private file."""
    with h5py.File(path, "r+") as file:
        shape = file["data"].shape
        if how == "a file of any kind":
            del file["data"]
            there = [(str(private), file_offset(private), h5py.h5f.UNLIMITED)]
            file.create_dataset("data", shape, "f4", external=there)
        elif how == "a link":
            file.move("data", "old")
            file["data"] = h5py.ExternalLink(str(private), "/data")
        else:
            layout = h5py.VirtualLayout(shape, "f4")
            layout[...] = h5py.VirtualSource(str(private), "data", shape)
            del file["data"]
            file.create_virtual_dataset("data", layout)


def file_offset(path):
    with h5py.File(path) as file:
        return file["data"].id.get_chunk_info(0).byte_offset


@pytest.mark.parametrize("how", ["a file of any kind", "a link", "a virtual dataset"])
@pytest.mark.parametrize("when", ["before it is opened", "after a look at it"])
def test_traces_stored_in_another_file_are_refused(how, when, tmp_path):
    """The author of the file may have no right to read them, and figures would publish them."""
    private = write_example(tmp_path / "private.h5")
    path = write_example(tmp_path / "observed.h5")
    if when == "before it is opened":
        elsewhere(path, private, how)
        with pytest.raises(InputError, match="/data: its values are in another file"):
            GatherReader(path, Context.alone())
        return
    other = write_example(tmp_path / "other.h5")
    elsewhere(other, private, how)
    with GatherReader(path, Context.alone()) as reader:
        reader._file.close()
        reader._file = h5py.File(other)
        with pytest.raises(InputError, match="/data: its values are in another file"):
            reader.read(np.array([0]))


def test_read_is_repeated_after_a_momentary_error(path, monkeypatch, caplog):
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    read_direct, left = h5py.Dataset.read_direct, [2]

    def fail_at_first(*args):
        if left[0] > 0:
            left[0] -= 1
            raise OSError(errno.EIO, "Can't read data (file read failed)")
        read_direct(*args)

    monkeypatch.setattr(h5py.Dataset, "read_direct", fail_at_first)
    with GatherReader(path, Context.alone()) as reader:
        np.testing.assert_array_equal(reader.read(np.arange(2)), example_traces()[:2])
        assert len(pauses) == 2
        assert f"{path} cannot be read (Input/output error): trying again" in caplog.text
        left[0] = 1000
        with pytest.raises(InputError, match=r"cannot be read \(Input/output error\)"):
            reader.read(np.arange(2))
    assert 29.0 < sum(pauses[2:]) < 31.0
