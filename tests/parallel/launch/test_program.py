"""Tests of `hpcfwi.launch`, with which programs of users get ranks."""

from __future__ import annotations

import pytest

import hpcfwi
from tests.ranks import run_ranks


def test_program_alone_is_a_single_rank_and_raises_its_errors():
    with hpcfwi.launch() as context:
        assert (context.rank, context.size) == (0, 1)
    with pytest.raises(KeyError), hpcfwi.launch():
        raise KeyError


def test_program_under_mpirun_has_all_ranks():
    program = "import hpcfwi\nwith hpcfwi.launch() as c: print(c.size, sum(c.all_gather(c.rank)))"
    done = run_ranks(3, program, warm=True)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["3 3"] * 3), done.stderr


def test_failed_rank_ends_the_program_with_its_traceback():
    program = (
        "import hpcfwi\n"
        "with hpcfwi.launch() as c:\n"
        "    if c.rank == 1: raise ValueError('one is enough')\n"
        "    c.barrier()\n"
    )
    done = run_ranks(3, program, warm=True)
    assert done.returncode == 1
    assert "hpcfwi: rank 1 on" in done.stderr
    assert done.stderr.count("ValueError: one is enough") == 1
