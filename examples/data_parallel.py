"""
DistributedDataParallel
=======================

This example uses the wave equation as a module in a training loop, which torch's
DistributedDataParallel distributes over ranks.

Each rank has a replica of the model and simulates its own shots; the wrapper averages the gradients
over ranks. Ten shots cannot be divided equally among four ranks, so that `share_of_mean` scales the
losses such that the average is the mean over all shots. A single process simulates all shots. With
``mpirun -n 4 python examples/data_parallel.py``, or
``torchrun --nproc-per-node 4 examples/data_parallel.py``, some ranks simulate three shots and the
others two.
"""

import matplotlib.pyplot as plt
import torch
from torch.nn.parallel import DistributedDataParallel

import hpcfwi
from hpcfwi.wave import Acoustic, share_of_mean
from hpcfwi.wave.numerics import ricker

z, x = torch.meshgrid(torch.arange(31), torch.arange(51), indexing="ij")
start = torch.full((31, 51), 2000.0)  # m/s, every 20 m, (z, x)
true = start - 150.0 * torch.exp(-(((z - 15) / 5) ** 2) - ((x - 25) / 7) ** 2)

dt = 0.002  # s
wavelet = torch.tensor(ricker(8.0, 300, dt, delay=0.15), dtype=torch.float32)
along = torch.linspace(100.0, 900.0, 10)
sources = torch.stack([torch.full_like(along, 40.0), along], dim=1)  # (shot, (z, x)), m
across = torch.arange(40.0, 980.0, 20.0)
receivers = torch.stack([torch.full_like(across, 560.0), across], dim=1)


def make_module(vp):
    """Return the module; its boundary is the same on all ranks, whatever their shots."""
    return Acoustic(vp, 20.0, dt, max_velocity=2200.0, boundary_frequency=8.0)


def invert(context):
    """Return the model and the misfits; all ranks, even without shots, must call the module."""
    mine = sources[context.rank :: context.size]
    observed = make_module(true)(wavelet, mine, receivers).detach()
    waves = make_module(start)
    wrapped = DistributedDataParallel(waves) if context.size > 1 else waves
    optimizer = torch.optim.Adam(waves.parameters(), lr=20.0, eps=1e-9)
    misfits = []
    for _ in range(5):
        optimizer.zero_grad()
        total = 0.5 * dt * (wrapped(wavelet, mine, receivers) - observed).square().sum()
        share_of_mean(total, shots=len(sources), ranks=context.size).backward()
        optimizer.step()
        misfits.append(sum(context.all_gather(total.item())) / len(sources))
    return waves.vp.detach(), misfits


# %%
# `hpcfwi.launch` detects how the program was started, and sets up torch.distributed if there are
# several ranks.

with hpcfwi.launch() as context:
    found, misfits = invert(context)

# %%
# The gradients are added in floating point, so that the last digits depend on the number of ranks.
# The sums in `denoiser.py` are exact.

if context.is_root:
    figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
    image = axes.imshow(found, vmin=1850, vmax=2050, extent=(0, 1.0, 0.6, 0))
    axes.set(title="found", xlabel="x (km)", ylabel="depth (km)")
    figure.colorbar(image, ax=axes, label="m/s")
    print(f"{context.size} ranks, misfit {misfits[0]:.6e} -> {misfits[-1]:.6e}")
