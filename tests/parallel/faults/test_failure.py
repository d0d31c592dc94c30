"""Tests of the agreement of failed ranks on whether all raised the same error."""

from __future__ import annotations

import io
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast
from unittest import mock

import pytest
import torch.distributed as dist

from hpcfwi.errors import InputError
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


def test_message_is_lost_without_an_error_if_the_disk_of_the_output_is_full(monkeypatch):
    """An error here would keep the job from being ended."""
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.FileIO("/dev/full", "w")))
    failure.tell(InputError("survey.file", "found nothing", "Write it."))
