"""Tests of first-order equations in the `gpu` engine, against the other engines."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from hpcfwi.wave import Acquisition, Method, Simulation, simulate
from hpcfwi.wave.history import History, Recompute, Snapshots
from tests.wave.engines.gpu.test_engine import DEVICE
from tests.wave.examples import relative
from tests.wave.media import (
    FIRST_ORDER,
    everything,
    random_medium,
    random_survey,
    traces_and_gradients,
)

pytestmark = pytest.mark.usefixtures("quick_interpreter")

FLAT, DEEP = (13, 14), (9, 8, 10)


def on_card(model: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: array.to(DEVICE) for name, array in model.items()}


@pytest.mark.parametrize(
    ("equation", "shape", "order", "free_surface"),
    [
        *((equation, FLAT, 8, True) for equation in FIRST_ORDER),
        ("elastic", FLAT, 2, False),
        ("elastic", DEEP, 4, True),
        ("viscoacoustic", DEEP, 6, False),
    ],
)
def test_traces_and_gradients_are_those_of_autograd(
    equation: str, shape: tuple[int, ...], order: int, free_surface: bool
) -> None:
    model = random_medium(equation, shape, water=3)
    options: dict[str, Any] = everything(shape)
    survey = random_survey(
        shape,
        samples=6 if equation == "elastic-tti" else 8,
        order=order,
        free_surface=free_surface,
        boundary=3,
        source_kind="force-x" if free_surface else "explosive",
        **options,
    )
    expected = traces_and_gradients(equation, model, survey, engine="eager")
    found = traces_and_gradients(equation, on_card(model), survey, engine="gpu")
    for one, other in zip(found, expected, strict=True):
        assert relative(one.cpu(), other) < 1e-12


@pytest.mark.parametrize("equation", ["elastic", "viscoelastic"])
def test_forward_derivatives_are_those_of_autograd(equation: str) -> None:
    model = random_medium(equation, FLAT, water=3)
    survey = random_survey(FLAT, samples=10, free_surface=True, boundary=3, **everything(FLAT))
    generator = torch.Generator().manual_seed(4)
    tangents = [torch.randn(FLAT, generator=generator).double() for _ in model]
    found = []
    for engine, device in (("eager", torch.device("cpu")), ("gpu", DEVICE)):
        with forward_ad.dual_level():
            pairs = zip(model.items(), tangents, strict=True)
            dual = {
                name: forward_ad.make_dual(array.to(device), tangent.to(device))
                for (name, array), tangent in pairs
            }
            wavelet = survey.wavelet.to(device)
            traces = survey.propagate(equation, dual, wavelet=wavelet, engine=engine)
            found.append(forward_ad.unpack_dual(traces).tangent.cpu())
    assert relative(found[1], found[0]) < 1e-12


def simulation(engine: str, history: History, shots: slice = slice(0, 2)) -> Simulation:
    """Return a simulation of two elastic shots in single precision."""
    device = DEVICE if engine == "gpu" else torch.device("cpu")
    survey = random_survey(FLAT, samples=16)
    model = random_medium("elastic", FLAT, water=3)
    acquisition = Acquisition(
        survey.dt, survey.wavelet[shots].float(), survey.sources[shots], survey.receivers[shots]
    )
    method = Method(4, 3, True, 10.0, 2600.0, engine, history, "elastic")
    on_device = {name: array.float().to(device) for name, array in model.items()}
    return simulate(on_device, survey.spacing, acquisition, method)


def residual_of(found: Simulation) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(found.data.shape, generator=generator).to(found.data)


@pytest.mark.parametrize(
    ("history", "bound"),
    [
        (Snapshots(3), 1e-4),
        (Snapshots(3, format="bfloat16"), 2e-2),
        (Snapshots(3, format="float16"), 2e-3),
        (Snapshots(3, format="int8"), 5e-2),
    ],
    ids=str,
)
def test_gradients_and_illuminations_are_those_of_the_cpu_engine(
    history: Snapshots, bound: float
) -> None:
    found, exact = simulation("gpu", history), simulation("cpu", Snapshots(3))
    assert relative(found.data.cpu(), exact.data) < 1e-5
    one, other = (each.backpropagate(residual_of(each)) for each in (found, exact))
    for name, gradient in other.model.items():
        assert relative(one.model[name].cpu(), gradient) < bound
    pairs = (
        (one.source_illumination, other.source_illumination),
        (one.receiver_illumination, other.receiver_illumination),
    )
    for energy, expected in pairs:
        assert energy is not None
        assert expected is not None
        assert relative(energy.cpu(), expected) < max(bound, 1e-4)


def all_results(found: Simulation) -> list[Tensor]:
    """Return the traces, their gradients and illuminations, and what the gradient scatters."""
    gradients = found.backpropagate(found.data)
    illuminations = gradients.source_illumination, gradients.receiver_illumination
    assert None not in illuminations
    change = {name: gradient[0] for name, gradient in gradients.model.items()}
    scattered = found.scatter(change)
    return [found.data, *gradients.model.values(), gradients.wavelet, *illuminations, scattered]  # type: ignore[list-item]


@pytest.fixture(scope="module")
def results_of_stored_samples(quick_interpreter: None) -> list[Tensor]:  # noqa: ARG001
    return all_results(simulation("gpu", Snapshots(3)))


@pytest.mark.parametrize("states", [1, 2, 50])
def test_recomputed_samples_give_the_same_bits_as_stored_ones(
    states: int, results_of_stored_samples: list[Tensor]
) -> None:
    repeated = simulation("gpu", Recompute(3, states=states))
    for _ in range(2):
        assert all(map(torch.equal, all_results(repeated), results_of_stored_samples))


def test_scattering_is_the_transpose_of_the_gradient_of_sampled_steps() -> None:
    found = simulation("gpu", Snapshots(3))
    residual, generator = residual_of(found), torch.Generator().manual_seed(6)
    change = {name: torch.randn(FLAT, generator=generator).to(DEVICE) for name in ("vp", "rho")}
    gradients = found.backpropagate(residual).model
    product = sum((change[name] * gradients[name].sum(0)).sum() for name in change)
    scattered = (found.scatter(change) * residual).sum()
    assert float(scattered) == pytest.approx(float(product), rel=1e-4)


def test_shots_have_the_same_bits_alone_and_together() -> None:
    together = simulation("gpu", Snapshots(3))
    gradients = together.backpropagate(residual_of(together)).model
    for shot in range(2):
        alone = simulation("gpu", Snapshots(3), slice(shot, shot + 1))
        assert torch.equal(alone.data[0], together.data[shot])
        found = alone.backpropagate(residual_of(together)[shot : shot + 1]).model
        for name, gradient in gradients.items():
            assert torch.equal(found[name][0], gradient[shot])
