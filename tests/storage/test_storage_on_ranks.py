"""Tests of model and gathers files on several ranks."""

from __future__ import annotations

import json
import signal

import h5py
import numpy as np
import pytest

from hpcfwi.model import Model
from hpcfwi.parallel.context import Context
from hpcfwi.storage.gathers import create_gathers
from hpcfwi.storage.models import write_model
from tests.ranks import long_form, run_ranks
from tests.storage.examples import N_SHOTS, example_model, example_survey, example_traces


def run_program(ranks, name, folder, code=0):
    program = ["-m", "tests.storage.rank_programs", name, str(folder)]
    return run_ranks(ranks, program, warm=True, code=code)


def contents(path):
    with h5py.File(path) as file:
        arrays = {key: (d.dtype.str, d.chunks, d[...].tobytes()) for key, d in file.items()}
        return arrays, {key: np.asarray(value).tolist() for key, value in file.attrs.items()}


@pytest.mark.parametrize("ranks", [1, 3, long_form(2), long_form(4)])
def test_gathers_have_the_same_bytes_on_any_number_of_ranks(ranks, tmp_path):
    write_model(tmp_path / "model.h5", example_model())
    alone = tmp_path / "alone.h5"
    with create_gathers(alone, example_survey(), Context.alone(), {"made_by": "ranks"}) as writer:
        writer.write(np.arange(N_SHOTS), example_traces())

    run_program(ranks, "round_trip", tmp_path)

    for mode in ("mpio", "serial", "torchrun"):
        assert contents(tmp_path / f"{mode}.h5") == contents(alone)
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(("before", "after"), [(2, 3), long_form(1, 3), long_form(2, 1)])
def test_shots_of_killed_ranks_are_kept_on_any_number_of_ranks(before, after, tmp_path):
    alone = tmp_path / "alone.h5"
    with create_gathers(alone, example_survey(), Context.alone()) as writer:
        writer.write(np.arange(N_SHOTS), example_traces())
    run_program(before, "begin_and_die", tmp_path, code=128 + signal.SIGKILL)

    done = run_program(after, "write_the_rest", tmp_path)

    left = list(range(2 * before, N_SHOTS))
    assert done.stdout.splitlines() == [f"{mode} {left}" for mode in ("mpio", "serial", "torchrun")]
    for mode in ("mpio", "serial", "torchrun"):
        assert contents(tmp_path / f"{mode}.h5") == contents(alone)


def test_traces_are_sent_only_to_rank_0_and_not_pickled(tmp_path):
    done = run_program(3, "count_sent_bytes", tmp_path)
    for line in done.stdout.splitlines():
        mode, told = line.split(maxsplit=1)
        (root, _), *others = told = json.loads(told)
        assert root < 100_000, "rank 0 sends few bytes"
        assert all(sent < 1_200_000 for sent, _ in others), mode
        assert all(pickled < 10_000 for _, pickled in told), mode
    assert len(done.stdout.splitlines()) == 2


def test_all_ranks_raise_the_same_error_if_rank_0_cannot_write(tmp_path):
    done = run_program(3, "full_disk", tmp_path)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("3 1 ")
        assert "cannot be written (No space left on device)" in line


def test_all_ranks_raise_the_same_error_for_a_bad_file(tmp_path):
    (tmp_path / "text.h5").write_text("no HDF5")
    (tmp_path / "occupied.h5.part").mkdir()
    write_model(tmp_path / "model.h5", example_model())
    write_model(tmp_path / "nan.h5", Model(example_model().grid, {"vp": np.full((6, 8), np.nan)}))

    done = run_program(3, "bad_input", tmp_path)

    lines = [line for line in done.stdout.splitlines() if line]
    expected = ("no such file", "48 of 48", "not an HDF5", "cannot be created", "is a directory")
    assert len(lines) == 3 * len(expected)
    for line, problem in zip(lines, 3 * expected, strict=True):
        assert line.startswith("3 1 ")
        assert problem in line


def test_ranks_that_stop_together_leave_no_finished_file(tmp_path):
    run_program(2, "stop_on_all_ranks", tmp_path, code=3)
    assert not (tmp_path / "data.h5").exists()


def test_all_ranks_raise_an_error_for_a_shot_that_was_not_written(tmp_path):
    done = run_program(2, "forget_a_shot", tmp_path, code=1)
    assert done.stderr.count("shots [4] were never written") == 2
    assert not (tmp_path / "data.h5").exists()


def test_rank_that_fails_alone_ends_the_job_without_waiting(tmp_path):
    done = run_program(2, "fail_on_one_rank", tmp_path, code=7)
    assert "rank 1 is out of luck" in done.stderr
    assert not (tmp_path / "data.h5").exists()
