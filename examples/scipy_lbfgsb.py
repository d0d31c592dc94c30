"""
With SciPy's L-BFGS-B
=====================

This example inverts for velocities between bounds, with an optimizer of SciPy.

`scipy.optimize.minimize` needs a flat vector in double precision, and a function that returns the
loss and its gradient. The waves are still simulated in single precision. The steps and tolerances
of the optimizer assume values near one: the unknown is the velocity in km/s, and the loss is 1 for
the starting model.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.optimize import minimize

from hpcfwi.wave import acoustic
from hpcfwi.wave.numerics import ricker

z, x = torch.meshgrid(torch.arange(31), torch.arange(51), indexing="ij")
start = torch.full((31, 51), 2000.0)  # m/s, every 20 m, (z, x)
true = start - 150.0 * torch.exp(-(((z - 15) / 5) ** 2) - ((x - 25) / 7) ** 2)

dt = 0.002  # s
wavelet = torch.tensor(ricker(8.0, 300, dt, delay=0.15), dtype=torch.float32)
along = torch.linspace(100.0, 900.0, 6)
sources = torch.stack([torch.full_like(along, 40.0), along], dim=1)  # (shot, (z, x)), m
across = torch.arange(40.0, 980.0, 20.0)
receivers = torch.stack([torch.full_like(across, 560.0), across], dim=1)
shots = 20.0, dt, wavelet, sources, receivers
tuning = {"max_velocity": 2200.0, "boundary_frequency": 8.0}

observed = acoustic(true, *shots, **tuning)
scale = (acoustic(start, *shots, **tuning) - observed).square().sum()


def loss_and_gradient(speeds):
    """Return the loss and its gradient; speeds: a flat vector of velocities, km/s."""
    vp = torch.tensor(1e3 * speeds.reshape(true.shape), dtype=torch.float32, requires_grad=True)
    loss = (acoustic(vp, *shots, **tuning) - observed).square().sum() / scale
    loss.backward()
    return loss.item(), 1e3 * vp.grad.double().numpy().ravel()


# %%
# The upper bound is the velocity of the starting model, which removes the fast halo around the lens
# in `lbfgs.py`. `ftol` and `gtol` are zero, so that the optimizer runs for `maxiter` iterations.

found = minimize(
    loss_and_gradient,
    start.double().numpy().ravel() / 1e3,
    jac=True,
    method="L-BFGS-B",
    bounds=[(1.8, 2.0)] * true.numel(),
    options={"maxiter": 10, "ftol": 0.0, "gtol": 0.0},
)
vp = 1e3 * found.x.reshape(true.shape)

# %%
figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
image = axes.imshow(vp, vmin=1850, vmax=2050, extent=(0, 1.0, 0.6, 0))
axes.set(title="found", xlabel="x (km)", ylabel="depth (km)")
figure.colorbar(image, ax=axes, label="m/s")

# %%
error, before = (np.linalg.norm(each - true.numpy()) for each in (vp, start.numpy()))
print(f"misfit 1.000 -> {found.fun:.2e} with {found.nfev} simulations of all shots")
print(f"model error {error / before:.2f} of that of the start")
