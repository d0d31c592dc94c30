"""
Migration with LSQR
===================

This example computes an image of two reflectors from linearized waves, with a solver of SciPy.

In a smooth model with correct travel times, reflections depend linearly on the reflectors m: the
data are d = J m, where J is the Born operator of `Shots.linearize`. The transpose of J applied to
the data is a reverse-time migration. The least-squares solution has the true strength of the
reflectors, and a shorter wavelet (Nemeth, Wu and Schuster 1999). LSQR (Paige and Saunders 1982)
only needs products with J and its transpose.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.sparse.linalg import lsqr

from hpcfwi.model import Grid, Model
from hpcfwi.operators import Shots
from hpcfwi.survey import Survey
from hpcfwi.wave.numerics import ricker

grid = Grid(shape=(41, 81), spacing=(20.0, 20.0), origin=(0.0, 0.0))  # m, (z, x)
smooth = torch.full(grid.shape, 2000.0)  # m/s
reflectors = torch.zeros(grid.shape)
reflectors[18:20] = 60.0
reflectors[28:30, 30:] = -60.0

dt = 0.002  # s
x = np.linspace(150.0, 1450.0, 6)
sources = np.column_stack([np.full_like(x, 40.0), x])  # (shot, (z, x)), m
x = np.arange(40.0, 1580.0, 20.0)
receivers = np.column_stack([np.full_like(x, 40.0), x])
wavelet = ricker(10.0, 450, dt, delay=0.12).astype(np.float32)
shots = Shots(Survey(sources, receivers, wavelet, dt), grid)

# %%
# The observed data are simulated with the full wave equation. Least squares cannot explain the
# parts that are not linear in the reflectors, such as multiple reflections.

data = shots(Model(grid, {"vp": smooth + reflectors})) - shots(Model(grid, {"vp": smooth}))
born = shots.linearize(Model(grid, {"vp": smooth}))

migrated = born.adjoint(data)["vp"].numpy()
found, _, iterations, residual, *_ = lsqr(born.as_scipy(), data.numpy().ravel(), iter_lim=6)
solved = found.reshape(grid.shape)

# %%
figure, panels = plt.subplots(1, 3, figsize=(10, 2.4), layout="constrained", sharey=True)
images = {"true": reflectors.numpy(), "migrated": migrated, "6 iterations of LSQR": solved}
for axes, (title, image) in zip(panels, images.items(), strict=True):
    limit = np.abs(image[8:]).max()
    axes.imshow(image, cmap="gray", vmin=-limit, vmax=limit, extent=(0, 1.6, 0.8, 0))
    axes.set(title=title, xlabel="x (km)")
panels[0].set(ylabel="depth (km)")

# %%
# On several ranks the only change is `distribute(shots, context)`. The result has the same bits.

print(f"misfit {(residual / data.norm().item()) ** 2:.3f} of that of the start")
for name, image in (("migrated", migrated), ("LSQR", solved)):
    correlation = np.corrcoef(image[8:].ravel(), reflectors[8:].ravel())[0, 1]
    print(f"correlation with the true reflectors, {name}: {correlation:.2f}")
