"""Tests of the background writer."""

from __future__ import annotations

import threading
import time

import h5py
import numpy as np
import pytest

from hpcfwi.errors import WriteFailure
from hpcfwi.parallel.context import Context
from hpcfwi.run.recorder import WAITING, BackgroundWriter
from hpcfwi.storage.gathers import GatherReader, Prefetcher, create_gathers
from hpcfwi.storage.hdf5 import created_whole
from tests.storage.examples import example_survey, example_traces

FULL = WriteFailure("model.h5", "No space left on device", "Free space.")


def fail():
    raise FULL


def test_jobs_are_done_in_order_in_another_thread():
    done, threads = [], set()

    def job(number, *, sign):
        threads.add(threading.current_thread())
        done.append(sign * number)

    with BackgroundWriter() as writer:
        for number in range(50):
            writer.submit(job, number, sign=-1)
    assert done == [-number for number in range(50)]
    assert len(threads) == 1
    assert threading.current_thread() not in threads


def test_submit_blocks_when_too_many_jobs_wait():
    proceed = threading.Event()
    with BackgroundWriter() as writer:
        for _ in range(1 + WAITING):
            writer.submit(proceed.wait)
        threading.Timer(0.2, proceed.set).start()
        started = time.monotonic()
        writer.submit(lambda: None)
        assert time.monotonic() - started > 0.1


def test_flush_waits_for_submitted_jobs():
    done = []
    with BackgroundWriter() as writer:
        writer.submit(lambda: time.sleep(0.1) or done.append(1))
        writer.flush()
        assert done == [1]


def test_writer_without_background_runs_jobs_at_once():
    done = []
    with BackgroundWriter(behind=False) as writer:
        writer.submit(lambda: time.sleep(0.1) or done.append(1))
        assert done == [1]
        with pytest.raises(WriteFailure):
            writer.submit(fail)
        writer._error = None


@pytest.mark.parametrize("call", ["submit", "check", "flush", "close"])
def test_error_is_raised_at_the_next_call(call):
    writer = BackgroundWriter()
    writer.submit(fail)
    while not writer._under_way[0].done():
        time.sleep(0.001)
    with pytest.raises(WriteFailure, match="No space"):
        getattr(writer, call)(*[list] * (call == "submit"))


def test_no_job_runs_after_an_error():
    done, proceed = [], threading.Event()
    writer = BackgroundWriter()
    writer.submit(lambda: proceed.wait() and fail())
    writer.submit(done.append, 1)
    proceed.set()
    for call in (writer.flush, lambda: writer.submit(done.append, 2), writer.close):
        with pytest.raises(WriteFailure, match="No space"):
            call()
    assert done == []


def test_error_of_the_last_job_is_raised_by_the_with_statement():
    with pytest.raises(WriteFailure, match="No space"), BackgroundWriter() as writer:
        writer.submit(fail)


def interrupt(job):
    with BackgroundWriter() as writer:
        writer.submit(job)
        raise ArithmeticError


def test_error_is_logged_if_the_with_statement_raises_another(caplog):
    with pytest.raises(ArithmeticError):
        interrupt(fail)
    assert "No space left" in caplog.text


def test_submitted_jobs_complete_after_an_exception():
    done = []
    with pytest.raises(ArithmeticError):
        interrupt(lambda: time.sleep(0.1) or done.append(1))
    assert done == [1]


def test_hdf5_files_are_written_while_another_thread_reads_one(tmp_path):
    survey, traces = example_survey(), example_traces()
    shots = np.arange(len(traces))
    with create_gathers(tmp_path / "data.h5", survey, Context.alone()) as gathers:
        gathers.write(shots, traces)

    def write(number, values):
        with created_whole(tmp_path / f"{number}.h5") as file:
            file["values"] = values

    with (
        GatherReader(tmp_path / "data.h5", Context.alone()) as reader,
        Prefetcher(reader) as prefetcher,
        BackgroundWriter() as writer,
    ):
        for number in range(40):
            read = prefetcher.request(shots)
            writer.submit(write, number, np.full(10**5, number))
            np.testing.assert_array_equal(read(), traces)
    for number in range(40):
        with h5py.File(tmp_path / f"{number}.h5") as file:
            assert (file["values"][...] == number).all()
