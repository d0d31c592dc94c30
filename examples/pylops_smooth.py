"""
With PyLops: a smooth update
============================

This example combines the linearized shots with the operators and solvers of PyLops.

`PyLops <https://pylops.readthedocs.io>`_ builds inversions from linear operators. `as_pylops`
converts the linearized shots to such an operator, for the preconditioners, regularizations and
solvers of PyLops. ``pip install 'hpcfwi[pylops]'`` installs the package.
"""

import matplotlib.pyplot as plt
import numpy as np
import pylops
import torch

from hpcfwi.model import Grid, Model
from hpcfwi.operators import Shots
from hpcfwi.survey import Survey
from hpcfwi.wave.numerics import ricker

grid = Grid(shape=(31, 51), spacing=(20.0, 20.0), origin=(0.0, 0.0))  # m, (z, x)
z, x = torch.meshgrid(torch.arange(31), torch.arange(51), indexing="ij")
start = torch.full(grid.shape, 2000.0)  # m/s
lens = -30.0 * torch.exp(-(((z - 15) / 5) ** 2) - ((x - 25) / 7) ** 2)

along = np.linspace(100.0, 900.0, 6)
across = np.arange(40.0, 980.0, 20.0)
survey = Survey(
    sources=np.column_stack([np.full_like(along, 40.0), along]),  # (shot, (z, x)), m
    receivers=np.column_stack([np.full_like(across, 560.0), across]),
    wavelet=ricker(8.0, 300, 0.002, delay=0.15).astype(np.float32),
    dt=0.002,  # s
)
shots = Shots(survey, grid)
scattered = shots(Model(grid, {"vp": start + lens})) - shots(Model(grid, {"vp": start}))
noise = torch.randn(scattered.shape, generator=torch.Generator().manual_seed(0))
data = (scattered + 2.0 * scattered.std() * noise).numpy().ravel()

# %%
# The operator has the shapes of models and data. The preconditioner S is an average over seven by
# seven cells. The solver finds q with J S q = d, and the change S q is smooth for any q.

Op = shots.linearize(Model(grid, {"vp": start})).as_pylops()
print(f"{Op.dims} -> {Op.dimsd}")


def solve(preconditioner):
    """Return the change of the model after five iterations."""
    invert = pylops.optimization.leastsquares.preconditioned_inversion
    return invert(Op, data, preconditioner, engine="scipy", iter_lim=5)[0].reshape(grid.shape)


plain = solve(pylops.Identity(Op.shape[1], dtype="float32"))
smooth = solve(pylops.Smoothing2D([7, 7], dims=grid.shape, dtype="float32"))

# %%
figure, panels = plt.subplots(1, 3, figsize=(10, 2.4), layout="constrained", sharey=True)
images = {"true": lens, "least squares": plain, "with a smooth change": smooth}
for axes, (title, change) in zip(panels, images.items(), strict=True):
    image = axes.imshow(np.asarray(change), vmin=-40, vmax=20, extent=(0, 1.0, 0.6, 0))
    axes.set(title=title, xlabel="x (km)")
figure.colorbar(image, ax=panels, label="m/s")

# %%
errors = [np.linalg.norm(change - lens.numpy()) / lens.norm().item() for change in (plain, smooth)]
print(f"error of the change of the model: {errors[0]:.3f}, smooth {errors[1]:.3f}")
