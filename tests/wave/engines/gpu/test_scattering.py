"""Tests of scattering on the gpu engine against the eager engine, to rounding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from hpcfwi.wave import Boundary, Recompute, Snapshots, numerics
from hpcfwi.wave.history import History
from tests.wave.engines.gpu.test_engine import DEVICE, on_device, tiny_shots, tiny_volume
from tests.wave.examples import EXACT, Shots, relative, white_direction, white_residual
from tests.wave.transposes import scattering_error

pytestmark = pytest.mark.usefixtures("quick_interpreter")


def difference(shots: Shots, **changes: Any) -> float:
    """Return the relative difference of the scattered traces from the eager engine in float64."""
    exact = replace(shots, vp=shots.vp.cpu().double(), wavelet=shots.wavelet.cpu())
    direction = white_direction(exact)
    expected = exact.simulate(engine="eager").scatter(direction)
    assert expected.any(), "the scattered field is not recorded"
    on_card = {name: array.to(DEVICE) for name, array in direction.items()}
    return relative(shots.simulate(engine="gpu", **changes).scatter(on_card).cpu(), expected)


@pytest.mark.parametrize(
    "scheme",
    [
        {"order": 2, "boundary": 0},
        {"order": 4, "sources": 2},
        {"order": 8, "free_surface": True},
    ],
    ids=str,
)
def test_scattering_agrees_with_torch_in_two_dimensions(scheme: dict[str, Any]) -> None:
    assert difference(on_device(tiny_shots(**scheme))) < 1e-12


def test_scattering_agrees_with_torch_in_three_dimensions() -> None:
    assert difference(on_device(tiny_volume(order=4, free_surface=True))) < 1e-12


def test_scattering_agrees_with_torch_with_substeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "LONGEST_TAIL", 2)
    assert difference(on_device(tiny_shots(dt=4e-3, samples=4))) < 1e-12


def test_scattering_agrees_to_rounding_in_single_precision() -> None:
    assert difference(on_device(tiny_shots(free_surface=True), torch.float32)) < 1e-5


@pytest.mark.parametrize("history", [Boundary(1), Recompute(1, states=1)])
def test_scattering_agrees_with_torch_with_every_history(
    history: History,
) -> None:
    shots = on_device(tiny_shots(order=4, free_surface=True, sources=2))
    assert difference(shots, history=history) < 1e-10


@pytest.mark.parametrize(
    "history",
    [EXACT, Snapshots(2), Snapshots(2, format="int8"), Boundary(2), Recompute(2, states=1)],
)
def test_scattering_passes_the_dot_product_test_with_every_history(
    history: History,
) -> None:
    shots = on_device(tiny_shots(order=4, free_surface=True))
    tolerance = 1e-10 if isinstance(history, Boundary) else 1e-12
    assert scattering_error(shots, engine="gpu", history=history) < tolerance


@pytest.mark.parametrize("history", [EXACT, Boundary(1), Recompute(1, states=1)])
def test_scattering_and_backpropagation_can_be_repeated_in_any_order(history: History) -> None:
    shots = on_device(tiny_shots(samples=5))
    direction = white_direction(shots)
    simulation = shots.simulate(engine="gpu", history=history)
    residual = white_residual(simulation.data)
    expected = simulation.backpropagate(residual).model["vp"]
    scattered = simulation.scatter(direction)
    assert torch.equal(simulation.backpropagate(residual).model["vp"], expected)
    assert torch.equal(simulation.scatter(direction), scattered)
    other = shots.simulate(engine="gpu", history=history)
    assert torch.equal(other.scatter(direction), scattered)
