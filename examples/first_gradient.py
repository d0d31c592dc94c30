"""
A first gradient
================

This example computes the gradient of the misfit for one shot above a layer. The gradient shows
where changes of the velocity would improve the fit to the traces.
"""

import matplotlib.pyplot as plt
import torch

from hpcfwi.wave import acoustic
from hpcfwi.wave.numerics import ricker

# %%
# The model is 800 m deep and 1600 m wide; velocities are larger below 500 m. All positions are
# (z, x) in m.

true = torch.full((41, 81), 2000.0)  # m/s, every 20 m
true[25:] = 2300.0
dt = 0.002  # s
wavelet = torch.tensor(ricker(10.0, 500, dt, delay=0.12), dtype=torch.float32)
source = torch.tensor([[20.0, 400.0]])
x = torch.arange(100.0, 1501.0, 20.0)
receivers = torch.stack([torch.full_like(x, 20.0), x], dim=1)


def simulate(vp):
    """Return traces (shot, receiver, time); the absorbing boundary is the same for all models."""
    tuning = {"max_velocity": 2300.0, "boundary_frequency": 10.0}
    return acoustic(vp, 20.0, dt, wavelet, source, receivers, **tuning)


observed = simulate(true)

# %%
# The same shot is simulated in a starting model without the layer. The misfit is half the energy of
# the residual, and `backward` is the adjoint-state method (Tarantola 1984).

vp = torch.full_like(true, 2000.0).requires_grad_()
misfit = 0.5 * dt * (simulate(vp) - observed).square().sum()
misfit.backward()

# %%
# Each reflection contributes an ellipse of all points at which it may have been reflected. The
# ellipses of all receivers add up at the reflecting layer. Elsewhere they cancel only when more
# shots are added.

figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
limit = vp.grad[8:].abs().max()
axes.imshow(vp.grad.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, extent=(0, 1.6, 0.8, 0))
axes.axhline(0.5, color="black", linestyle="--", linewidth=0.8)
axes.plot(0.4, 0.02, "k*")
axes.set(xlabel="x (km)", ylabel="depth (km)", title="Gradient of the misfit, and the layer")

# %%
# To verify the gradient, compare it with the finite difference of the misfit along some change of
# the model. They agree within about one per cent, because the fields are sampled only as often as
# their frequencies require. With `history=Snapshots(1)` all steps are stored.

change = torch.zeros_like(true)
change[20:30, 20:60] = 1.0  # m/s
with torch.no_grad():
    ends = [0.5 * dt * (simulate(vp + h * change) - observed).square().sum() for h in (5.0, -5.0)]
measured, predicted = (ends[0] - ends[1]) / 10.0, (vp.grad * change).sum()
print(f"change of the misfit for 1 m/s: {measured:.4e}, by the gradient {predicted:.4e}")
