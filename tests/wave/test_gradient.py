"""Tests of the backward pass, the exact transpose and derivative of the discrete scheme."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wave.examples import Shots, random_shots, relative, white_residual
from tests.wave.transposes import transposition_error

LONG_STEP = 4e-3  # two or three substeps

schemes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10**6),
        "order": st.sampled_from((2, 4, 6, 8)),
        "boundary": st.sampled_from((0, 1, 7)),
        "free_surface": st.booleans(),
        "on_grid": st.booleans(),
        "dt": st.sampled_from((1e-3, LONG_STEP)),
        "spacing": st.sampled_from(((8.0, 11.0), (10.0, 10.0), (12.0, 7.0))),
        "shots": st.integers(1, 3),
        "sources": st.integers(1, 3),
        "samples": st.integers(20, 40),
    }
)


@pytest.mark.parametrize("engine", ["eager", "cpu"])
@pytest.mark.parametrize("free_surface", [False, True])
@pytest.mark.parametrize("on_grid", [False, True])
@pytest.mark.parametrize("dt", [1e-3, LONG_STEP])
def test_backward_pass_passes_the_dot_product_test(
    engine: str, free_surface: bool, on_grid: bool, dt: float
) -> None:
    shots = random_shots(
        free_surface=free_surface, on_grid=on_grid, dt=dt, samples=20, engine=engine
    )
    assert (shots.simulate(keep=False).substeps > 1) == (dt == LONG_STEP)
    assert transposition_error(shots) < 1e-12


@settings(max_examples=12)
@given(schemes)
def test_cpu_engine_passes_the_dot_product_test_for_any_scheme(
    scheme: dict[str, object],
) -> None:
    assert transposition_error(random_shots(**scheme, engine="cpu")) < 1e-12  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["eager", "cpu"])
def test_backward_pass_passes_the_dot_product_test_in_three_dimensions(engine: str) -> None:
    shots = random_shots(
        shape=(9, 8, 10),
        spacing=(9.0, 8.0, 10.0),
        samples=15,
        boundary=3,
        free_surface=True,
        engine=engine,
    )
    assert transposition_error(shots) < 1e-12


@settings(max_examples=12)
@given(schemes)
def test_cpu_engine_agrees_with_differentiated_torch_for_any_scheme(
    scheme: dict[str, object],
) -> None:
    shots = random_shots(**scheme)  # type: ignore[arg-type]
    eager, cpu = (shots.simulate(engine=engine) for engine in ("eager", "cpu"))
    residual = white_residual(eager.data)
    expected, found = eager.backpropagate(residual), cpu.backpropagate(residual)
    assert relative(cpu.data, eager.data) < 1e-12
    assert relative(found.model["vp"], expected.model["vp"]) < 1e-12
    assert relative(found.wavelet, expected.wavelet) < 1e-12


def remainders(shots: Shots, steps: tuple[float, ...]) -> list[float]:
    """Return the differences of the gradient from central differences of the least-squares misfit.

    They are relative to the derivative along the signs of the gradient; steps in m/s.
    """
    observed = white_residual(shots.simulate(keep=False).data)

    def misfit(vp: torch.Tensor) -> torch.Tensor:
        return 0.5 * ((replace(shots, vp=vp).acoustic() - observed) ** 2).sum()

    vp = shots.vp.clone().requires_grad_()
    misfit(vp).backward()  # type: ignore[no-untyped-call]
    assert vp.grad is not None
    direction = torch.sign(vp.grad)
    derivative = (vp.grad * direction).sum()
    return [
        float(
            abs(
                (misfit(shots.vp + h * direction) - misfit(shots.vp - h * direction))
                / (2 * h)
                / derivative
                - 1
            )
        )
        for h in steps
    ]


@pytest.mark.parametrize(
    ("engine", "order"), [("eager", 8), ("cpu", 2), ("cpu", 4), ("cpu", 6), ("cpu", 8)]
)
@pytest.mark.parametrize("free_surface", [False, True])
@pytest.mark.parametrize("dt", [1e-3, LONG_STEP])
def test_central_differences_converge_to_the_gradient_quadratically(
    engine: str, order: int, free_surface: bool, dt: float
) -> None:
    shots = random_shots(
        engine=engine, free_surface=free_surface, order=order, dt=dt, samples=12, shots=2
    )
    coarse, fine, finest = remainders(shots, (4.0, 2.0, 0.05))
    assert coarse / fine == pytest.approx(4.0, rel=0.1)
    assert finest < 1e-6


def test_gradient_without_an_absorbing_boundary_agrees_with_differences() -> None:
    coarse, fine, finest = remainders(random_shots(boundary=0), (4.0, 2.0, 0.05))
    assert coarse / fine == pytest.approx(4.0, rel=0.1)
    assert finest < 1e-6
