"""Tests of `acoustic` against analytic solutions, and of its arguments."""

from __future__ import annotations

import gc
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hpcfwi.wave import Simulation, acoustic, simulate
from hpcfwi.wave.numerics import ricker
from tests.wave.examples import random_shots, relative, white_residual

VELOCITY, SPACING, DT, FREQUENCY, DELAY = 2000.0, 10.0, 1e-3, 10.0, 0.15


def line_source(distance: float, samples: int) -> torch.Tensor:
    """Return the exact 2-D solution, the integral of s(t - r cosh(theta) / c) over theta / 2 pi."""
    theta = np.linspace(0.0, 6.0, 20001)
    weight = np.full(theta.size, theta[1])
    weight[[0, -1]] /= 2.0
    arrival = distance / VELOCITY * np.cosh(theta)
    a = (np.pi * FREQUENCY * (DT * np.arange(samples)[:, None] - arrival - DELAY)) ** 2
    return torch.tensor((1.0 - 2.0 * a) * np.exp(-a) @ weight / (2.0 * np.pi))


def homogeneous_trace(
    shape: tuple[int, ...],
    source: list[float],
    receiver: list[float],
    samples: int,
    **options: object,
) -> torch.Tensor:
    vp = torch.full(shape, VELOCITY, dtype=torch.float64)
    wavelet = torch.tensor(ricker(FREQUENCY, samples, DT, DELAY))
    points = np.array([source]), np.array([receiver])
    return acoustic(vp, SPACING, DT, wavelet, *points, **options)[0, 0]  # type: ignore[arg-type]


@pytest.mark.parametrize(("distance", "bound"), [(500.0, 0.005), (1000.0, 0.01)])
def test_cpu_engine_agrees_with_the_analytic_solution(distance: float, bound: float) -> None:
    trace = homogeneous_trace(
        (61, 161), [300.0, 300.0], [300.0, 300.0 + distance], 900, engine="cpu"
    )
    assert relative(trace, line_source(distance, 900)) < bound


def test_eager_engine_agrees_with_the_analytic_solution() -> None:
    trace = homogeneous_trace((31, 61), [150.0, 150.0], [150.0, 450.0], 450, engine="eager")
    assert relative(trace, line_source(300.0, 450)) < 0.005


def test_pulse_in_three_dimensions_agrees_with_the_analytic_solution() -> None:
    distance, samples = 100.0, 310
    source, receiver = [60.0, 60.0, 60.0], [60.0, 60.0, 160.0]
    trace = homogeneous_trace((13, 13, 23), source, receiver, samples, boundary=10)
    a = (np.pi * FREQUENCY * (DT * np.arange(samples) - distance / VELOCITY - DELAY)) ** 2
    exact = torch.tensor((1.0 - 2.0 * a) * np.exp(-a) / (4.0 * np.pi * distance))
    assert relative(trace, exact) < 0.02


def test_free_surface_acts_as_a_mirror_source_of_opposite_sign() -> None:
    trace = homogeneous_trace((61, 121), [300.0, 300.0], [200.0, 700.0], 900, free_surface=True)
    direct, reflected = np.hypot(100.0, 400.0), np.hypot(500.0, 400.0)
    exact = line_source(direct, 900) - line_source(reflected, 900)
    assert relative(trace, exact) < 0.01


def test_first_sample_of_every_trace_is_zero() -> None:
    data = random_shots().acoustic()
    assert torch.all(data[..., 0] == 0.0)


def test_traces_have_the_dtype_of_the_model_and_the_shape_of_the_survey() -> None:
    shots = random_shots(shots=3, receivers=4, samples=40)
    for dtype in (torch.float32, torch.float64):
        data = replace(shots, vp=shots.vp.to(dtype)).acoustic()
        assert data.dtype == dtype
        assert data.shape == (3, 4, 40)


