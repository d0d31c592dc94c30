"""Models represented by networks, and gradients with respect to their weights.

`tests.run.test_ranks` tests them on several ranks by an inversion.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch.func import functional_call

from hpcfwi.config.survey import NetworkSection
from hpcfwi.errors import InputError
from hpcfwi.inversion import networks as module
from hpcfwi.inversion.networks import NetworkModel
from hpcfwi.inversion.parameters import Limits
from hpcfwi.model import Grid, Model
from hpcfwi.operators.vectors import dot
from hpcfwi.parallel.context import Context

OWN = "tests.inversion.networks.own:Waves"
KINDS = [{"kind": "siren", "width": 16}, {"kind": "cnn", "channels": 4}, {"kind": OWN}]
EACH = pytest.mark.parametrize("keys", KINDS, ids=["siren", "cnn", "own"])
SHAPES = pytest.mark.parametrize("shape", [(9, 21), (6, 7, 9)])


def model(shape, seed=None):
    """Return velocities that increase with depth, or random ones."""
    grid = Grid(shape, (10.0,) * len(shape), (0.0,) * len(shape))
    depth = torch.linspace(0.0, 1.0, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    values = (1500.0 + 1000.0 * depth).expand(shape).clone()
    if seed is not None:
        values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return Model(grid, {"vp": values})


def represent(keys, shape, fit=1, bounds=None):
    """Return a network for a model whose first row is fixed."""
    initial = model(shape)
    fixed = torch.zeros(shape, dtype=torch.bool)
    fixed[0] = True
    limits = Limits(initial, {"vp": fixed}, bounds or {})
    section = NetworkSection.model_validate({"fit": fit, "seed": 5, **keys})
    return NetworkModel(section, limits, Context.alone(), True)


def changed(weights, seed=2, size=0.05):
    generator = torch.Generator().manual_seed(seed)
    return weights.map(lambda a: a + size * torch.randn(a.shape, generator=generator))


@SHAPES
@EACH
def test_model_is_output_of_network_except_in_fixed_cells(keys, shape):
    network = represent(keys, shape)
    weights = network.fit()
    made = network.make(weights)["vp"]
    assert torch.equal(made[0], network.limits.initial["vp"][0])
    half = min(shape) - 1.0
    axes = [torch.linspace(-(n - 1) / half, (n - 1) / half, n) for n in shape]
    coordinates = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)
    values = functional_call(network._network, dict(weights.arrays), (coordinates,))[..., 0]
    free = network.limits.initial["vp"][1:]
    expected = free.mean() + free.std(correction=0) * values
    assert torch.allclose(made[1:], expected.detach()[1:], rtol=1e-5)


@SHAPES
@EACH
def test_pull_back_matches_autograd(keys, shape):
    network = represent(keys, shape)
    weights, gradient = network.fit(), model(shape, seed=3)
    leaves = {name: array.clone().requires_grad_() for name, array in weights.arrays.items()}
    values = network._call(leaves, slice(0, math.prod(shape)))
    spread = network.limits.initial["vp"][1:].std(correction=0)
    free = gradient["vp"].clone()
    free[0] = 0.0
    (values.reshape(shape) * spread * free).sum().backward()
    found = network.pull_back(weights, network.make(weights), gradient)
    for name, leaf in leaves.items():
        scale = leaf.grad.abs().max()
        assert torch.allclose(found[name], leaf.grad, atol=2e-5 * float(scale)), name


@SHAPES
@EACH
def test_pull_back_is_transpose_of_push(keys, shape):
    network = represent(keys, shape)
    weights, gradient = changed(network.fit()), model(shape, seed=3)
    direction = changed(weights, seed=4) - weights
    there = dot(network.push(weights, direction), gradient)
    back = dot(direction, network.pull_back(weights, network.make(weights), gradient))
    assert back == pytest.approx(there, rel=1e-4)


@EACH
def test_push_is_derivative_of_the_model(keys):
    network = represent(keys, (9, 21))
    weights = changed(network.fit())
    direction = changed(weights, seed=4) - weights
    step = 3e-4
    near, far = (network.make(weights + direction * s)["vp"].double() for s in (-step, step))
    change = network.push(weights, direction)["vp"]
    error = ((far - near) / (2.0 * step) - change).norm() / change.norm()
    assert error < 2e-2


def test_gradient_out_of_bounds_does_not_reach_the_weights():
    network = represent(KINDS[0], (9, 21), bounds={"vp": (1500.0, 1990.0)})
    weights = network.fit()
    made = network.make(weights)
    assert made["vp"].max() <= 1990.0
    outwards = model((9, 21)).map(lambda a: torch.where(made["vp"] == 1990.0, -1.0, 0.0) + 0.0 * a)
    assert (made["vp"] == 1990.0).any()
    pulled = network.pull_back(weights, made, outwards)
    assert not any(array.any() for array in pulled.arrays.values())
    inwards = outwards * -1.0
    pulled = network.pull_back(weights, made, inwards)
    assert any(array.any() for array in pulled.arrays.values())


def test_blocks_of_cells_change_only_rounding(monkeypatch):
    network = represent(KINDS[0], (9, 21))
    weights, gradient = network.fit(), model((9, 21), seed=3)
    monkeypatch.setattr(module, "BLOCK", 50)
    cut = represent(KINDS[0], (9, 21))
    assert len(cut._blocks) == 4
    made = network.make(weights)
    assert torch.allclose(cut.make(weights)["vp"], made["vp"], rtol=1e-6)
    whole, parts = (n.pull_back(weights, made, gradient) for n in (network, cut))
    for name, array in whole.arrays.items():
        assert torch.allclose(parts[name], array, atol=1e-5 * float(array.abs().max())), name


@pytest.mark.parametrize("keys", KINDS[:2], ids=["siren", "cnn"])
def test_fit_to_the_initial_model_is_reproducible(keys):
    networks = [represent(keys, (12, 30), fit=fit) for fit in (1, 300, 300)]
    first, last, again = (network.fit() for network in networks)
    errors = [
        (network.make(weights)["vp"] - network.limits.initial["vp"]).norm()
        for network, weights in zip(networks, (first, last), strict=False)
    ]
    assert errors[1] < 0.3 * errors[0]
    assert all(torch.equal(last[name], again[name]) for name in last.arrays)


def test_seed_changes_weights_but_not_the_random_state_of_torch():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    one, other = (represent({**KINDS[0], "seed": seed}, (9, 21)).fit() for seed in (1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert not torch.equal(one["last.weight"], other["last.weight"])


def test_output_with_channels_first_is_refused():
    """For several parameters its values would be mixed up."""
    network = represent({"kind": "tests.inversion.networks.own:ChannelsFirst"}, (9, 21))
    with pytest.raises(InputError, match=r"returned \(1, 9, 21\) for .* expected \(9, 21, 1\)"):
        network.fit()
