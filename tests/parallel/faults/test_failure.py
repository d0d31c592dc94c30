"""Tests of the end of a job: ranks compare their errors, and signals that come meanwhile."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast
from unittest import mock

import pytest
import torch.distributed as dist

from hpcfwi import cli
from hpcfwi.errors import InputError, Stopped
from hpcfwi.parallel import failure
from hpcfwi.parallel.context import Context

SIZE = 40


def fail(errors):
    """Return for each rank if it is the first and if all errors agree, and the number of notes."""
    store = mock.Mock(wraps=dist.HashStore())
    alone = replace(Context.alone(), size=len(errors), store=store)

    def compare(rank):
        return failure._compare(replace(alone, rank=rank), errors[rank])

    with ThreadPoolExecutor(len(errors)) as pool:
        return list(pool.map(compare, range(len(errors)))), store.compare_set.call_count


def test_ranks_with_the_same_error_agree_with_one_note_each():
    found, passed = fail([InputError("model.file", "missing", "Give one.") for _ in range(SIZE)])
    assert [alike for _, alike in found] == [True] * SIZE
    assert sum(is_first for is_first, _ in found) == 1
    assert passed == SIZE


@pytest.mark.parametrize("odd", [0, SIZE - 1])
def test_rank_with_another_error_makes_all_disagree(odd):
    errors = [ValueError(str(rank == odd)) for rank in range(SIZE)]
    found, _ = fail(errors)
    assert [alike for _, alike in found] == [False] * SIZE


def test_failed_rank_disagrees_after_waiting_for_one_that_does_not_fail(monkeypatch):
    monkeypatch.setattr(failure, "COMPANY_WAIT", 0.1)
    alone = replace(Context.alone(), size=2, store=cast(Any, dist.HashStore()))
    assert failure._compare(alone, ValueError("mine")) == (True, False)


class Aborted(BaseException):
    """Raised in place of an end of all ranks."""


@pytest.fixture
def rank(monkeypatch):
    """Rank 0 of two, which receives SIGTERM while it waits for the other one."""

    def abort(_, code):
        raise Aborted(code)

    for name in ("COMPANY_WAIT", "END_WAIT", "LATE"):
        monkeypatch.setattr(failure, name, 0.3)
    monkeypatch.setattr(failure, "abort", abort)
    signal.signal(signal.SIGTERM, cli._stop_early)
    killer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM))
    killer.start()
    yield replace(Context.alone(), size=2, store=cast(Any, dist.HashStore()))
    killer.join()


def test_signal_does_not_replace_the_error_of_the_first_rank_that_fails(rank, capsys):
    with pytest.raises(Aborted, match="2"):
        failure.end_job(rank, InputError("model.file", "missing", "Give one."))
    assert capsys.readouterr().err.endswith(": model.file: missing. Give one.\n")


def test_signal_does_not_change_the_exit_code_of_an_error_of_all_ranks(rank, capsys):
    error = InputError("model.file", "missing", "Give one.")
    with pytest.raises(InputError):
        rank.raise_on_all_ranks(error)
    assert failure.end_job(rank, error) == 2
    assert capsys.readouterr().err == "hpcfwi: model.file: missing. Give one.\n"


def test_rank_that_fails_after_another_ends_at_a_signal_without_a_message(rank, capsys):
    rank.store.add("failed", 1)
    rank.store.compare_set("failure", "", "ValueError: of the first")
    with pytest.raises(Stopped):
        failure.end_job(rank, ValueError("a consequence"))
    assert capsys.readouterr().err == ""


def test_message_is_lost_without_an_error_if_the_disk_of_the_output_is_full(monkeypatch):
    """An error here would keep the job from being ended."""
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.FileIO("/dev/full", "w")))
    failure.tell(InputError("survey.file", "found nothing", "Write it."))
