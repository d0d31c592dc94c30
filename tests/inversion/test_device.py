"""Operations on gradients keep arrays of the model's size on their device.

No device is needed: a subclass of tensor claims not to be on a CPU, and records what is fetched.
"""

from __future__ import annotations

import pytest
import torch

from hpcfwi.config.inversion import PreconditionSection
from hpcfwi.inversion.gauss_newton import weigh_depths
from hpcfwi.inversion.misfits import least_squares
from hpcfwi.inversion.preconditioning import Preconditioner
from hpcfwi.inversion.regularizers import tikhonov, total_variation
from hpcfwi.model import Grid, Model
from hpcfwi.operators.vectors import Coarsening, dot
from hpcfwi.wave.equation import ACOUSTIC

GRID = Grid((20, 40, 30), (20.0, 20.0, 10.0), (0.0, 0.0, 0.0))
FETCHED: list[int] = []


class FakeGpuTensor(torch.Tensor):
    """A tensor that appears to be on a GPU, as do tensors computed from it."""

    @property
    def is_cpu(self):
        return False

    def cpu(self):
        FETCHED.append(self.numel())
        return self.as_subclass(torch.Tensor)

    def numpy(self):
        raise AssertionError("NumPy cannot read an array on a GPU")

    def tolist(self):
        FETCHED.append(self.numel())
        return self.as_subclass(torch.Tensor).tolist()

    def __float__(self):
        FETCHED.append(self.numel())
        return float(self.as_subclass(torch.Tensor))


def random_model(seed, grid=GRID):
    generator = torch.Generator().manual_seed(seed)
    array = torch.rand(grid.shape, generator=generator, dtype=torch.float64)
    return Model(grid, {"vp": 2000.0 + 1000.0 * array})


def precondition(model, other):
    section = PreconditionSection(illumination=0.01, depth=1.0, smooth=0.3)
    lit = {"source_illumination": other["vp"], "receiver_illumination": model["vp"] ** 2}
    return Preconditioner(section, 10.0, ACOUSTIC.slowest).apply(other, lit, model)["vp"]


def regularize(regularizer, weight):
    def apply(model, other):
        penalty, gradient = regularizer(model, other, weight=weight)
        return torch.stack([gradient["vp"], torch.full_like(gradient["vp"], penalty)])

    return apply


def coarsen(model, other):
    coarsening = Coarsening.to(GRID, 33.0)
    back = coarsening.transpose(coarsening.restrict(model))
    return back["vp"] + coarsening.refine(coarsening.restrict(other)["vp"])


def compare(model, other):
    misfits, residual = least_squares(model["vp"], other["vp"], 1.0)
    return residual * misfits[:, None, None].as_subclass(type(residual))


@pytest.mark.parametrize(
    "work",
    [
        precondition,
        regularize(tikhonov, 2.0),
        regularize(total_variation, 2.0),
        coarsen,
        compare,
        lambda one, other: weigh_depths(one["vp"], other["vp"]) * one["vp"],
        lambda one, other: one["vp"] * dot(one, other),
    ],
    ids=["precondition", "tikhonov", "tv", "coarsen", "least-squares", "depths", "dot"],
)
def test_sums_are_computed_on_the_device_and_only_numbers_are_fetched(work):
    one, other = random_model(0), random_model(1)
    expected = work(one, other)
    FETCHED.clear()
    found = work(
        *(model.map(lambda array: array.as_subclass(FakeGpuTensor)) for model in (one, other))
    )
    assert isinstance(found, FakeGpuTensor)
    assert max(FETCHED, default=0) <= GRID.shape[0], "at most a number for each depth"
    torch.testing.assert_close(found.as_subclass(torch.Tensor), expected, rtol=1e-13, atol=0.0)
