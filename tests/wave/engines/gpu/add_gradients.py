"""A program for ranks that sums gradients of the gpu engine exactly and prints a hash of the bits.

Each rank has its own GPU, or ranks share one. `test_ranks` runs it and compares the hashes.
"""

from __future__ import annotations

import hashlib

import torch

import hpcfwi
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.exact import ExactSum
from tests.wave.examples import Shots, random_shots, white_residual

CARD = torch.cuda.is_available()
SHOTS = 3
LARGEST = 4e-6  # magnitude in the gradients


def make_shot(number: int, device: torch.device) -> Shots:
    """Return a shot in the small model that all shots have in common."""
    shot = random_shots(
        shape=(10, 13), shots=1, receivers=3, samples=6, dt=1.8e-3, order=2, boundary=3,
        seed=number, engine="gpu",
    )  # fmt: skip
    model = random_shots(shape=(10, 13)).vp
    return Shots(
        model.to(device), shot.spacing, shot.dt, shot.wavelet.to(device), shot.sources,
        shot.receivers, shot.options,
    )  # fmt: skip


def add_gradients(context: Context) -> str:
    """Return the hash of the sum over all shots; collective."""
    device = context.device
    total = ExactSum((10, 13), LARGEST, SHOTS, device)
    for number in range(context.rank, SHOTS, context.size):
        simulation = make_shot(number, device).simulate(keep=True)
        gradients = simulation.backpropagate(white_residual(simulation.data))
        total.add(gradients.model["vp"][0])
    assert total.holds(max(context.all_gather(total.largest)))
    return hashlib.sha256(total.total(context).cpu().numpy().tobytes()).hexdigest()


if __name__ == "__main__":
    with hpcfwi.launch(gpus=CARD, share_gpus=CARD) as context:
        found = add_gradients(context)
        everyone = context.all_gather(found)
        if context.is_root:
            assert len(set(everyone)) == 1, everyone
            print(context.size, context.sharers, found)
