"""
With SciPy's L-BFGS-B
=====================

Velocities between bounds, by an optimiser that knows nothing of waves.

`scipy.optimize.minimize` wants a flat vector in double precision, and a function that returns the
loss and its gradient. Waves stay in single precision. Like all that works with lengths and
tolerances it wants numbers near one: the unknown is the velocity in km/s, the loss is 1 at the
start.
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
    """Of km/s, flat."""
    vp = torch.tensor(1e3 * speeds.reshape(true.shape), dtype=torch.float32, requires_grad=True)
    loss = (acoustic(vp, *shots, **tuning) - observed).square().sum() / scale
    loss.backward()
    return loss.item(), 1e3 * vp.grad.double().numpy().ravel()


# %%
# The bounds say that nothing here is faster than the start: of the lens's halo on the page before
# nothing is left. `ftol` and `gtol` are zero, so that it stops when it was told to.

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
