"""Tests of changes of variables between the parameters of a model and the unknowns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcfwi.errors import StepFailure
from hpcfwi.inversion.parameters import POWERS, Limits, Medium, Unknowns
from hpcfwi.model import Grid, Model
from hpcfwi.operators.vectors import dot
from hpcfwi.registry import PARAMETRIZATIONS, find

GRID = Grid((3, 4), (10.0, 10.0), (0.0, 0.0))
FLUID = torch.zeros(GRID.shape, dtype=torch.bool)
FLUID[0] = True
# Inverted and tied parameters
CHOICES = {
    "velocities": (("vp", "vs"), {}),
    "velocities and density": (("vp", "vs", "rho"), {}),
    "P velocity and density": (("vp", "rho"), {}),
    "tied density": (("vp", "vs"), {"rho": "gardner"}),
    "all tied": (("vp",), {"vs": "ratio", "rho": "gardner"}),
}
CASES = [
    (name, choice)
    for name in PARAMETRIZATIONS
    for choice, (names, _) in CHOICES.items()
    if name != "lame" or "vs" in names
]
every_case = pytest.mark.parametrize(("name", "choice"), CASES)


def make_medium(seed=0, dtype=torch.float64):
    """Return a model of a fluid over rock."""
    generator = np.random.default_rng(seed)
    vp = generator.uniform(1500.0, 4000.0, GRID.shape)
    arrays = {
        "vp": vp,
        "vs": vp * generator.uniform(0.2, 0.65, GRID.shape) * ~FLUID.numpy(),
        "rho": generator.uniform(1000.0, 2500.0, GRID.shape),
    }
    return Model(GRID, {name: torch.tensor(array, dtype=dtype) for name, array in arrays.items()})


def make_unknowns(name, choice, bounds=None, initial=None):
    names, ties = CHOICES[choice]
    initial = make_medium() if initial is None else initial
    changing = {n: initial[n] for n in (*names, *ties)}
    fixed = {n: FLUID if n == "vs" else torch.zeros_like(FLUID) for n in changing}
    limits = Limits(Model(GRID, changing), fixed, bounds or {})
    powers = {n: POWERS[relation] for n, relation in ties.items()}
    medium = Medium(initial.map(torch.Tensor.double).arrays, powers)
    return Unknowns(find(PARAMETRIZATIONS[name]), limits, medium, dict.fromkeys(names, 1.0))


def change(unknowns, share):
    """Return a model whose P velocity and other inverted parameters are changed by a share."""
    powers = unknowns.medium.powers
    return Model(
        GRID,
        {
            n: array * (1.0 + share) ** powers.get(n, 1.0)
            for n, array in unknowns.limits.initial.arrays.items()
        },
    )


def randomize(like, seed):
    """Return random values in the form of a model, 0 for the S velocity of the fluid."""
    generator = torch.Generator().manual_seed(seed)
    found = like.map(lambda a: torch.randn(a.shape, generator=generator, dtype=a.dtype))
    if "vs" in found.arrays:
        found["vs"][FLUID] = 0.0
    return found


@every_case
@given(share=st.floats(-0.3, 0.4))
@settings(max_examples=10, deadline=None)
def test_model_follows_from_its_unknowns(name, choice, share):
    unknowns = make_unknowns(name, choice)
    model = change(unknowns, share)
    made = unknowns.make(unknowns.of(model))
    assert made.arrays.keys() == model.arrays.keys()
    for key, array in model.arrays.items():
        torch.testing.assert_close(made[key], array, rtol=1e-13, atol=0.0)


@every_case
def test_unknowns_are_the_quantities_of_the_field(name, choice):
    unknowns, names = make_unknowns(name, choice), CHOICES[choice][0]
    model = {**make_medium().arrays, **change(unknowns, 0.1).arrays}
    vp, vs, rho = (model[key] for key in ("vp", "vs", "rho"))
    start = make_medium()
    expected = {
        "velocity": {"vp": vp, "vs": vs, "rho": rho},
        "impedance": {"vp": rho * vp, "vs": rho * vs, "rho": rho},
        "lame": {"vp": rho * (vp**2 - 2.0 * vs**2), "vs": rho * vs**2, "rho": rho},
        "log": {key: torch.log(model[key] / start[key]).nan_to_num() for key in model},
    }[name]
    found = unknowns.of(Model(GRID, {n: model[n] for n in unknowns.limits.initial.arrays}))
    assert [*found.arrays] == [*names]
    for key, array in found.arrays.items():
        scale = (expected[key] / array)[1:]
        torch.testing.assert_close(scale, torch.full_like(scale, scale[0, 0]))
        exponent = torch.log2(scale[0, 0])
        torch.testing.assert_close(exponent, exponent.round())


@every_case
def test_gradients_of_unknowns_agree_with_finite_differences(name, choice):
    unknowns = make_unknowns(name, choice)
    model = change(unknowns, 0.1)
    at, weights = unknowns.of(model), randomize(model, 1)
    direction, step = randomize(at, 2), 1e-4
    ahead, behind = (unknowns.make(at + direction * by) for by in (step, -step))
    slope = dot(ahead - behind, weights) / (2.0 * step)
    gradient = unknowns.pull_back(at, model, weights)
    assert dot(gradient, direction) == pytest.approx(slope, rel=1e-6)
    assert dot(unknowns.push(at, direction), weights) == pytest.approx(slope, rel=1e-6)


@every_case
def test_derivatives_of_both_directions_are_inverse(name, choice):
    unknowns = make_unknowns(name, choice)
    model = change(unknowns, 0.1)
    at = unknowns.of(model)
    direction, gradient = randomize(at, 1), randomize(at, 2)
    back = unknowns.push_to_unknowns(model, unknowns.push(at, direction))
    again = unknowns.pull_back(at, model, unknowns.pull_back_to_model(model, gradient))
    for found, expected in ((back, direction), (again, gradient)):
        for key, array in expected.arrays.items():
            solid = ~FLUID if key == "vs" else torch.ones_like(FLUID)
            torch.testing.assert_close(found[key][solid], array[solid], rtol=1e-9, atol=1e-9)


@every_case
def test_a_unit_step_changes_the_first_parameter_by_about_its_unit(name, choice):
    unknowns = make_unknowns(name, choice)
    initial = unknowns.limits.initial
    one = Model(GRID, {"vp": torch.ones(GRID.shape, dtype=torch.float64)})
    others = {n: torch.zeros(GRID.shape, dtype=torch.float64) for n in CHOICES[choice][0]}
    moved = unknowns.push(unknowns.of(initial), Model(GRID, {**others, **one.arrays}))
    assert 0.4 < float(moved["vp"].square().mean().sqrt()) < 2.5


@pytest.mark.parametrize("name", PARAMETRIZATIONS)
def test_tied_density_follows_the_bounded_velocity(name):
    unknowns = make_unknowns(name, "tied density", bounds={"vp": (1400.0, 3000.0)})
    start, made = unknowns.limits.initial, unknowns.make(unknowns.of(change(unknowns, 0.2)))
    assert float(made["vp"].max()) == 3000.0
    torch.testing.assert_close(made["rho"], start["rho"] * (made["vp"] / start["vp"]) ** 0.25)


@pytest.mark.parametrize("name", PARAMETRIZATIONS)
def test_fluid_has_no_gradient_of_the_s_velocity(name):
    unknowns = make_unknowns(name, "velocities and density", initial=make_medium(3, torch.float32))
    model = unknowns.limits.initial
    at = unknowns.of(model)
    gradient = unknowns.pull_back(at, model, randomize(model, 4))
    for array in gradient.arrays.values():
        assert array.dtype == torch.float32
        assert torch.isfinite(array).all()
    assert (unknowns.make(at + randomize(at, 5))["vs"][FLUID] == 0.0).all()


@pytest.mark.parametrize("name", PARAMETRIZATIONS)
def test_bounds_of_a_tied_density_do_not_move_the_velocity(name):
    unknowns = make_unknowns(name, "tied density", bounds={"rho": (1500.0, 2000.0)})
    model = unknowns.make(unknowns.of(change(unknowns, 0.2)))
    assert float(model["rho"].max()) == 2000.0
    again = unknowns.make(unknowns.of(model))
    for key, array in model.arrays.items():
        torch.testing.assert_close(again[key], array, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("name", PARAMETRIZATIONS)
def test_velocity_below_its_bound_is_clamped_before_the_density_follows(name):
    unknowns = make_unknowns(name, "tied density", bounds={"vp": (1400.0, 5000.0)})
    at = unknowns.of(unknowns.limits.initial)
    at["vp"][1, 1] *= -3.0
    if name == "log":
        at["vp"][1, 1] = -1e5
    made = unknowns.make(at)
    assert float(made["vp"][1, 1]) == 1400.0
    start = unknowns.limits.initial
    tied = start["rho"] * (made["vp"] / start["vp"]) ** 0.25
    torch.testing.assert_close(made["rho"], tied)


def test_negative_shear_modulus_is_refused_like_a_negative_velocity():
    unknowns = make_unknowns("lame", "velocities")
    at = unknowns.of(unknowns.limits.initial)
    at["vs"][1, 1] = -0.1 * at["vs"][1, 1]
    with pytest.raises(StepFailure, match="below 0 m/s"):
        unknowns.make(at)
    assert (unknowns.make(unknowns.of(unknowns.limits.initial))["vs"][FLUID] == 0.0).all()


def test_denoised_model_keeps_its_ties():
    unknowns = make_unknowns("impedance", "all tied")
    start = unknowns.limits.initial
    noisy = start.map(lambda array: array * (1.0 + 0.1 * torch.rand(GRID.shape).double()))
    kept = unknowns.keep(noisy)
    assert torch.equal(kept["vp"], noisy["vp"])
    torch.testing.assert_close(kept["rho"], start["rho"] * (kept["vp"] / start["vp"]) ** 0.25)
