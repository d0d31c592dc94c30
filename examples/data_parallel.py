"""
DistributedDataParallel
=======================

The wave equation as a module of a training loop that torch's wrapper spreads over ranks.

Each rank has a replica of the model and simulates its own shots; the wrapper averages gradients.
Ten shots are not alike for four ranks: `share_of_mean` makes of the average the mean over all
shots. Alone this program does all shots; ``mpirun -n 4 python examples/data_parallel.py``, or
``torchrun --nproc-per-node 4 examples/data_parallel.py``, has three for some ranks and two for
others.
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
    """The boundary is tuned alike on all ranks, whatever shots they have."""
    return Acoustic(vp, 20.0, dt, max_velocity=2200.0, boundary_frequency=8.0)


def invert(context):
    """The model and the misfits; every rank calls the wrapped module, even one without shots."""
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
# `hpcfwi.launch` finds out how it was started, and starts torch.distributed among several ranks.

with hpcfwi.launch() as context:
    found, misfits = invert(context)

# %%
# Sums are in floating point, in whatever order the ranks are heard, so that their number shows in
# the last digits. `denoiser.py` adds exactly.

if context.is_root:
    figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
    image = axes.imshow(found, vmin=1850, vmax=2050, extent=(0, 1.0, 0.6, 0))
    axes.set(title="found", xlabel="x (km)", ylabel="depth (km)")
    figure.colorbar(image, ax=axes, label="m/s")
    print(f"{context.size} ranks, misfit {misfits[0]:.6e} -> {misfits[-1]:.6e}")
