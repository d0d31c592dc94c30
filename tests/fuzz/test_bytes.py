"""A short run of the fuzzer `mutate`."""

from __future__ import annotations

import sys

import pytest

from tests.fuzz.test_inputs import MANY
from tests.ranks import ROOT, run_command


@pytest.mark.timeout(0 if MANY > 1 else 600)
def test_damaged_files_are_read_or_refused_within_20_s_and_1_gb():
    command = [sys.executable, "-m", "tests.fuzz.mutate", "--count", str(28 * MANY)]
    # One thread: OpenMP hangs in forks of a process that has used several
    end = run_command(command, cwd=ROOT, timeout=None)
    assert f"{28 * MANY} files, 0 failures" in end.stdout
