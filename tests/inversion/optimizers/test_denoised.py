"""Inversions whose models are denoised between updates.

`tests.run.test_ranks` tests them on several ranks.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcfwi.config.inversion import PriorSection
from hpcfwi.inversion.parameters import Limits
from hpcfwi.inversion.wrappers import Denoised
from hpcfwi.model import Grid, Model
from hpcfwi.parallel.context import Context
from tests.inversion.examples import (
    WATER,
    read_metric,
    read_vp,
    true_volume,
    write_input,
    write_volume,
)
from tests.inversion.optimizers.own_denoisers import mix

pytestmark = pytest.mark.usefixtures("no_figures")

OWN = "tests.inversion.optimizers.own_denoisers:"


class Stepping:
    """An optimizer that adds 10 to all cells, and counts its steps."""

    def __init__(self):
        self.count = 0

    def step(self, model, evaluate, _=0.0):
        self.count += 1
        return model.map(lambda array: array + 10.0), evaluate(model)

    def state(self):
        return {"count": self.count}

    def restore(self, state):
        self.count = state["count"]


def wrap(denoiser, bounds=None, **keys):
    """Return an optimizer of a noisy model whose first row is fixed, and the model."""
    grid = Grid((9, 11), (10.0, 10.0), (0.0, 0.0))
    values = 2000.0 + 100.0 * torch.rand(grid.shape, generator=torch.Generator().manual_seed(1))
    model = Model(grid, {"vp": values})
    fixed = torch.zeros(grid.shape, dtype=torch.bool)
    fixed[0] = True
    limits = Limits(model, {"vp": fixed}, bounds or {})
    section = PriorSection(denoiser=OWN + "mix", strength=0.5, **keys)
    denoised = Denoised(Stepping(), limits, limits.apply, section, denoiser, Context.alone(), True)
    return denoised, model


@pytest.mark.parametrize("bounds", [None, {"vp": (1500.0, 4500.0)}])
def test_step_ends_with_denoiser_of_model_scaled_between_0_and_1(bounds):
    seen = []

    def denoise(images, strength):
        seen.append(images)
        return mix(images, strength)

    optimizer, model = wrap(denoise, bounds)
    found, _ = optimizer.step(model, lambda model: model)
    stepped = model["vp"] + 10.0
    lowest, highest = (1500.0, 4500.0) if bounds else (stepped.min(), stepped.max())
    assert seen[0].shape == (1, 1, 9, 11)
    assert torch.allclose(seen[0][0, 0], (stepped - lowest) / (highest - lowest), atol=1e-6)
    expected = mix(stepped[None, None], 0.5)[0, 0]
    expected[0] = model["vp"][0]
    assert torch.allclose(found["vp"], expected, rtol=1e-6)


def test_denoiser_runs_at_given_interval_also_after_a_restart():
    calls = []
    optimizer, model = wrap(lambda images, _: calls.append(1) or images, every=3)
    for _ in range(2):
        optimizer.step(model, lambda model: model)
    assert not calls
    other, model = wrap(lambda images, _: calls.append(1) or images, every=3)
    other.restore(optimizer.state())
    other.step(model, lambda model: model)
    assert calls == [1]
    assert other.state() == {"steps": 3, "optimizer": {"count": 3}}


def test_constant_model_can_be_denoised():
    optimizer, model = wrap(mix)
    even = model.map(torch.full_like, Model(model.grid, {"vp": 1990.0}))
    found, _ = optimizer.step(even, lambda model: model)
    assert torch.allclose(found["vp"][1:], torch.tensor(2000.0))


def test_denoiser_runs_with_one_thread():
    def look(images, _):
        assert torch.get_num_threads() == 1
        return images

    torch.set_num_threads(2)
    try:
        optimizer, model = wrap(look)
        optimizer.step(model, lambda model: model)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("name", ["tv", "nlm", OWN + "mix"])
def test_inversion_with_denoiser_continues_to_the_bit_and_keeps_water(name, hpcfwi, tmp_path):
    prior = {"denoiser": name, "strength": 0.05, "every": 2, "patch": 24, "overlap": 8}
    keys = {"inversion.prior": prior, "inversion.epochs": 4, "inversion.bounds": [1400.0, 3200.0]}
    path = write_input(tmp_path, keys)
    assert hpcfwi("run", path, "--output", tmp_path / "whole") == 0
    for epochs in (1, 3, 4):
        settings = ("--set", f"inversion.epochs={epochs}")
        assert hpcfwi("run", path, *settings, "--output", tmp_path / "parts") == 0
    np.testing.assert_array_equal(read_vp(tmp_path / "parts"), read_vp(tmp_path / "whole"))
    plain = write_input(tmp_path, {**keys, "inversion.prior": None}, name="plain")
    assert hpcfwi("run", plain, "--output", tmp_path / "plain") == 0
    losses = [read_metric(tmp_path / run, "loss") for run in ("whole", "plain")]
    assert losses[0][:2] == losses[1][:2]
    assert losses[0][2:] != losses[1][2:]
    rows = int(WATER // 20.0) + 1
    assert (read_vp(tmp_path / "whole")[:rows] == 1500.0).all()


def test_tiles_of_a_local_denoiser_give_bits_of_whole_model(hpcfwi, tmp_path):
    runs = []
    for name, keys in (("whole", {}), ("tiles", {"patch": 7, "overlap": 2})):
        prior = {"denoiser": OWN + "mix", "strength": 0.3, **keys}
        path = write_input(tmp_path, {"inversion.prior": prior, "inversion.epochs": 2}, name)
        assert hpcfwi("run", path, "--output", tmp_path / name) == 0
        runs.append(read_vp(tmp_path / name))
    np.testing.assert_array_equal(*runs)


def test_denoiser_makes_inverted_volume_smoother(hpcfwi, tmp_path):
    prior = {"denoiser": "tv", "strength": 0.02, "patch": 8, "overlap": 2}
    path = write_volume(tmp_path, {"inversion.prior": prior, "inversion.epochs": 1})
    assert hpcfwi("run", path) == 0
    plain = write_volume(tmp_path, {"inversion.epochs": 1})
    assert hpcfwi("run", plain, "--output", tmp_path / "plain") == 0
    found, other = read_vp(tmp_path / "run"), read_vp(tmp_path / "plain")
    water = true_volume()["vp"] == 1500.0
    np.testing.assert_array_equal(found[water], 1500.0)
    roughness = [np.abs(np.diff(model, axis=1)).sum() for model in (found, other)]
    assert roughness[0] < roughness[1]


def test_nonfinite_values_of_a_denoiser_end_the_run_with_its_name(hpcfwi, tmp_path, capsys):
    prior = {"denoiser": OWN + "lose", "strength": 0.1}
    assert hpcfwi("run", write_input(tmp_path, {"inversion.prior": prior})) == 1
    assert OWN + "lose" in capsys.readouterr().err
