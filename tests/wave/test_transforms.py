"""Tests of `acoustic` with the transforms of torch.func, and of second derivatives."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from hpcfwi.wave import Snapshots, acoustic
from hpcfwi.wave.numerics import ricker
from tests.wave.examples import relative

SHAPE, DT, N = (12, 20), 0.002, 60
ENGINES = pytest.mark.parametrize("engine", ["eager", "cpu"])


def tensor(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


VP = 2000.0 + 100.0 * tensor(*SHAPE)
WAVELET = torch.from_numpy(ricker(25.0, N, DT, 0.04))
SOURCES = torch.tensor([[20.0, 40.0], [20.0, 90.0], [30.0, 155.0]], dtype=torch.float64)
RECEIVERS = torch.tensor([[30.0, 15.0], [30.0, 77.0], [40.0, 170.0]], dtype=torch.float64)


def simulate(vp=VP, wavelet=WAVELET, sources=SOURCES, receivers=RECEIVERS, engine="cpu"):
    options = {"order": 4, "boundary": 4, "max_velocity": 2600.0, "boundary_frequency": 25.0}
    history = Snapshots(1)
    places = sources, receivers
    return acoustic(vp, 10.0, DT, wavelet, *places, engine=engine, history=history, **options)


@ENGINES
def test_func_grad_equals_backward(engine):
    residual = tensor(3, 3, N)
    free, emitted = VP.clone().requires_grad_(), WAVELET.clone().requires_grad_()
    (simulate(free, emitted, engine=engine) * residual).sum().backward()

    def misfit(vp, wavelet):
        return (simulate(vp, wavelet, engine=engine) * residual).sum()

    by_vp, by_wavelet = torch.func.grad(misfit, argnums=(0, 1))(VP, WAVELET)
    assert torch.equal(by_vp, free.grad)
    assert torch.equal(by_wavelet, emitted.grad)


def test_func_jvp_equals_central_differences():
    direction, emitted = tensor(*SHAPE, seed=1), tensor(N, seed=2)
    data, change = torch.func.jvp(
        simulate,
        (VP, WAVELET),
        (direction, emitted),
    )
    assert torch.equal(data, simulate())
    h = 1e-3
    ends = [simulate(VP + s * h * direction, WAVELET + s * h * emitted) for s in (1, -1)]
    assert relative(change, (ends[0] - ends[1]) / (2.0 * h)) < 1e-8


def test_jvp_and_vjp_pass_the_dot_product_test():
    direction, residual = tensor(*SHAPE, seed=1), tensor(3, 3, N)
    _, change = torch.func.jvp(simulate, (VP,), (direction,))
    _, pull = torch.func.vjp(simulate, VP)
    assert float((change * residual).sum()) == pytest.approx(
        float((direction * pull(residual)[0]).sum()), rel=1e-12
    )


@pytest.mark.parametrize("wavelet", [WAVELET, tensor(4, 3, N)], ids=["one", "one each"])
def test_vmap_over_shots_equals_separate_calls(wavelet):
    places = SOURCES + 10.0 * torch.rand(4, 3, 2, dtype=torch.float64)
    dims = (0 if wavelet.ndim > 1 else None, 0)
    found = torch.vmap(lambda w, s: simulate(VP, w, s), in_dims=dims)(wavelet, places)
    for number in range(4):
        alone = simulate(VP, wavelet if wavelet.ndim == 1 else wavelet[number], places[number])
        assert torch.equal(found[number], alone)


def test_vmap_over_models_equals_separate_calls():
    models = torch.stack([VP, VP + 50.0])
    found = torch.vmap(simulate)(models)
    assert torch.equal(found[0], simulate(VP))
    assert torch.equal(found[1], simulate(VP + 50.0))


def test_vmap_of_grad_gives_the_gradients_of_shots():
    def misfit(vp, source):
        return simulate(vp, sources=source[None]).square().sum()

    found = torch.vmap(torch.func.grad(misfit), in_dims=(None, 0))(VP, SOURCES)
    for number in range(3):
        alone = torch.func.grad(misfit)(VP, SOURCES[number])
        assert relative(found[number], alone) < 1e-12


def test_gradient_can_be_differentiated_with_respect_to_the_residual():
    """The gradient is linear in the residual, and the transpose of that map is the derivative."""
    free, residual = VP.clone().requires_grad_(), tensor(3, 3, N).requires_grad_()
    data = simulate(free)
    (gradient,) = torch.autograd.grad(data, free, residual, create_graph=True)
    direction = tensor(*SHAPE, seed=1)
    (change,) = torch.autograd.grad(gradient, residual, direction)
    _, expected = torch.func.jvp(simulate, (VP,), (direction,))
    assert relative(change, expected) < 1e-12


def test_gradient_has_a_forward_derivative_with_respect_to_the_residual():
    _, pull = torch.func.vjp(simulate, VP)
    residual, change = tensor(3, 3, N), tensor(3, 3, N, seed=1)
    _, (found,) = torch.func.jvp(pull, (residual,), (change,))
    assert torch.equal(found, pull(change)[0])


def misfit(vp):
    return simulate(vp).square().sum()


def push(vp):
    return torch.func.jvp(simulate, (vp,), (tensor(*SHAPE, seed=1),))[1]


@pytest.mark.parametrize(
    "differentiate",
    [
        lambda: torch.autograd.functional.hvp(misfit, VP, VP),
        lambda: torch.func.jvp(torch.func.grad(misfit), (VP,), (VP,)),
        lambda: torch.func.grad(lambda vp: push(vp).square().sum())(VP),
        lambda: torch.func.jvp(push, (VP,), (VP,)),
        lambda: torch.func.hessian(lambda share: misfit(share * VP))(torch.ones(())),
    ],
    ids=["back back", "forward back", "back forward", "forward forward", "hessian"],
)
def test_second_derivative_is_refused_with_an_alternative(differentiate):
    with pytest.raises(NotImplementedError, match=r"no second derivatives; .* use `normal` of"):
        differentiate()


def test_jvp_is_the_same_with_all_engines():
    eager, cpu = (
        torch.func.jvp(partial(simulate, engine=engine), (VP,), (tensor(*SHAPE, seed=1),))[1]
        for engine in ("eager", "cpu")
    )
    assert relative(eager, cpu) < 1e-12