def test_one_wavelet_and_one_receiver_line_are_used_for_all_shots() -> None:
    shots = random_shots()
    short = replace(shots, wavelet=shots.wavelet[0], receivers=shots.receivers[0])
    written_out = replace(
        shots,
        wavelet=shots.wavelet[:1].repeat(3, 1),
        receivers=shots.receivers[:1].repeat(3, axis=0),
    )
    assert torch.equal(short.acoustic(), written_out.acoustic())


@pytest.mark.parametrize("engine", ["eager", "cpu"])
def test_simultaneous_sources_give_the_sum_of_single_sources(engine: str) -> None:
    shots = random_shots(sources=3, engine=engine)
    alone = [
        replace(shots, sources=shots.sources[:, k], wavelet=shots.wavelet[:, k]).acoustic()
        for k in range(3)
    ]
    assert relative(shots.acoustic(), torch.stack(alone).sum(0)) < 1e-12


def test_wavelet_can_be_given_once_per_shot_or_per_source() -> None:
    shots = random_shots(sources=2)
    written_out = shots.wavelet[:1, :1].expand(3, 2, -1)
    residual = white_residual(shots.acoustic())

    def differentiate(wavelet: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = wavelet.clone().requires_grad_()
        data = replace(shots, wavelet=leaf).acoustic()
        data.backward(residual)
        assert leaf.grad is not None
        return data, leaf.grad

    data, gradient = differentiate(written_out)
    for wavelet, expected in (
        (written_out[:, 0], gradient.sum(1)),
        (written_out[0, 0], gradient.sum((0, 1))),
    ):
        same, found = differentiate(wavelet)
        assert torch.equal(same, data)
        assert relative(found, expected) < 1e-14


def test_autograd_gets_the_gradients_summed_over_shots() -> None:
    shots = random_shots()
    shots = replace(shots, wavelet=shots.wavelet[0])
    vp, wavelet = shots.vp.clone().requires_grad_(), shots.wavelet.clone().requires_grad_()
    data = replace(shots, vp=vp, wavelet=wavelet).acoustic()
    residual = white_residual(data)
    data.backward(residual)  # type: ignore[no-untyped-call]
    gradients = shots.simulate().backpropagate(residual)
    assert vp.grad is not None
    assert wavelet.grad is not None
    assert torch.equal(vp.grad, gradients.model["vp"].sum(0))
    assert torch.equal(wavelet.grad, gradients.wavelet[:, 0].sum(0))


def test_history_is_freed_with_the_autograd_graph() -> None:
    """The history is freed after a backward pass even while the result is alive."""

    def count_simulations() -> int:
        gc.collect()
        return sum(type(alive) is Simulation for alive in gc.get_objects())

    shots = random_shots()
    misfit = replace(shots, vp=shots.vp.requires_grad_()).acoustic().square().sum()
    misfit.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    assert count_simulations() == 1
    misfit.backward()  # type: ignore[no-untyped-call]
    assert count_simulations() == 0
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        misfit.backward()  # type: ignore[no-untyped-call]


def test_simulation_can_be_backpropagated_repeatedly() -> None:
    for engine in ("eager", "cpu"):
        simulation = random_shots(engine=engine).simulate()
        residual = white_residual(simulation.data)
        first, second = (simulation.backpropagate(residual) for _ in range(2))
        assert torch.equal(first.model["vp"], second.model["vp"])
        assert first.receiver_illumination is not None
        assert second.receiver_illumination is not None
        assert torch.equal(first.receiver_illumination, second.receiver_illumination)


def test_backpropagation_without_a_history_is_refused() -> None:
    simulation = random_shots().simulate(keep=False)
    with pytest.raises(RuntimeError, match="has no history"):
        simulation.backpropagate(torch.zeros_like(simulation.data))


def test_arrays_of_the_equation_are_required_and_others_ignored() -> None:
    shots = random_shots()
    given: Any = (shots.spacing, shots.acquisition, shots.split()[0])
    with pytest.raises(ValueError, match=r"the model has no vp; expected vp for .* 'acoustic'"):
        simulate({"rho": shots.vp}, *given)
    found = simulate({"rho": shots.vp, "vp": shots.vp}, *given)
    assert torch.equal(found.data, shots.simulate().data)


def test_engines_agree_in_a_model_narrower_than_its_boundary_layers() -> None:
    shots = random_shots(shape=(8, 8), receivers=2)
    eager, cpu = (shots.simulate(engine=engine) for engine in ("eager", "cpu"))
    residual = white_residual(eager.data)
    assert relative(cpu.data, eager.data) < 1e-12
    assert (
        relative(cpu.backpropagate(residual).model["vp"], eager.backpropagate(residual).model["vp"])
        < 1e-12
    )


def positions(*values: float) -> NDArray[np.float64]:
    return np.array([values])


@pytest.mark.parametrize(
    ("change", "found_and_expected"),
    [
        ({"vp": torch.ones(9)}, r"vp is torch.float32 \(9,\); expected .*\(nz, nx\)"),
        ({"vp": torch.ones(9, 9, dtype=torch.int64)}, r"vp is torch.int64 .*; expected float32"),
        ({"vp": torch.full((7, 30), 2e3)}, r"vp is \(7, 30\); expected at least 8 points"),
        ({"vp": torch.zeros(25, 33)}, r"vp has values .*; expected m/s above 0"),
        ({"vp": torch.full((25, 33), torch.nan)}, r"not finite .*; expected m/s above 0"),
        ({"vp": torch.full((25, 33), 4.5)}, r"largest vp is 4.5, .* km/s; expected m/s"),
        ({"sources": torch.zeros(3, 2).requires_grad_()}, r"sources requires a gradient"),
        ({"receivers": torch.zeros(3, 4, 2).requires_grad_()}, r"expected receivers.detach\(\)"),
        ({"spacing": 0.0}, r"spacing is 0.0; expected a positive length"),
        ({"spacing": (8.0, 8.0, 8.0)}, r"spacing is \(8.0, 8.0, 8.0\); expected .*each axis"),
        ({"dt": -0.001}, r"dt is -0.001; expected a positive time"),
        ({"wavelet": torch.ones(1)}, r"wavelet has 1 samples; expected at least 2"),
        ({"wavelet": torch.ones(2, 40)}, r"wavelet \(2, 40\); expected the same number"),
        ({"sources": np.zeros((3, 3))}, r"sources is \(3, 3\); expected finite positions"),
        (
            {"sources": np.zeros((2, 1, 2))},
            r"sources is \(2, 1, 2\), receivers \(3, 4, 2\) .*expected the same",
        ),
        (
            {"wavelet": torch.ones(3, 2, 40)},
            r"sources is \(3, 2\), .* wavelet \(3, 2, 40\); expected .* of sources",
        ),
        ({"sources": np.full((3, 2), np.nan)}, r"sources is \(3, 2\); expected finite"),
        ({"sources": np.full((3, 2), -5.0)}, r"3 source positions .*\[-5.0, -5.0\].*expected 0 to"),
        ({"receivers": np.full((1, 2), 1e4)}, r"3 receiver positions .*expected 0 to \[192.0"),
        ({"receivers": np.zeros((2, 4, 2))}, r"receivers \(2, 4, 2\) .*expected the same number"),
        ({"receivers": np.zeros((0, 2))}, r"receivers is \(0, 2\); expected one or more"),
        ({"sources": np.zeros((3, 0, 2))}, r"sources is \(3, 0, 2\); expected one or more"),
        ({"sources": np.zeros((3, 2), complex)}, r"sources is complex128; expected real numbers"),
        ({"wavelet": torch.tensor([0.0, np.nan])}, r"wavelet has \d+ values .* not finite"),
        ({"wavelet": torch.ones(40) * 1j}, r"wavelet is torch.complex64 .*expected real numbers"),
        ({"wavelet": torch.tensor(1.0)}, r"wavelet is torch.float32 \(\); expected real numbers"),
        ({"dt": 10.0}, r"dt is 10 s.*longest stable step .*expected dt in s, spacing in m and vel"),
    ],
)
def test_error_for_an_invalid_argument_names_found_and_expected_values(
    change: dict[str, object], found_and_expected: str
) -> None:
    with pytest.raises(ValueError, match=found_and_expected):
        replace(random_shots(), **change).acoustic()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "found_and_expected"),
    [
        ({"order": 5}, r"order is 5; expected one of \(2, 4, 6, 8\)"),
        ({"order": 4.0}, r"order is 4.0; expected one of \(2, 4, 6, 8\)"),
        ({"boundary": -1}, r"boundary is -1; expected .*0 or more"),
        ({"engine": "warp"}, r"engine is 'warp'; expected \"auto\", 'eager', 'cpu'"),
        ({"history": "all"}, r"history is 'all'; expected \"auto\", \"snapshots\""),
        ({"boundary_frequency": -1.0}, r"boundary_frequency is -1.0; expected .*0 or more"),
        ({"boundary": 2.5}, r"boundary is 2.5; expected .*cells"),
        ({"max_velocity": -1.0}, r"max_velocity is -1.0; expected a positive"),
        ({"max_velocity": 4.5}, r"max_velocity is 4.5; expected .*m/s, 20 or more"),
    ],
)
def test_error_for_an_invalid_option_names_found_and_expected_values(
    option: dict[str, object], found_and_expected: str
) -> None:
    with pytest.raises(ValueError, match=found_and_expected):
        random_shots().acoustic(**option)


