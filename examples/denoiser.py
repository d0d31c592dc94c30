"""
Plug and play, on four ranks
============================

This example inverts data with noise of twice the signal's amplitude, and uses a denoiser in place
of a regularizer.

Steps along the negative gradient alternate with a denoiser. This is proximal gradient descent with
a prior that is defined by the denoiser only (Venkatakrishnan, Bouman and Wohlberg 2013). A single
process computes everything itself. ``mpirun -n 4 python examples/denoiser.py`` distributes the
shots, and tiles of the model, over four ranks, with a result that is identical to the last bit.
"""

import hashlib

import matplotlib.pyplot as plt
import numpy as np
import torch

import hpcfwi
from hpcfwi.model import Grid, Model
from hpcfwi.operators import Fidelity, Shots, distribute
from hpcfwi.survey import Survey
from hpcfwi.wave.numerics import ricker

grid = Grid(shape=(31, 51), spacing=(20.0, 20.0), origin=(0.0, 0.0))  # m, (z, x)
z, x = torch.meshgrid(torch.arange(31), torch.arange(51), indexing="ij")
start = torch.full(grid.shape, 2000.0)  # m/s
true = start.clone()
true[((z - 15) / 7) ** 2 + ((x - 25) / 9) ** 2 < 1] = 1850.0

along = np.linspace(100.0, 900.0, 6)
across = np.arange(40.0, 980.0, 20.0)
survey = Survey(
    sources=np.column_stack([np.full_like(along, 40.0), along]),  # (shot, (z, x)), m
    receivers=np.column_stack([np.full_like(across, 560.0), across]),
    wavelet=ricker(8.0, 300, 0.002, delay=0.15).astype(np.float32),
    dt=0.002,  # s
)

# %%
# The denoiser can be any function of images, such as a network. This one takes the median of five
# by five cells, which preserves edges. A result depends on the two cells on either side, which
# determines the overlap of the tiles.


def median(images):
    """Return the medians of images (image, channel, z, x)."""
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2), mode="replicate")
    return padded.unfold(2, 5, 1).unfold(3, 5, 1).flatten(-2).median(dim=-1).values


def invert(context, denoise):
    """Return the model after six steps."""
    shots = distribute(Shots(survey, grid), context)
    traces = shots(Model(grid, {"vp": true}))
    noise = torch.randn(traces.shape, generator=torch.Generator().manual_seed(0))
    fidelity = Fidelity(shots, traces + 2.0 * traces.std() * noise)
    vp, step = start, None
    for _ in range(6):
        gradient = fidelity.grad(Model(grid, {"vp": vp}))["vp"]
        step = step or 40.0 / gradient.abs().max()  # the first step is at most 40 m/s
        vp = denoise((vp - step * gradient)[None, None])[0, 0]
    return vp


with hpcfwi.launch() as context:
    plain = invert(context, lambda images: images)
    found = invert(context, distribute(median, context, patch=16, overlap=2, batch=1))

# %%
# Every rank has the complete result. One rank draws it and prints its hash.

if context.is_root:
    figure, panels = plt.subplots(1, 3, figsize=(10, 2.4), layout="constrained", sharey=True)
    models = {"true": true, "without a denoiser": plain, "with one": found}
    for axes, (title, model) in zip(panels, models.items(), strict=True):
        image = axes.imshow(model, vmin=1850, vmax=2050, extent=(0, 1.0, 0.6, 0))
        axes.set(title=title, xlabel="x (km)")
    figure.colorbar(image, ax=panels, label="m/s")
    before, *errors = ((model - true).norm() for model in (start, plain, found))
    print(f"model error, of that of the start: {errors[0] / before:.3f}, {errors[1] / before:.3f}")
    print(f"{context.size} ranks, sha256 {hashlib.sha256(found.numpy()).hexdigest()[:16]}")
