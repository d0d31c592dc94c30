"""The proximal operator of the total variation, by scikit-image."""

from __future__ import annotations

import torch
from torch import Tensor

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
