"""A job whose ranks may not open enough files ends before they connect."""

from __future__ import annotations

import resource

import pytest

from hpcfwi.errors import InputError
from hpcfwi.parallel.launch import descriptors


def test_a_process_may_have_as_many_files_as_it_is_allowed():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        descriptors.allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_ranks_that_may_not_open_enough_files_are_told_before_they_connect():
    many = 10_000
    descriptors.check_files(
        [descriptors.FILES + 3 * descriptors.FILES_OF_ROOT, descriptors.FILES + 3, many]
    )
    with pytest.raises(InputError, match=r"^rank 0: it may open 1024 files, and takes 1088 among"):
        descriptors.check_files([1024] * 512)
    with pytest.raises(InputError, match=r"^rank 2: it may open 60 files"):
        descriptors.check_files([many, many, 60])


def test_where_there_is_no_limit_no_rank_is_one_too_many(monkeypatch):
    infinity = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (infinity, infinity))
    descriptors.check_files([descriptors.count_files_allowed()] * 1_000_000)
