"""Properties of the registered denoisers."""

from __future__ import annotations

import pytest
import torch

from hpcfwi.inversion.wrappers import denoise_nlm, denoise_tv
from hpcfwi.registry import DENOISERS, find

EACH = pytest.mark.parametrize("denoise", [find(place) for place in DENOISERS.values()])


def layers(*shape: int) -> torch.Tensor:
    """Return an image of two layers, 0.2 and 0.7."""
    image = torch.full((1, 1, *shape), 0.2)
    image[:, :, shape[0] // 2 :] = 0.7
    return image


def noise(image: torch.Tensor) -> torch.Tensor:
    return 0.1 * torch.randn(image.shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("shape", [(40, 50), (16, 17, 18)])
@EACH
def test_denoiser_removes_noise_and_keeps_an_edge(denoise, shape):
    image = layers(*shape)
    found = denoise(image + noise(image), 0.1)
    assert found.shape == image.shape
    assert found.dtype == image.dtype
    assert (found - image).std() < 0.045  # was 0.1
    middle = shape[0] // 2
    jump = found[0, 0, middle + 1].mean() - found[0, 0, middle - 2].mean()
    assert jump == pytest.approx(0.5, abs=0.08)


@EACH
def test_denoiser_does_not_change_its_argument_or_mix_images(denoise):
    image = layers(20, 24)
    images = torch.cat([image + noise(image), image])
    before = images.clone()
    both = denoise(images, 0.1)
    assert torch.equal(images, before)
    assert torch.equal(both[:1], denoise(images[:1], 0.1))
    assert torch.equal(both[1:], denoise(images[1:], 0.1))


def test_total_variation_reduces_a_step_as_its_formula_says():
    """Halves of width n / 2 each move by 2 strength / n, since the edge has their full length."""
    image = torch.zeros(1, 1, 12, 16)
    image[..., 8:] = 1.0
    found = denoise_tv(image, 0.4)
    assert torch.allclose(found[..., :8], torch.tensor(0.4 / 8), atol=1e-3)
    assert torch.allclose(found[..., 8:], torch.tensor(1.0 - 0.4 / 8), atol=1e-3)


def test_single_point_is_kept_by_nonlocal_means_not_by_total_variation():
    image = layers(40, 50)
    image[..., 10, 25] = 1.0
    assert denoise_nlm(image, 0.05)[0, 0, 10, 25] > 0.9
    assert denoise_tv(image, 0.3)[0, 0, 10, 25] < 0.6
