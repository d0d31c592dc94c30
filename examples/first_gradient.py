"""
A first gradient
================

One shot over a layer: where would a change of the velocities explain the traces better?
"""

import matplotlib.pyplot as plt
import torch

from hpcfwi.wave import acoustic
from hpcfwi.wave.numerics import ricker

# %%
# The earth is 800 m deep and 1600 m wide, and faster below 500 m. All positions are (z, x) in m.

true = torch.full((41, 81), 2000.0)  # m/s, every 20 m
true[25:] = 2300.0
dt = 0.002  # s
wavelet = torch.tensor(ricker(10.0, 500, dt, delay=0.12), dtype=torch.float32)
source = torch.tensor([[20.0, 400.0]])
x = torch.arange(100.0, 1501.0, 20.0)
receivers = torch.stack([torch.full_like(x, 20.0), x], dim=1)


def simulate(vp):
    """The traces, (shot, receiver, time); all models get the same absorbing boundary."""
    tuning = {"max_velocity": 2300.0, "boundary_frequency": 10.0}
    return acoustic(vp, 20.0, dt, wavelet, source, receivers, **tuning)


observed = simulate(true)

# %%
# Somebody who knows nothing of the layer simulates the same shot. The misfit is half the energy of
# what is left, and `backward` the adjoint-state method (Tarantola 1984).

vp = torch.full_like(true, 2000.0).requires_grad_()
misfit = 0.5 * dt * (simulate(vp) - observed).square().sum()
misfit.backward()

# %%
# Every echo is smeared along the ellipse of all points that it may have come from. Those of all
# receivers meet where the layer reflects; what is left of them elsewhere other shots take away.

figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
limit = vp.grad[8:].abs().max()
axes.imshow(vp.grad.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, extent=(0, 1.6, 0.8, 0))
axes.axhline(0.5, color="black", linestyle="--", linewidth=0.8)
axes.plot(0.4, 0.02, "k*")
axes.set(xlabel="x (km)", ylabel="depth (km)", title="Gradient of the misfit, and the layer")

# %%
# Is it the gradient? Along any change of the model the misfit changes by what the gradient says. It
# does, but for a part in some hundred: of the waves only as many samples are kept as their
# frequencies need. `history=Snapshots(1)` keeps all.

change = torch.zeros_like(true)
change[20:30, 20:60] = 1.0  # m/s
with torch.no_grad():
    ends = [0.5 * dt * (simulate(vp + h * change) - observed).square().sum() for h in (5.0, -5.0)]
measured, predicted = (ends[0] - ends[1]) / 10.0, (vp.grad * change).sum()
print(f"change of the misfit for 1 m/s: {measured:.4e}, by the gradient {predicted:.4e}")
