"""Tests of the limit of open files, which is checked before the ranks connect."""

from __future__ import annotations

import resource
import sys

import pytest

from hpcfwi.errors import InputError
from hpcfwi.parallel import launch
from tests.ranks import run_ranks


def test_soft_limit_of_open_files_is_raised_to_the_hard_limit():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        launch.allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_too_low_a_limit_of_open_files_is_an_input_error():
    many = 10_000
    launch.check_files([launch.FILES + 3 * launch.FILES_OF_ROOT, launch.FILES + 3, many])
    with pytest.raises(InputError, match=r"^rank 0: it may open 1024 files, but needs 1600 among"):
        launch.check_files([1024] * 512)
    with pytest.raises(InputError, match=r"^rank 2: it may open 60 files"):
        launch.check_files([many, many, 60])


# Prints the number of descriptors before a watch and in each of three watches
WATCHED = """
import os
from hpcfwi.parallel.watch import StopRequest
from hpcfwi.parallel.watch import Watch
from hpcfwi.parallel.launch import launch

def count():
    found = len(os.listdir("/proc/self/fd"))
    context.barrier()
    return found

context = launch(gpus=False)
with StopRequest(context) as stop:
    counts = [count()]
    for _ in range(3):
        with Watch(context, stop, lambda: "nothing"):
            counts.append(count())
        context.barrier()
if context.is_root:
    print(*counts)
context.close()
"""


def test_required_descriptors_match_those_of_rank_0_under_watch():
    found = {}
    for n in (2, 5):
        done = run_ranks(n, WATCHED, warm=True)
        found[n] = [int(count) for count in done.stdout.split()]
    _, first, *later = found[5]
    assert first - found[2][1] == 3 * launch.FILES_OF_ROOT
    assert max(later) <= first, "a watch closes its descriptors"
    assert first <= launch.FILES + 5 * launch.FILES_OF_ROOT


def test_unlimited_open_files_allow_any_number_of_ranks(monkeypatch):
    infinity = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (infinity, infinity))
    allowed = launch.allow_many_files()
    assert allowed == sys.maxsize
    launch.check_files([allowed] * 1_000_000)
