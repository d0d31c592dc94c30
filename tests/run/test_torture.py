"""A short form of `make torture`, which draws no figures."""

from __future__ import annotations

import pytest

from tests.ranks import warm_python
from tests.torture import main


@pytest.mark.long
def test_kills_at_random_moments_do_not_change_a_bit(capsys):
    program = [*warm_python(), "-m", "tests.undrawn"]
    assert main(5, 4, program) == 0, capsys.readouterr().out
    assert "The bits of the undisturbed run, after 5 blows" in capsys.readouterr().out
