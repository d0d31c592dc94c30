"""Tests of the staggered differences and of the longest stable step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcfwi.survey import Components
from hpcfwi.wave import staggered
from hpcfwi.wave.engines import choose
from hpcfwi.wave.equation import find_equation
from hpcfwi.wave.history import Snapshots
from hpcfwi.wave.numerics import ORDERS, longest_step, staggered_difference
from hpcfwi.wave.problem import Problem
from tests.wave.media import FIRST_ORDER, random_medium

orders = pytest.mark.parametrize("order", ORDERS)


@orders
def test_staggered_difference_is_exact_for_polynomials_up_to_its_order(order: int) -> None:
    h = 0.5
    half = staggered_difference(order, h)
    weights = np.concatenate([-half[::-1], half])
    x = h * (np.arange(-order // 2, order // 2) + 0.5)
    for power in range(order + 1):
        assert weights @ x**power == pytest.approx(1.0 if power == 1 else 0.0, abs=1e-12)
    assert abs(weights @ x ** (order + 1)) > 1e-6


def growth(
    equation: str, model: dict[str, Tensor], order: int, share: float, steps: int = 100_000
) -> float:
    """Return the ratio of velocity late and early in a closed box with a free surface.

    share: the time step divided by the longest stable one.
    """
    asked = find_equation(equation)
    shape = model["rho"].shape
    spacing = (8.0, 10.0, 9.0)[: len(shape)]
    speed = asked.fastest(model)
    equivalent = staggered.equivalent_velocity(order, speed, model["rho"])
    points = 0.5 * (np.asarray(shape) - 1) * np.asarray(spacing)
    problem = Problem(
        model=model,
        spacing=spacing,
        dt=share * longest_step(order, spacing, equivalent, staggered=True),
        sources=points[None, None],
        receivers=points[None, None],
        order=order,
        boundary=0,
        free_surface=True,
        boundary_frequency=10.0,
        max_velocity=equivalent,
        history=Snapshots(1),
        equation=asked,
        source_kinds={"force-z": np.ones(())},
        components=Components(("vz",)),
    )
    wavelet = torch.zeros(1, 1, steps, dtype=torch.float64)
    wavelet[..., :20] = torch.tensor(np.random.default_rng(2).standard_normal(20))
    traces, _ = choose("cpu", torch.device("cpu"), asked).forward(problem, wavelet, keep=False)
    early, _, late = traces.split(-(-steps // 3), dim=-1)
    return float(late.square().mean().sqrt() / early.square().mean().sqrt())


@orders
@pytest.mark.parametrize("equation", FIRST_ORDER)
def test_steps_below_the_limit_are_stable_in_white_media_with_a_free_surface(
    equation: str, order: int
) -> None:
    assert growth(equation, random_medium(equation, (10, 14), water=3), order, 0.99) < 1.05


@pytest.mark.parametrize("equation", FIRST_ORDER)
def test_steps_below_the_limit_are_stable_in_three_dimensions(equation: str) -> None:
    assert growth(equation, random_medium(equation, (8, 9, 10), water=3), 4, 0.99) < 1.05


@orders
def test_steps_above_the_limit_are_unstable_in_a_homogeneous_medium(order: int) -> None:
    model = {name: torch.full((20, 24), 2e3, dtype=torch.float64) for name in ("vp", "rho")}
    assert growth("acoustic-density", model, order, 0.99) < 1.05
    assert growth("acoustic-density", model, order, 1.02, steps=900) > 1e6


def test_steps_below_the_limit_are_stable_where_dense_cells_lie_beside_light_ones() -> None:
    rng = np.random.default_rng(0)
    density = torch.tensor(rng.choice([300.0, 6000.0], (20, 24)))
    model = {"vp": torch.full_like(density, 2e3), "rho": density}
    assert growth("acoustic-density", model, 8, 0.99) < 1.05
    shear = torch.tensor(rng.choice([0.0, 1400.0], (20, 24)))
    assert growth("elastic", {**model, "vs": shear}, 8, 0.99) < 1.05
    delta = torch.tensor(rng.choice([-0.3, 0.3], (20, 24)))
    assert growth("acoustic-vti", {**model, "epsilon": delta, "delta": delta}, 8, 0.99) < 1.05
    longest = longest_step(8, (8.0, 10.0), 2e3, staggered=True)
    equivalent = staggered.equivalent_velocity(8, model["vp"], density)
    safe = longest_step(8, (8.0, 10.0), equivalent, staggered=True)
    assert growth("acoustic-density", model, 8, 0.99 * longest / safe, steps=900) > 1e6


@orders
def test_equivalent_velocity_of_constant_density_is_the_largest_speed(order: int) -> None:
    speed = random_medium("acoustic-density", (12, 13))["vp"]
    found = staggered.equivalent_velocity(order, speed, torch.full_like(speed, 1700.0))
    assert found == pytest.approx(float(speed.max()), rel=1e-12)
