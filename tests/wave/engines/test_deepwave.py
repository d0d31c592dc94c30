"""Tests against an independent program, Deepwave, called directly and as the `deepwave` engine.

Some receivers are one or two cells from the edges, and the shortest peak wavelength is 15 cells.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.wave.examples import (
    EXACT,
    Shots,
    random_shots,
    relative,
    smooth_shots,
    white_direction,
    white_residual,
)
from tests.wave.test_gradient import remainders
from tests.wave.transposes import scattering_error, transposition_error

deepwave = pytest.importorskip(
    "deepwave", reason="Deepwave is not installed (pip install hpcfwi[deepwave])"
)

ONE_PERCENT = 0.01


def call_deepwave(
    shots: Shots, vp: Tensor, order: int, free_surface: bool, direction: Tensor | None = None
) -> Tensor:
    """Return the traces of Deepwave for points on the grid, or those scattered by a change of vp.

    Its free surface is one node above the first row of the model; ours is the first row.
    """
    first = 1 if free_surface else 0

    def cells(positions: NDArray[np.float64]) -> Tensor:
        return torch.tensor(np.rint(positions / shots.spacing).astype(np.int64)) - torch.tensor(
            [first, 0]
        )

    n_shots = len(shots.sources)
    amplitudes = -shots.wavelet / float(np.prod((shots.spacing, shots.spacing)))
    receivers = cells(shots.receivers).expand(n_shots, -1, -1)
    propagator, others = deepwave.scalar, {"receiver_locations": receivers}
    if direction is not None:
        propagator = deepwave.scalar_born
        others = {"sc_receiver_locations": receivers, "dv": direction[first:]}
    traces: Tensor = propagator(
        vp[first:],
        shots.spacing,
        shots.dt,
        source_amplitudes=amplitudes.expand(n_shots, 1, -1),
        source_locations=cells(shots.sources)[:, None, :],
        accuracy=order,
        pml_width=[20 * (1 - first), 20, 20, 20],
        boundary=["free" if free_surface else "pml", "pml", "pml", "pml"],
        pml_freq=shots.options["boundary_frequency"],
        max_vel=shots.options["max_velocity"],
        **others,
    )[-1]
    return traces


@pytest.mark.parametrize("free_surface", [False, True])
@pytest.mark.parametrize("order", [4, 8])
def test_traces_agree_with_deepwave(order: int, free_surface: bool) -> None:
    shots = smooth_shots()
    ours = shots.acoustic(order=order, free_surface=free_surface)
    theirs = call_deepwave(shots, shots.vp, order, free_surface)
    for ours_at, theirs_at in zip(ours.flatten(0, 1), theirs.flatten(0, 1), strict=True):
        assert relative(ours_at, theirs_at) < ONE_PERCENT


@pytest.mark.parametrize("free_surface", [False, True])
def test_gradient_agrees_with_deepwave(free_surface: bool) -> None:
    shots = smooth_shots()
    vp = shots.vp.clone().requires_grad_()
    traces = call_deepwave(shots, vp, 8, free_surface)
    residual = white_residual(traces.detach())
    (theirs,) = torch.autograd.grad(traces, vp, residual)
    ours = (
        shots.simulate(free_surface=free_surface, history=EXACT).backpropagate(residual).model["vp"]
    )
    assert relative(ours.sum(0), theirs) < ONE_PERCENT


@pytest.mark.parametrize("free_surface", [False, True])
def test_deepwave_engine_agrees_with_the_cpu_engine(
    free_surface: bool,
) -> None:
    shots = smooth_shots()
    ours, theirs = (
        shots.simulate(engine=engine, free_surface=free_surface, history=EXACT)
        for engine in ("cpu", "deepwave")
    )
    assert relative(theirs.data, ours.data) < ONE_PERCENT
    expected, found = (by.backpropagate(ours.data) for by in (ours, theirs))
    assert relative(found.model["vp"], expected.model["vp"]) < ONE_PERCENT
    assert relative(found.wavelet, expected.wavelet) < ONE_PERCENT


@pytest.mark.parametrize("free_surface", [False, True])
@pytest.mark.parametrize("on_grid", [False, True])
@pytest.mark.parametrize("dt", [1e-3, 4e-3])
def test_deepwave_engine_passes_the_dot_product_test(
    free_surface: bool, on_grid: bool, dt: float
) -> None:
    scheme: dict[str, Any] = {"free_surface": free_surface, "on_grid": on_grid, "dt": dt}
    assert transposition_error(random_shots(**scheme, engine="deepwave")) < 1e-12


@pytest.mark.parametrize("free_surface", [False, True])
def test_deepwave_engine_gradient_agrees_with_central_differences(
    free_surface: bool,
) -> None:
    shots = random_shots(engine="deepwave", free_surface=free_surface)
    coarse, fine, finest = remainders(shots, (4.0, 2.0, 0.05))
    assert coarse / fine == pytest.approx(4.0, rel=0.1)
    assert finest < 1e-6


@pytest.mark.parametrize("free_surface", [False, True])
@pytest.mark.parametrize("order", [4, 8])
def test_scattered_traces_agree_with_born_modelling_of_deepwave(
    order: int, free_surface: bool
) -> None:
    shots = smooth_shots()
    direction = white_direction(shots)
    ours = shots.simulate(order=order, free_surface=free_surface, history=EXACT).scatter(direction)
    theirs = call_deepwave(shots, shots.vp, order, free_surface, direction["vp"])
    assert relative(ours, theirs) < ONE_PERCENT


@pytest.mark.parametrize("free_surface", [False, True])
def test_deepwave_engine_scatters_like_the_cpu_engine(free_surface: bool) -> None:
    shots = smooth_shots()
    direction = white_direction(shots)
    ours, theirs = (
        shots.simulate(engine=engine, free_surface=free_surface, history=EXACT).scatter(direction)
        for engine in ("cpu", "deepwave")
    )
    assert relative(theirs, ours) < ONE_PERCENT


@pytest.mark.parametrize("free_surface", [False, True])
@pytest.mark.parametrize("dt", [1e-3, 4e-3])
def test_scattering_of_the_deepwave_engine_passes_the_dot_product_test(
    free_surface: bool, dt: float
) -> None:
    shots = random_shots(free_surface=free_surface, dt=dt, sources=2, engine="deepwave")
    assert scattering_error(shots) < 1e-12
