"""
An inversion in thirty lines
============================

This example inverts for a slow lens between sources above and receivers below it, with
`torch.optim.Adam`.
"""

import matplotlib.pyplot as plt
import torch

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
tuning = {"max_velocity": 2200.0, "boundary_frequency": 8.0}  # the same boundary for all models

# %%
# A step of Adam changes each cell by about `lr`, which is therefore in m/s. Adam divides the
# gradient of each cell by its magnitude, so that cells that hardly any wave has reached would
# change as much as all others. `eps` prevents this; here it is a tenth of the largest entry of the
# first gradient.

observed = acoustic(true, *shots, **tuning)
vp = start.clone().requires_grad_()
optimizer = torch.optim.Adam([vp], lr=20.0, eps=1e-8)
misfits = []
for _ in range(20):
    optimizer.zero_grad()
    misfit = 0.5 * dt * (acoustic(vp, *shots, **tuning) - observed).square().sum()
    misfit.backward()
    optimizer.step()
    misfits.append(misfit.item())

# %%
# With six shots from above, the horizontal position of the lens is well resolved. Its depth is not,
# because all rays go down.

figure, panels = plt.subplots(1, 2, figsize=(8, 2.8), layout="constrained", sharey=True)
for axes, model, title in zip(panels, (true, vp.detach()), ("true", "found"), strict=True):
    image = axes.imshow(model.numpy(), vmin=1850, vmax=2050, extent=(0, 1.0, 0.6, 0))
    axes.plot(sources[:, 1] / 1e3, sources[:, 0] / 1e3, "w*")
    axes.set(title=title, xlabel="x (km)")
panels[0].set(ylabel="depth (km)")
figure.colorbar(image, ax=panels, label="m/s")

# %%
print(f"misfit {misfits[0]:.3e} -> {misfits[-1]:.3e}")
