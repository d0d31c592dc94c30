"""Maps of images tile by tile, which give the results for whole images."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcfwi.operators import Tile, Tiling, distribute
from hpcfwi.operators.tiles import Overlap
from hpcfwi.parallel.context import Context
from tests.operators.programs import average
from tests.wave.examples import relative

ALONE = Context.alone()


def make_image(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(
    shape=st.tuples(*[st.integers(1, 40)] * 2),
    patch=st.integers(1, 30),
    overlap=st.integers(0, 20),
    batch=st.sampled_from([None, 1, 3]),
)
def test_tiles_give_bits_of_whole_image_if_overlap_covers_reach(shape, patch, overlap, batch):
    image = make_image(2, 1, *shape)
    tiles = distribute(average, ALONE, patch=patch, overlap=overlap, batch=batch)
    assert torch.equal(tiles(image, overlap), average(image, overlap))


@settings(max_examples=30)
@given(st.tuples(*[st.integers(1, 9)] * 3), st.integers(1, 5), st.integers(0, 9))
def test_tiles_of_a_volume_give_bits_of_whole_volume(shape, patch, overlap):
    volume = make_image(*shape)
    tiles = distribute(average, ALONE, patch=patch, overlap=overlap, axes=3)
    assert torch.equal(tiles(volume, overlap, 3), average(volume, overlap, 3))


@given(st.integers(1, 300), st.integers(1, 60), st.integers(0, 60))
def test_tiles_have_positive_weights_and_windows_of_equal_size(size, patch, overlap):
    tiles = Overlap(patch, overlap).cut((size,))
    assert len({tile.window[0].stop - tile.window[0].start for tile in tiles}) == 1
    assert all(bool((tile.weights[0] > 0.0).all()) for tile in tiles)
    assert all(tile.window[0].start >= 0 and tile.window[0].stop <= size for tile in tiles)


def test_tiled_convolution_matches_convolution_of_whole_image():
    kernel = make_image(3, 2, 7, 7, seed=1)
    image = make_image(2, 2, 50, 61)

    def convolve(images):
        return torch.nn.functional.conv2d(images, kernel, padding=3)

    tiles = distribute(convolve, ALONE, patch=16, overlap=3)
    assert tiles(image).shape == (2, 3, 50, 61)
    assert relative(tiles(image), convolve(image)) < 1e-12


def test_basic_tiles_are_mapped_independently():
    image = torch.arange(10.0)[None] * torch.ones(2, 1)
    tiles = distribute(lambda x: x - x.mean(), ALONE, patch=5, overlap=3, strategy="basic")
    expected = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0] * 2)
    assert torch.equal(tiles(image), expected.expand(2, 10))


def test_overlapping_tiles_are_blended_linearly():
    def first(tiles):
        return tiles[:, :1].expand_as(tiles)

    image = torch.arange(40.0)[None]
    made = distribute(first, ALONE, patch=10, overlap=8, axes=1)(image)
    # The second window begins at 1, nine points before its tile
    assert made[0, 8:12].tolist() == [0.0, 0.25, 0.75, 1.0]


def test_argument_with_a_row_per_image_gets_a_row_per_tile():
    image, levels = make_image(3, 1, 20, 20), torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    seen = []

    def scale(images, levels, *, name):
        seen.append((len(images), name))
        return images * levels[:, None, None, None]

    found = distribute(scale, ALONE, patch=10, batch=2)(image, levels, name="x")
    assert torch.equal(found, scale(image, levels, name="x"))
    assert seen[:2] == [(6, "x")] * 2


class Reflected(Tiling):
    """A user-defined strategy: halves with two more points on each side, mirrored at the edges."""

    def cut(self, shape):
        middle, end = shape[0] // 2, shape[0]
        return [
            Tile((slice(a - 2, b + 2),), (slice(a, b),), (torch.ones(b - a),))
            for a, b in ((0, middle), (middle, end))
        ]

    def take(self, image, tile):
        padded = torch.nn.functional.pad(image[None], (2, 2), mode="reflect")[0]
        return padded[..., tile.window[0].start + 2 : tile.window[0].stop + 2]


def test_user_defined_strategy_cuts_and_pads_tiles():
    image = make_image(1, 11)
    found = distribute(average, ALONE, strategy=Reflected(), axes=1)(image, 2, 1)
    padded = torch.nn.functional.pad(image[None], (2, 2), mode="reflect")[0]
    assert torch.equal(found, average(padded, 2, 1)[:, 2:-2])


def test_invalid_tiling_is_refused():
    image = make_image(1, 1, 8, 8)
    with pytest.raises(
        ValueError, match="patch is 0 and overlap 64; expected at least 1 and 0 points"
    ):
        distribute(average, ALONE, patch=0)
    with pytest.raises(ValueError, match="batch is -1; expected at least 1 tile"):
        distribute(average, ALONE, batch=-1)
    with pytest.raises(ValueError, match="strategy is 'hann'; expected 'overlap', 'basic' or a"):
        distribute(average, ALONE, strategy="hann")
    with pytest.raises(ValueError, match=r"expected the tile's size, of which \(8, 8\)"):
        distribute(lambda x: x[..., ::2], ALONE)(image)
    with pytest.raises(TypeError, match=r"a map has returned a numpy.ndarray; expected a torch"):
        distribute(lambda x: x.numpy(), ALONE)(image)
