"""A job whose ranks may not open enough files ends before they connect."""

from __future__ import annotations

import resource

import pytest

from hpcfwi.errors import InputError
from hpcfwi.parallel import launch
from tests.ranks import run_ranks


def test_a_process_may_have_as_many_files_as_it_is_allowed():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        launch.allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_ranks_that_may_not_open_enough_files_are_told_before_they_connect():
    many = 10_000
    launch.check_files([launch.FILES + 3 * launch.FILES_OF_ROOT, launch.FILES + 3, many])
    with pytest.raises(InputError, match=r"^rank 0: it may open 1024 files, and takes 1600 among"):
        launch.check_files([1024] * 512)
    with pytest.raises(InputError, match=r"^rank 2: it may open 60 files"):
        launch.check_files([many, many, 60])


# Descriptors before a watch is open, in a first one and in a second one, and those asked for.
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


def test_what_is_asked_for_is_what_rank_0_has_under_watch():
    found = {}
    for n in (2, 5):
        done = run_ranks(n, WATCHED, warm=True)
        assert done.returncode == 0, done.stderr
        found[n] = [int(count) for count in done.stdout.split()]
    _, first, *later = found[5]
    assert first - found[2][1] == 3 * launch.FILES_OF_ROOT
    assert max(later) <= first, "a watch gives back what it has taken"
    assert first <= launch.FILES + 5 * launch.FILES_OF_ROOT


def test_where_there_is_no_limit_no_rank_is_one_too_many(monkeypatch):
    infinity = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (infinity, infinity))
    launch.check_files([launch.count_files_allowed()] * 1_000_000)
