"""Ranks that add up gradients of the gpu engine find the bits of one; on a card, sharing it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from hpcfwi.parallel.context import Context
from tests.ranks import make_env
from tests.wave.engines.gpu.add_gradients import CARD, add_gradients

pytestmark = pytest.mark.usefixtures("quick_interpreter")

# Known to all machines that have torch, unlike an mpirun
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.long
def test_two_ranks_find_the_bits_of_one() -> None:
    words = [sys.executable, *TORCHRUN, "-m", "tests.wave.engines.gpu.add_gradients"]
    done = subprocess.run(
        words, env=make_env(), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    device = torch.device("cuda:0" if CARD else "cpu")
    alone = add_gradients(Context.alone(str(device)))
    sharers = 2 if CARD else 1
    assert done.stdout.splitlines()[-1] == f"2 {sharers} {alone} {device}"
