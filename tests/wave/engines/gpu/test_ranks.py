"""Tests of the gpu engine on two ranks, which share a GPU or have one each."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from hpcfwi.parallel.context import Context
from tests.ranks import make_env
from tests.wave.engines.gpu.add_gradients import CARD, add_gradients

pytestmark = pytest.mark.usefixtures("quick_interpreter")

SEEN = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
# Torchrun is available on all machines with torch, unlike mpirun
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


# With one GPU, ranks share it and sum with gloo; with two, each has one and they use NCCL
CARDS = [1, 2] if torch.cuda.device_count() > 1 else [1]


@pytest.mark.long
@pytest.mark.parametrize("cards", CARDS)
def test_gradients_of_two_ranks_have_the_bits_of_one_rank(cards: int) -> None:
    words = [sys.executable, *TORCHRUN, "-m", "tests.wave.engines.gpu.add_gradients"]
    env = {**make_env(), "CUDA_VISIBLE_DEVICES": ",".join(SEEN[:cards])} if CARD else make_env()
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    device = torch.device("cuda:0" if CARD else "cpu")
    alone = add_gradients(Context.alone(str(device)))
    sharers = 2 if CARD and cards == 1 else 1
    assert done.stdout.splitlines()[-1] == f"2 {sharers} {alone}"
