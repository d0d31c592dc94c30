"""Programs of users that have ranks."""

from __future__ import annotations

import pytest

import hpcfwi
from tests.ranks import run_ranks


def test_alone_a_program_has_the_only_rank_and_its_errors_are_raised_on():
    with hpcfwi.launch() as context:
        assert (context.rank, context.size) == (0, 1)
    with pytest.raises(KeyError), hpcfwi.launch():
        raise KeyError


def test_ranks_of_a_program_add_up():
    program = "import hpcfwi\nwith hpcfwi.launch() as c: print(c.size, sum(c.all_gather(c.rank)))"
    done = run_ranks(3, program, warm=True)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["3 3"] * 3), done.stderr


def test_where_one_rank_fails_the_others_do_not_wait_for_it_and_it_says_why():
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