@pytest.mark.parametrize("name", ["vp", "wavelet"])
def test_numpy_array_in_place_of_a_tensor_is_refused_with_a_remedy(name: str) -> None:
    shots = random_shots()
    given = {name: getattr(shots, name).numpy()}
    with pytest.raises(TypeError, match=rf"{name} is a numpy.ndarray; .*torch.as_tensor\({name}\)"):
        replace(shots, **given).acoustic()


def test_positions_can_be_lists_and_scalars_of_any_numeric_type() -> None:
    shots = random_shots(spacing=(8.0, 8.0))
    others: dict[str, Any] = {
        "sources": shots.sources.tolist(),
        "receivers": shots.receivers.tolist(),
        "spacing": np.float32(8.0),
        "dt": torch.tensor(shots.dt, dtype=torch.float64),
    }
    assert torch.equal(replace(shots, **others).acoustic(), shots.acoustic())


@pytest.mark.parametrize("engine", ["eager", "cpu"])
def test_source_on_the_free_surface_is_refused(engine: str) -> None:
    shots = random_shots()
    on_surface = shots.sources.copy()
    on_surface[1, 0] = 0.0
    with pytest.raises(
        ValueError, match=r"1 of 3 sources lie on the free surface, .*free_surface="
    ):
        replace(shots, sources=on_surface).acoustic(engine=engine, free_surface=True)
    assert replace(shots, sources=on_surface).acoustic(engine=engine)[1].abs().max() > 0.0


def test_receiver_on_the_free_surface_gives_a_warning_and_zeros() -> None:
    shots = random_shots()
    on_surface = shots.receivers.copy()
    on_surface[:, 0, 0] = 0.0
    with pytest.warns(UserWarning, match=r"3 of 12 receivers lie on the free surface"):
        traces = replace(shots, receivers=on_surface).acoustic(free_surface=True)
    assert traces[:, 0].abs().max() == 0.0 < traces[:, 1].abs().max()


def test_time_step_in_ms_gives_a_warning() -> None:
    shots = random_shots(samples=8)
    with pytest.warns(UserWarning, match=r"dt is 1 s, .*substeps; expected dt in s.* ms\?"):
        replace(shots, dt=1.0).acoustic()


def test_receiver_positions_in_cells_give_a_warning() -> None:
    shots = random_shots(spacing=(8.0, 8.0))
    cells = np.stack([np.full(8, 2.0), np.arange(2.0, 18.0, 2.0)], axis=-1)
    with pytest.warns(UserWarning, match=r"receivers are 2 m apart in cells of 8 m.*multiply"):
        replace(shots, receivers=cells).acoustic()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replace(shots, receivers=8.0 * cells).acoustic()
        shots.acoustic()
