"""
A network for the model
=======================

This example inverts for the weights of a network that computes the model. On several ranks, each
rank evaluates the network at a part of the points.

A SIREN (Sitzmann et al. 2020) maps coordinates to velocities. The model is smooth at first and gets
finer during the inversion. The shots give the gradient with respect to the model, which is the same
on every rank; torch backpropagates it to the weights. On several ranks,
``mpirun -n 2 python examples/siren.py``, the network is sharded: each rank stores a part of the
weights, of their gradients, and of the state of Adam.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import hpcfwi
from hpcfwi.inversion.networks import Siren
from hpcfwi.model import Grid, Model
from hpcfwi.operators import Shots, distribute
from hpcfwi.survey import Survey
from hpcfwi.wave.numerics import ricker

grid = Grid(shape=(31, 51), spacing=(20.0, 20.0), origin=(0.0, 0.0))  # m, (z, x)
z, x = torch.meshgrid(torch.arange(31), torch.arange(51), indexing="ij")
start = torch.full(grid.shape, 2000.0)  # m/s
true = start - 150.0 * torch.exp(-(((z - 15) / 5) ** 2) - ((x - 25) / 7) ** 2)
points = torch.stack([z / 15 - 1, (x - 25) / 15], -1).reshape(-1, 2).float()

along, across = np.linspace(100.0, 900.0, 6), np.arange(40.0, 980.0, 20.0)
survey = Survey(
    sources=np.column_stack([np.full_like(along, 40.0), along]),  # (shot, (z, x)), m
    receivers=np.column_stack([np.full_like(across, 560.0), across]),
    wavelet=ricker(8.0, 300, 0.002, delay=0.15).astype(np.float32),
    dt=0.002,  # s
)


def make_network(context):
    """Return the network, whose last layer is zero, so that its initial output is zero."""
    torch.manual_seed(0)
    network = Siren(grid.shape, 1, width=32, depth=2, omega=6.0)
    torch.nn.init.zeros_(network.last.weight)
    torch.nn.init.zeros_(network.last.bias)
    if context.size > 1:
        mesh = init_device_mesh("cpu", (context.size,))
        for layer in network.hidden:
            fully_shard(layer, mesh=mesh)
        fully_shard(network, mesh=mesh)
    return network


# %%
# Each rank evaluates the network at its own points, and a sum over ranks gives the complete model.
# In the backward pass it uses the gradient at its own points only. The wrapper averages over ranks,
# so that the loss is multiplied by their number.


def invert(context):
    """Return the model and the misfits of all steps."""
    shots, network = distribute(Shots(survey, grid), context), make_network(context)
    observed = shots(Model(grid, {"vp": true}))
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    mine, misfits = slice(context.rank, None, context.size), []
    for _ in range(25):
        values = network(points[mine])
        whole = torch.zeros(len(points), 1)
        whole[mine] = values.detach()
        vp = 2000.0 + 100.0 * context.sum(whole).reshape(grid.shape)
        residual = shots(Model(grid, {"vp": vp})) - observed
        gradient = shots.vjp(Model(grid, {"vp": vp}), residual)["vp"].reshape(-1, 1)
        optimizer.zero_grad()
        (values * gradient[mine]).sum().mul(context.size).backward()
        optimizer.step()
        misfits.append(0.5 * survey.dt * residual.square().sum().item())
    return vp, misfits


with hpcfwi.launch() as context:
    found, misfits = invert(context)

# %%
# ``hpcfwi run`` does the same for complete surveys with the line ``network = { kind = "siren" }``,
# and its results have the same bits on any number of ranks.

if context.is_root:
    figure, panels = plt.subplots(1, 2, figsize=(8, 2.8), layout="constrained", sharey=True)
    for axes, model, title in zip(panels, (true, found), ("true", "found"), strict=True):
        image = axes.imshow(model, vmin=1850, vmax=2050, extent=(0, 1.0, 0.6, 0))
        axes.set(title=title, xlabel="x (km)")
    panels[0].set(ylabel="depth (km)")
    figure.colorbar(image, ax=panels, label="m/s")
    print(f"{context.size} ranks, misfit {misfits[0]:.3e} -> {misfits[-1]:.3e}")
