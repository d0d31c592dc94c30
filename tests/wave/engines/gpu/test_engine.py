"""Tests of the gpu engine against the eager engine, to rounding.

Without a GPU, Triton interprets the kernels, which takes milliseconds for each launch. Models are
therefore tiny, and time steps are long, so that waves reach the absorbing cells.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hpcfwi.wave import (
    Auto,
    Boundary,
    Recompute,
    Simulation,
    Snapshots,
    acoustic,
    engines,
    numerics,
)
from hpcfwi.wave.engines.gpu import engine as gpu
from hpcfwi.wave.engines.gpu import sweep
from hpcfwi.wave.engines.gpu.device import CANDIDATES, Tile
from hpcfwi.wave.history import History
from hpcfwi.wave.problem import Gradients
from tests.wave.examples import EXACT, NAMES, Shots, by_name, random_shots, relative, white_residual
from tests.wave.transposes import transposition_error

pytestmark = pytest.mark.usefixtures("quick_interpreter")

CARD = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CARD else "cpu")


def tiny_shots(**options: Any) -> Shots:
    return random_shots(
        **{
            "shape": (10, 13),
            "shots": 1,
            "receivers": 3,
            "samples": 6,
            "dt": 1.8e-3,
            "order": 2,
            "boundary": 3,
            **options,
        }
    )


def tiny_volume(**options: Any) -> Shots:
    return tiny_shots(shape=(9, 8, 10), spacing=(9.0, 8.0, 10.0), samples=5, dt=1.5e-3, **options)


def on_device(shots: Shots, dtype: torch.dtype = torch.float64) -> Shots:
    return replace(shots, vp=shots.vp.to(DEVICE, dtype), wavelet=shots.wavelet.to(DEVICE))


def both_ways(shots: Shots, **options: Any) -> tuple[Simulation, Gradients]:
    simulation = shots.simulate(engine="gpu", **options)
    return simulation, simulation.backpropagate(white_residual(simulation.data))


def differences(shots: Shots, history: History = EXACT) -> dict[str, float]:
    """Return the relative differences of all results from the eager engine in double precision."""
    exact = replace(shots, vp=shots.vp.cpu().double(), wavelet=shots.wavelet.cpu())
    reference = exact.simulate(engine="eager")
    expected = reference.backpropagate(white_residual(reference.data))
    assert all(by_name(expected)[name].any() for name in NAMES), "the wave is not recorded"
    simulation, found = both_ways(shots, history=history)
    gradients = {n: relative(by_name(found)[n].cpu(), by_name(expected)[n]) for n in NAMES}
    return {"data": relative(simulation.data.cpu(), reference.data), **gradients}


def assert_agreement(shots: Shots, tolerance: float, **options: Any) -> None:
    found = differences(shots, **options)
    assert max(found.values()) < tolerance, found


@pytest.mark.parametrize(
    "scheme",
    [
        {"order": 2, "boundary": 0},
        {"order": 4},
        {"order": 6, "on_grid": True},
        {"order": 8, "free_surface": True},
    ],
    ids=str,
)
def test_gradient_agrees_with_differentiated_torch_in_two_dimensions(
    scheme: dict[str, Any],
) -> None:
    assert_agreement(on_device(tiny_shots(**scheme)), 1e-12)


def test_gradient_agrees_with_differentiated_torch_in_three_dimensions() -> None:
    assert_agreement(on_device(tiny_volume(order=4, free_surface=True)), 1e-12)


def test_gradient_agrees_with_differentiated_torch_with_substeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(numerics, "LONGEST_TAIL", 2)
    shots = tiny_shots(dt=4e-3, samples=4)
    assert shots.simulate(engine="eager", keep=False).substeps > 1
    assert_agreement(on_device(shots), 1e-12)


def test_gradient_agrees_to_rounding_in_single_precision() -> None:
    assert_agreement(on_device(tiny_shots(free_surface=True), torch.float32), 1e-5)


DIVISIONS = {
    2: (*CANDIDATES[2], Tile(4, 1, 16, 1)),
    3: (*CANDIDATES[3], Tile(2, 4, 8, 1)),
}


@pytest.mark.parametrize(
    ("ndim", "history"),
    [
        (2, Snapshots(1)),
        pytest.param(2, Boundary(2, format="int8"), marks=pytest.mark.long),
        (3, Snapshots(1)),
    ],
)
def test_bits_do_not_depend_on_how_the_grid_is_divided(
    ndim: int, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bits are the same for every tile, since the fastest one depends on the GPU.

    Smaller tiles divide the interior along each axis, and the interior begins beyond a whole line.
    """
    shape, spacing = ((9, 9, 35), (9.0, 8.0, 10.0)) if ndim == 3 else ((10, 135), (8.0, 11.0))
    options = {"order": 2, "free_surface": True, "samples": 3, "boundary": 2 if ndim == 3 else 33}
    shots = on_device(
        tiny_shots(shape=shape, spacing=spacing, dt=1.5e-3, receivers=12, **options), torch.float32
    )
    found = []
    for k, tile in enumerate(DIVISIONS[ndim]):
        gpu.clear()
        monkeypatch.setattr(sweep.Stepper, "find_tile", lambda _, tile=tile: tile)
        frame = tile if k == len(DIVISIONS[ndim]) - 1 else sweep.FRAME_TILES[ndim]
        monkeypatch.setattr(sweep, "FRAME_TILES", {ndim: frame})
        simulation, gradients = both_ways(shots, history=history)
        found.append([simulation.data, *(by_name(gradients)[name] for name in NAMES)])
        del simulation
        gc.collect()
    assert all(array.any() for array in found[0])
    for other in found[1:]:
        assert all(map(torch.equal, other, found[0]))


