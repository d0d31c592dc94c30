"""
Scaled variables for torch.optim.LBFGS
======================================

This example inverts for the lens of `adam.py` with a quasi-Newton method.

`torch.optim.LBFGS` stops when no entry of the gradient is above `tolerance_grad = 1e-7`, or no
step above `tolerance_change = 1e-9`, and its first step has at most length 1 in all cells together.
These values assume variables and losses near one. Gradients of a misfit of pressures with respect
to velocities in m/s are much smaller: without scaling, the optimizer stops before its first step as
if it had converged. The unknown is therefore the change of the model in units of 100 m/s, and the
loss is the misfit divided by that of the starting model.
"""

import matplotlib.pyplot as plt
import torch

from hpcfwi.wave import acoustic
from hpcfwi.wave.numerics import ricker

UNIT = 100.0  # m/s

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


def invert(unit, scale):
    """Return the model after ten iterations, and the losses of all evaluations.

    unit: unit of the change, m/s; scale: the loss is the sum of squared residuals divided by it.
    """
    change, misfits = torch.zeros_like(start, requires_grad=True), []
    optimizer = torch.optim.LBFGS([change], max_iter=10, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        vp = start + unit * change
        loss = (acoustic(vp, *shots, **tuning) - observed).square().sum() / scale
        loss.backward()
        misfits.append(loss.item())
        return loss

    optimizer.step(closure)
    return start + unit * change.detach(), misfits


# %%
# The first call is scaled. The second has velocities in m/s and half the energy of the residual,
# without any scaling.

vp, misfits = invert(UNIT, scale)
_, unscaled = invert(1.0, 2.0 / dt)

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8), layout="constrained")
image = left.imshow(vp.numpy(), vmin=1850, vmax=2050, extent=(0, 1.0, 0.6, 0))
left.set(title="found", xlabel="x (km)", ylabel="depth (km)")
figure.colorbar(image, ax=left, label="m/s")
right.semilogy(misfits, "o-", label="scaled")
right.semilogy([value / unscaled[0] for value in unscaled], "s-", label="as they come")
right.set(xlabel="simulations of all shots", ylabel="misfit over the first")
right.legend()

# %%
print(f"misfit {misfits[0]:.3f} -> {misfits[-1]:.2e} with {len(misfits)} simulations of all shots")
print(f"as they come {unscaled[0]:.2e} -> {unscaled[-1]:.2e} with {len(unscaled)}")
