"""
With deepinv: total variation
=============================

This example uses shots as a physics of deepinv, with its optimizers and priors.

`deepinv <https://deepinv.github.io>`_ solves inverse problems in imaging. It describes a
measurement by a `Physics`. Here the physics maps a change of the model, an image (1, 1, z, x), to
the scattered field at the receivers, data (1, shot, receiver, time). FISTA (Beck and Teboulle 2009)
and the prior, total variation for bodies with sharp edges, are those of deepinv.
``pip install 'hpcfwi[deepinv]'`` installs the packages for this example.
"""

import deepinv
import matplotlib.pyplot as plt
import numpy as np
import torch

from hpcfwi.interop.deepinv import as_physics
from hpcfwi.model import Grid, Model
from hpcfwi.operators import Shots
from hpcfwi.survey import Survey
from hpcfwi.wave.numerics import ricker

grid = Grid(shape=(31, 51), spacing=(20.0, 20.0), origin=(0.0, 0.0))  # m, (z, x)
start = torch.full(grid.shape, 2000.0)  # m/s
body = torch.zeros(grid.shape)
body[10:20, 18:34] = -30.0

along = np.linspace(100.0, 900.0, 4)
across = np.arange(40.0, 980.0, 20.0)
survey = Survey(
    sources=np.column_stack([np.full_like(along, 40.0), along]),  # (shot, (z, x)), m
    receivers=np.column_stack([np.full_like(across, 560.0), across]),
    wavelet=ricker(8.0, 300, 0.002, delay=0.15).astype(np.float32),
    dt=0.002,  # s
)
shots = Shots(survey, grid)
scattered = shots(Model(grid, {"vp": start + body})) - shots(Model(grid, {"vp": start}))
noise = torch.randn(scattered.shape, generator=torch.Generator().manual_seed(0))
data = (scattered + 2.0 * scattered.std() * noise)[None]

# %%
# The step of deepinv has the unit of 1 / (norm of the physics)², and the weight of the prior has
# that of the loss. Their product is in m/s; it is the amount by which each iteration reduces every
# edge.

physics = as_physics(shots.linearize(Model(grid, {"vp": start})))
torch.manual_seed(0)
step = 1.0 / physics.compute_sqnorm(torch.randn(1, 1, *grid.shape), max_iter=3).item()


def solve(prior):
    """Return the change of the model after seven iterations."""
    ways = {"stepsize": step, "lambda_reg": 1.0 / step, "max_iter": 7}
    fista = deepinv.optim.FISTA(data_fidelity=deepinv.optim.L2(), prior=prior, **ways)
    return fista(data, physics)[0, 0]


plain = solve(deepinv.optim.ZeroPrior())
found = solve(deepinv.optim.TVPrior(n_it_max=50))

# %%
figure, panels = plt.subplots(1, 3, figsize=(10, 2.4), layout="constrained", sharey=True)
images = {"true": body, "least squares": plain, "with total variation": found}
for axes, (title, change) in zip(panels, images.items(), strict=True):
    image = axes.imshow(np.asarray(change), vmin=-40, vmax=20, extent=(0, 1.0, 0.6, 0))
    axes.set(title=title, xlabel="x (km)")
figure.colorbar(image, ax=panels, label="m/s")

# %%
# On several ranks, use `as_physics(distribute(shots, context).linearize(...))`. The result has the
# same bits.

errors = [((change - body).norm() / body.norm()).item() for change in (plain, found)]
print(f"error of the change of the model: {errors[0]:.3f}, with total variation {errors[1]:.3f}")
