"""Denoisers that an input names: nonlocal means and total variation, both by scikit-image.

A denoiser is a function of images (image, 1, z, x) or (image, 1, z, y, x), with values about
between 0 and 1, and of the strength; `registry.DENOISERS` names it. `optimizers.wrappers` puts it
around an optimizer.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Points across the patches that are compared, and how far from a point they are looked for
PATCH, REACH = 5, 8
# Of the noise, up to which differences of patches count as none (Darbon et al. 2008)
SIMILAR = 0.8


def denoise_nlm(images: Tensor, strength: float) -> Tensor:
    """Each point as the mean of those with alike surroundings (Buades, Coll and Morel 2005).

    Of images (image, 1, z, x) or (image, 1, z, y, x). strength: the noise's standard deviation.
    What comes again, as layers do, becomes clear; what is there once stays.
    """
    from skimage.restoration import denoise_nl_means

    made = torch.empty_like(images)
    for image, result in zip(images.flatten(0, 1), made.flatten(0, 1), strict=True):
        found = denoise_nl_means(
            image.cpu().numpy(),
            patch_size=PATCH,
            patch_distance=REACH,
            h=SIMILAR * strength,
            sigma=strength,
        )
        result.copy_(torch.from_numpy(found))
    return made


# Change of the objective, as a share of its first value, at which the iteration ends
CLOSE = 1e-7
MOST = 500


def denoise_tv(images: Tensor, strength: float) -> Tensor:
    """The proximal operator of strength times the total variation (Chambolle 2004, equation 2).

    Of images (image, 1, z, x) or (image, 1, z, y, x). Layers and edges stay; what is between
    them becomes even.
    """
    from skimage.restoration import denoise_tv_chambolle

    made = torch.empty_like(images)
    for image, result in zip(images.flatten(0, 1), made.flatten(0, 1), strict=True):
        found = denoise_tv_chambolle(
            image.cpu().numpy(), weight=strength, eps=CLOSE, max_num_iter=MOST
        )
        result.copy_(torch.from_numpy(found))
    return made