def test_snapshot_in_full_precision_is_stored_without_a_copy() -> None:
    shots = on_device(tiny_shots(samples=3), torch.float32)
    for history, copies in ((Snapshots(1), 0), (Snapshots(1, format="bfloat16"), 1)):
        simulation = shots.simulate(engine="gpu", history=history)
        assert len(simulation._state.sweep.arrays["u"]) == copies  # type: ignore[union-attr]


def test_gpu_engine_passes_the_dot_product_test() -> None:
    shots = on_device(tiny_shots(free_surface=True))
    assert transposition_error(replace(shots, options={**shots.options, "engine": "gpu"})) < 1e-12


def test_field_is_rebuilt_from_its_perimeter_to_rounding() -> None:
    shots = on_device(tiny_shots(order=4, free_surface=True))
    assert_agreement(shots, 1e-10, history=Boundary(1))


def test_field_is_rebuilt_from_its_perimeter_in_three_dimensions() -> None:
    assert_agreement(on_device(tiny_volume()), 1e-10, history=Boundary(1))


def test_recomputed_field_gives_the_same_gradient() -> None:
    shots = on_device(tiny_shots(samples=6))
    expected = tiny_shots(samples=6).simulate(engine="eager")
    residual = white_residual(expected.data)
    gradients = expected.backpropagate(residual)
    simulation = shots.simulate(engine="gpu", history=Recompute(1, states=1))
    for _ in range(2):  # the second backward pass finds no states and simulates from the beginning
        found = simulation.backpropagate(residual.to(DEVICE))
        for name in NAMES:
            assert relative(by_name(found)[name].cpu(), by_name(gradients)[name]) < 1e-12


@pytest.mark.parametrize(
    ("kind", "format", "error"),
    [
        (Snapshots, "bfloat16", 1e-2),
        (Snapshots, "float16", 1e-2),
        (Boundary, "int8", 0.1),
    ],
)
def test_gradient_error_of_a_shorter_format_is_that_of_the_format(
    kind: Any, format: Any, error: float
) -> None:
    shots = on_device(tiny_shots(samples=5))
    found = differences(shots, kind(1, format=format))
    assert 0.0 < found.pop("vp") < error
    assert max(found.values()) < 1e-12


@pytest.mark.parametrize("kind", [Snapshots, Boundary])
def test_sampled_steps_are_those_of_the_cpu_engine(kind: Any) -> None:
    shots = tiny_shots(samples=6)
    expected = shots.simulate(engine="cpu", history=Snapshots(2))
    gradients = expected.backpropagate(white_residual(expected.data))
    _, found = both_ways(on_device(shots), history=kind(2))
    for name in NAMES:
        assert relative(by_name(found)[name].cpu(), by_name(gradients)[name]) < 1e-10


def results(shots: Shots, residual: Tensor) -> list[Tensor]:
    simulation = shots.simulate(engine="gpu")
    gradients = simulation.backpropagate(residual)
    return [simulation.data, *(by_name(gradients)[name] for name in NAMES)]


def test_shot_has_the_same_bits_alone_and_in_a_batch() -> None:
    shots = on_device(tiny_shots(shots=2, samples=4), torch.float32)
    on_grid = tiny_shots(shots=2, on_grid=True)
    for points, chosen in ((shots.sources, on_grid.sources), (shots.receivers, on_grid.receivers)):
        points[0] = chosen[0]
    residual = white_residual(shots.acoustic(engine="eager"))
    together = results(shots, residual)
    for k in (0, 1):
        one = replace(
            shots,
            wavelet=shots.wavelet[[k]],
            sources=shots.sources[[k]],
            receivers=shots.receivers[[k]],
        )
        for found, expected in zip(results(one, residual[[k]]), together, strict=True):
            assert torch.equal(found, expected[[k]])


