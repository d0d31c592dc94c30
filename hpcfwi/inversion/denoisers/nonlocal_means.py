"""Nonlocal means, by scikit-image."""

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
