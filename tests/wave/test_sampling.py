"""Tests of substeps, into which a time step is divided that is too long for the scheme."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hpcfwi.wave import numerics
from hpcfwi.wave.numerics import ricker
from tests.wave.examples import relative, smooth_shots


@given(st.floats(1e-4, 1.0), st.floats(1e-4, 1.0))
def test_substeps_are_the_fewest_that_the_longest_step_allows(dt: float, longest: float) -> None:
    count = numerics.count_substeps(dt, longest)
    assert dt / count <= longest * (1.0 + 1e-9)
    assert count == 1 or dt / (count - 1) > longest


@given(st.integers(1, 50), st.floats(1e-5, 1e-2))
def test_multiple_of_the_longest_step_has_no_additional_substep(n: int, longest: float) -> None:
    assert numerics.count_substeps(n * longest, longest) == n


@pytest.mark.parametrize(("dt", "substeps"), [(2.5e-3, 2), (6e-3, 3), (8e-3, 4)])
def test_substeps_give_the_traces_of_a_fine_simulation(dt: float, substeps: int) -> None:
    samples = int(0.7 / dt)
    long = smooth_shots(samples=samples, dt=dt).simulate(keep=False)
    fine = smooth_shots(samples=samples * substeps, dt=dt / substeps).simulate(keep=False)
    assert (long.substeps, fine.substeps) == (substeps, 1)
    assert relative(long.data, fine.data[..., ::substeps]) < 1e-5


@pytest.mark.parametrize("n", [60, 61])
@pytest.mark.parametrize("substeps", [2, 3, 5])
def test_refined_wavelet_interpolates_a_smooth_wavelet(n: int, substeps: int) -> None:
    fine = torch.tensor(ricker(10.0, n * substeps, 8e-3 / substeps, delay=0.2))[None]
    refined = numerics.upsample(fine[:, ::substeps], substeps)
    assert refined.shape[-1] == (n + numerics.count_tail(n)) * substeps
    assert relative(refined[:, : n * substeps], fine) < 1e-5


@pytest.mark.parametrize("n", [60, 61])
def test_refined_wavelet_keeps_the_samples_of_white_noise(n: int) -> None:
    white = torch.tensor(np.random.default_rng(0).normal(size=(2, n)))
    assert relative(numerics.upsample(white, 3)[:, : 3 * n : 3], white) < 1e-12


@pytest.mark.parametrize("n", [60, 61])
@pytest.mark.parametrize("substeps", [2, 3, 5])
def test_coarse_traces_are_samples_of_the_fine_ones(n: int, substeps: int) -> None:
    fine = torch.tensor(
        ricker(10.0, (n + numerics.count_tail(n)) * substeps, 8e-3 / substeps, delay=0.2)
    )[None]
    coarse = numerics.downsample(fine, substeps, n)
    assert relative(coarse, fine[:, : n * substeps : substeps]) < 1e-5


def test_one_substep_returns_the_wavelet_and_traces_unchanged() -> None:
    wavelet = torch.tensor(np.random.default_rng(0).normal(size=(2, 30)))
    assert numerics.upsample(wavelet, 1) is wavelet
    assert numerics.downsample(wavelet, 1, 30) is wavelet


@pytest.mark.parametrize("n", [12, 60, 1001])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_resampled_shots_have_the_same_bits_alone_and_with_any_number_of_threads(
    n: int, kind: torch.dtype
) -> None:
    substeps = 4
    long = (n + numerics.count_tail(n)) * substeps
    rng = np.random.default_rng(0)
    wavelets, fine, coarse = (
        torch.tensor(rng.normal(size=(4, 5, samples))).to(kind) for samples in (n, long, n)
    )

    def refine(some: Tensor) -> Tensor:
        return numerics.upsample(some, substeps)

    def coarsen(some: Tensor) -> Tensor:
        return numerics.downsample(some, substeps, n)

    def resample(shots: slice) -> list[Tensor]:
        return [
            refine(wavelets[shots]),
            coarsen(fine[shots]),
            numerics.transpose(refine, wavelets[shots], fine[shots]),
            numerics.transpose(coarsen, fine[shots], coarse[shots]),
        ]

    before = torch.get_num_threads()
    expected = resample(slice(None))
    try:
        torch.set_num_threads(3)
        found = resample(slice(None))
    finally:
        torch.set_num_threads(before)
    for each, other, alone in zip(expected, found, resample(slice(2, 3)), strict=True):
        assert torch.equal(each, other)
        assert torch.equal(each[2:3], alone)