def test_reused_arrays_do_not_affect_the_next_simulation() -> None:
    shots = on_device(tiny_shots(samples=4, receivers=1))
    simulation, gradients = both_ways(shots, history=Boundary(1))
    used = simulation._state.sweep  # type: ignore[union-attr]
    data, copy = simulation.data, simulation.data.clone()
    again = simulation.backpropagate(white_residual(simulation.data))
    assert torch.equal(again.model["vp"], gradients.model["vp"]), (
        "the backward pass can be repeated"
    )
    del simulation
    gc.collect()
    spoiled = replace(
        shots, wavelet=torch.full_like(shots.wavelet, torch.finfo(shots.wavelet.dtype).max)
    )
    broken, _ = both_ways(spoiled, history=Boundary(1))
    assert broken._state.sweep is used  # type: ignore[union-attr]
    assert torch.equal(data, copy), "traces are not in reused arrays"
    other, found = both_ways(shots, history=Boundary(1))
    assert other._state.sweep is not used, "two simulations exist at the same time"  # type: ignore[union-attr]
    del broken
    gc.collect()
    assert torch.equal(found.model["vp"], gradients.model["vp"])
    assert torch.equal(both_ways(shots, history=Boundary(1))[1].model["vp"], gradients.model["vp"])


def test_clear_frees_the_arrays_of_finished_simulations() -> None:
    gpu.clear()
    simulation = on_device(tiny_shots(samples=2)).simulate(engine="gpu")
    used = weakref.ref(simulation._state.sweep)  # type: ignore[union-attr]
    del simulation
    assert used() is not None
    assert gpu.idle() > 0
    gpu.clear()
    assert gpu.idle() == 0
    assert used() is None


def test_footprint_is_at_most_twice_the_allocated_memory() -> None:
    shots = on_device(tiny_shots(samples=12, receivers=5))
    for history in (Snapshots(1), Boundary(1, format="int8"), Recompute(1, states=2)):
        simulation = shots.simulate(engine="gpu", history=history)
        used: Any = simulation._state.sweep  # type: ignore[union-attr]
        tables = (used.samples.cells, used.edges.cells, used.stepper.frame_tiles)
        states = [each for state in simulation._state.replay.kept.values() for each in state]  # type: ignore[union-attr]
        assert bool(states) == isinstance(history, Recompute)
        arrays = [*used.arrays.values(), *(each for each in tables if each is not None), *states]
        taken = sum(array.numel() * array.element_size() for array in arrays)
        told = gpu.footprint(simulation._problem, 12) - used.blueprint.captured
        assert taken <= told < 2 * taken


def test_gpu_engine_computes_gradients_for_autograd() -> None:
    shots = on_device(tiny_shots(samples=4))
    vp = shots.vp.clone().requires_grad_()
    place = (shots.spacing, shots.dt, shots.wavelet, shots.sources, shots.receivers)
    options = {**shots.options, "history": Auto(interval=1)}
    acoustic(vp, *place, engine="gpu", **options).square().sum().backward()  # type: ignore[no-untyped-call]
    assert vp.grad is not None
    assert vp.grad.device == vp.device
    assert vp.grad.any()


def test_automatic_engine_on_a_gpu_is_the_gpu_engine() -> None:
    assert engines.choose("auto", torch.device("cuda")) is gpu
    assert engines.choose("auto", torch.device("cpu")) is not gpu


def test_gpu_engine_is_refused_on_a_cpu_unless_triton_interprets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="for models on GPUs, not on cpu"):
        engines.choose("gpu", torch.device("cpu"))


@pytest.mark.skipif(not CARD, reason="graphs are captured only on GPUs")
def test_replayed_graphs_give_the_bits_of_plain_launches() -> None:
    shots = on_device(tiny_shots(samples=100, shape=(40, 50)), torch.float32)
    runs = []
    for _ in range(3):
        simulation, gradients = both_ways(shots, history=Snapshots(3))
        runs.append((simulation.data, gradients.model["vp"], gradients.wavelet))
        loops = simulation._state.sweep.forwards[True, True]._graphs  # type: ignore[union-attr]
        del simulation
        gc.collect()
    assert any(graph is not None for graph in loops.values())
    for run in runs[1:]:
        assert all(map(torch.equal, run, runs[0]))
