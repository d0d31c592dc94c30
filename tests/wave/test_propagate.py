"""Tests of `propagate`: equations against each other, exact derivatives, and arguments."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from hpcfwi.wave import acoustic, propagate
from hpcfwi.wave.engines.cpu.staggered import _CpuShots
from hpcfwi.wave.numerics import ricker
from tests.wave.examples import relative
from tests.wave.media import FIRST_ORDER, Survey, random_medium, random_survey

equations = pytest.mark.parametrize("equation", FIRST_ORDER)
surfaces = pytest.mark.parametrize("free_surface", [False, True])
shapes = pytest.mark.parametrize("shape", [(18, 20), (9, 10, 11)])
boxes = pytest.mark.parametrize(
    ("shape", "free_surface"), [((18, 20), False), ((18, 20), True), ((9, 10, 11), True)]
)
KINDS = ["explosive", "force-z", "force-x", "moment"]
MOMENT = {2: [[1.0, 0.5], [0.5, -2.0]], 3: [[1.0, 0.5, 0.2], [0.5, -2.0, 0.3], [0.2, 0.3, 0.4]]}


def all_components(shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the options that record every component of an equation."""
    names = ["pressure", "vz", "vx", *(["vy"] if len(shape) == 3 else []), "strain"]
    return {"components": names, "directions": np.arange(1.0, 1.0 + len(shape)), "gauge": 7.0}


def ricker_survey(shape: tuple[int, ...], free_surface: bool) -> Survey:
    """Return one shot whose shortest waves are eight cells long."""
    h = 10.0
    last = h * (np.asarray(shape) - 1)
    return Survey(
        (h,) * len(shape),
        1e-3,
        torch.tensor(ricker(10.0, 350, 1e-3, 0.12)),
        0.31 * last[None],
        np.stack([0.5 * last, 0.83 * last, 0.71 * last]),
        {"boundary_frequency": 10.0, "max_velocity": 2000.0, "free_surface": free_surface},
    )


@pytest.mark.parametrize(
    ("shape", "free_surface"), [((41, 51), False), ((41, 51), True), ((17, 18, 19), True)]
)
def test_constant_density_gives_the_pressure_of_acoustic(
    shape: tuple[int, ...], free_surface: bool
) -> None:
    survey = ricker_survey(shape, free_surface)
    vp = torch.full(shape, 2000.0, dtype=torch.float64)
    vp[shape[0] // 2 :] = 1800.0
    arguments = (survey.spacing, survey.dt, survey.wavelet, survey.sources, survey.receivers)
    expected = acoustic(vp, *arguments, **survey.options)
    model = {"vp": vp, "rho": torch.full_like(vp, 1300.0)}
    found = survey.propagate("acoustic-density", model)
    assert relative(found, expected) < 0.005


def test_equation_acoustic_is_the_function_acoustic() -> None:
    survey = ricker_survey((21, 23), free_surface=True)
    vp = torch.full((21, 23), 2000.0)
    arguments = (survey.spacing, survey.dt, survey.wavelet, survey.sources, survey.receivers)
    found = survey.propagate("acoustic", {"vp": vp}, components=["pressure"])
    assert torch.equal(found[0], acoustic(vp, *arguments, **survey.options))


def traces_and_gradients(
    equation: str, model: dict[str, Tensor], survey: Survey, **changes: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the traces, and the gradients of their product with a fixed white residual."""
    leaves = {name: array.clone().requires_grad_() for name, array in model.items()}
    traces = survey.propagate(equation, leaves, **changes)
    residual = torch.randn(traces.shape, generator=torch.Generator().manual_seed(3))
    gradients = torch.autograd.grad((traces * residual).sum(), tuple(leaves.values()))
    return traces.detach(), dict(zip(leaves, gradients, strict=True))


@boxes
def test_elastic_medium_without_shear_waves_is_acoustic(
    shape: tuple[int, ...], free_surface: bool
) -> None:
    # Between points just below a free surface, pressure and horizontal stress are interpolated
    # in different ways
    survey = random_survey(shape, free_surface=free_surface, on_grid=True, **all_components(shape))
    fluid = random_medium("acoustic-density", shape)
    model = {**fluid, "vs": torch.zeros_like(fluid["vp"])}
    found, gradients = traces_and_gradients("elastic", model, survey)
    expected, references = traces_and_gradients("acoustic-density", fluid, survey)
    for component in range(len(found)):
        assert relative(found[component], expected[component]) < 1e-12
    for name, reference in references.items():
        assert relative(gradients[name], reference) < 1e-12
    assert torch.equal(gradients["vs"], torch.zeros_like(gradients["vs"]))


@boxes
def test_vti_medium_without_anisotropy_is_isotropic(
    shape: tuple[int, ...], free_surface: bool
) -> None:
    survey = random_survey(shape, free_surface=free_surface, **all_components(shape))
    isotropic = random_medium("acoustic-density", shape)
    nothing = torch.zeros_like(isotropic["vp"])
    model = {**isotropic, "epsilon": nothing, "delta": nothing}
    found = survey.propagate("acoustic-vti", model)
    expected = survey.propagate("acoustic-density", isotropic)
    for component in range(len(found)):
        assert relative(found[component], expected[component]) < 1e-12


@pytest.mark.parametrize("order", [2, 8])
@surfaces
@equations
def test_gradients_agree_with_finite_differences(
    equation: str, free_surface: bool, order: int
) -> None:
    shape = (18, 20)
    survey = random_survey(shape, free_surface=free_surface, order=order, **all_components(shape))
    model = random_medium(equation, shape, water=4)
    residual = torch.randn(4, 2, 3, 40, generator=torch.Generator().manual_seed(3))
    # Components have units of very different sizes
    sizes = survey.propagate(equation, model).square().mean(dim=(1, 2, 3), keepdim=True).sqrt()

    def misfit(changed: dict[str, Tensor]) -> Tensor:
        return (survey.propagate(equation, changed) / sizes * residual).sum()

    leaves = {name: array.clone().requires_grad_() for name, array in model.items()}
    gradients = torch.autograd.grad(misfit(leaves), tuple(leaves.values()))
    for (name, array), gradient in zip(model.items(), gradients, strict=True):
        direction = torch.randn(shape, generator=torch.Generator().manual_seed(4)).double()
        if name == "vs":
            direction = direction * (array > 0.0)
        step = 1e-3 * float(array.abs().mean())
        # Of sixth order (Fornberg 1988, table 1)
        weights = {-3: -1.0, -2: 9.0, -1: -45.0, 1: 45.0, 2: -9.0, 3: 1.0}
        terms = (
            weight * misfit({**model, name: array + k * step * direction})
            for k, weight in weights.items()
        )
        slope = float(sum(terms)) / (60.0 * step)
        assert float((gradient * direction).sum()) == pytest.approx(slope, rel=1e-9)


@boxes
@equations
def test_gradient_is_the_transpose_of_the_born_approximation(
    equation: str, shape: tuple[int, ...], free_surface: bool
) -> None:
    survey = random_survey(shape, free_surface=free_surface, samples=16, **all_components(shape))
    model = random_medium(equation, shape, water=3)
    for name in model:
        direction = torch.randn(shape, generator=torch.Generator().manual_seed(5)).double()
        with forward_ad.dual_level():
            dual = {**model, name: forward_ad.make_dual(model[name], direction)}
            born = forward_ad.unpack_dual(survey.propagate(equation, dual)).tangent
        residual = torch.randn(born.shape, generator=torch.Generator().manual_seed(6)).double()
        leaf = model[name].clone().requires_grad_()
        traces = survey.propagate(equation, {**model, name: leaf})
        (gradient,) = torch.autograd.grad((traces * residual).sum(), leaf)
        product = float((born * residual).sum())
        scale = float(born.norm() * residual.norm())
        assert abs(float((gradient * direction).sum()) - product) < 1e-12 * scale


@pytest.mark.parametrize("kind", KINDS)
@shapes
def test_traces_are_linear_in_the_wavelet_and_its_gradient_is_the_transpose(
    shape: tuple[int, ...], kind: str
) -> None:
    survey = random_survey(shape, free_surface=True, samples=25, **all_components(shape))
    source = MOMENT[len(shape)] if kind == "moment" else kind
    model = random_medium("elastic", shape, water=3)
    wavelet = survey.wavelet.clone().requires_grad_()
    traces = survey.propagate("elastic", model, wavelet=wavelet, source_kind=source)
    residual = torch.randn(traces.shape, generator=torch.Generator().manual_seed(6)).double()
    (gradient,) = torch.autograd.grad((traces * residual).sum(), wavelet)
    other = torch.randn(wavelet.shape, generator=torch.Generator().manual_seed(7)).double()
    product = (
        survey.propagate("elastic", model, wavelet=other, source_kind=source) * residual
    ).sum()
    scale = float(traces.detach().norm() * residual.norm())
    assert abs(float((gradient * other).sum() - product)) < 1e-12 * scale


@surfaces
@equations
def test_sources_and_receivers_of_particle_velocity_can_be_exchanged(
    equation: str, free_surface: bool
) -> None:
    survey = random_survey((18, 20), free_surface=free_surface, boundary=0, shots=1)
    model = random_medium(equation, (18, 20), water=3)
    here, there = survey.sources, survey.receivers[0, :1]

    def exchange(a: np.ndarray, b: np.ndarray, kind: str, component: str) -> Tensor:
        return propagate(
            equation,
            model,
            survey.spacing,
            survey.dt,
            survey.wavelet,
            a,
            b,
            source_kind=kind,
            components=component,
            **survey.options,
        )

    # At a free surface too, and just below it
    for depth in (here[0, 0], 0.0, 4.0):
        here[0, 0] = depth
        one_way = exchange(here, there, "force-z", "vx")
        assert relative(exchange(there, here, "force-x", "vz"), one_way) < 1e-12
        one_way = exchange(here, there, "force-x", "vz")
        assert relative(exchange(there, here, "force-z", "vx"), one_way) < 1e-12


def test_isotropic_moment_tensor_is_an_explosion() -> None:
    survey = ricker_survey((41, 51), free_surface=False)
    model = {
        name: torch.full((41, 51), value, dtype=torch.float64)
        for name, value in (("vp", 2000.0), ("vs", 1000.0), ("rho", 1800.0))
    }
    names = ("pressure", "vz", "vx")
    explosion = survey.propagate("elastic", model, components=names)
    rate = 2000.0**2 * survey.dt * survey.wavelet.cumsum(-1)
    # The moment's rate is taken between samples, where the sum of the wavelet belongs
    centred = 0.5 * (rate + torch.cat([torch.zeros(1), rate[:-1]]))
    found = survey.propagate(
        "elastic", model, components=names, wavelet=centred, source_kind=np.eye(2)
    )
    assert relative(found, explosion) < 2e-3


def test_rate_of_strain_is_the_difference_of_velocities_along_the_fibre() -> None:
    shape, gauge = (18, 20), 16.0
    survey = random_survey(shape, free_surface=True, shots=1)
    model = random_medium("elastic", shape, water=3)
    along = np.array([0.6, 0.8])
    strain = survey.propagate(
        "elastic", model, components="strain", directions=5.0 * along, gauge=gauge
    )
    ends = []
    for sign in (-0.5, 0.5):
        moved = Survey(
            survey.spacing,
            survey.dt,
            survey.wavelet,
            survey.sources,
            survey.receivers + sign * gauge * along,
            survey.options,
        )
        vz, vx = moved.propagate("elastic", model, components=["vz", "vx"])
        ends.append(along[0] * vz + along[1] * vx)
    rate = (strain[..., 2:] - strain[..., :-2]) / (2.0 * survey.dt)
    assert relative(rate, ((ends[1] - ends[0]) / gauge)[..., 1:-1]) < 1e-12


def test_gradient_of_shear_velocity_in_water_is_exactly_zero() -> None:
    shape = (18, 20)
    survey = random_survey(shape, free_surface=True, **all_components(shape))
    model = random_medium("elastic", shape, water=5)
    _, gradients = traces_and_gradients("elastic", model, survey)
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients.values())
    assert torch.equal(gradients["vs"][:5], torch.zeros(5, 20, dtype=torch.float64))
    assert bool((gradients["vs"][6:] != 0.0).any())


def test_second_derivative_is_refused() -> None:
    survey, model = random_survey((18, 20)), random_medium("elastic", (18, 20))

    def simulate(vp: Tensor) -> Tensor:
        return survey.propagate("elastic", {**model, "vp": vp})

    with pytest.raises(NotImplementedError, match="no second derivatives"):
        torch.autograd.functional.hvp(
            lambda vp: simulate(vp).square().sum(), model["vp"], model["vp"]
        )
    free = model["vp"].clone().requires_grad_()
    with forward_ad.dual_level():
        dual = simulate(forward_ad.make_dual(free, model["vp"]))
        change = forward_ad.unpack_dual(dual).tangent
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        torch.autograd.grad(change.sum(), free)


def test_history_is_freed_after_the_backward_pass() -> None:
    def count_shots() -> int:
        gc.collect()
        return sum(type(alive) is _CpuShots for alive in gc.get_objects())

    survey, model = random_survey((18, 20)), random_medium("elastic", (18, 20))
    model["vs"].requires_grad_()
    traces = survey.propagate("elastic", model)
    traces.sum().backward(retain_graph=True)  # type: ignore[no-untyped-call]
    assert count_shots() == 1
    traces.sum().backward()  # type: ignore[no-untyped-call]
    assert count_shots() == 0


def test_long_steps_are_divided_into_substeps() -> None:
    survey = ricker_survey((31, 41), free_surface=False)
    model = {
        name: torch.full((31, 41), value, dtype=torch.float64)
        for name, value in (("vp", 2000.0), ("vs", 1100.0), ("rho", 1800.0))
    }
    expected = survey.propagate("elastic", model, components="vx")[..., ::4]
    arguments = (survey.spacing, 4e-3, survey.wavelet[::4], survey.sources, survey.receivers)
    found = propagate("elastic", model, *arguments, components="vx", **survey.options)
    assert relative(found, expected) < 0.02


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"equation": "elastics"}, "equation is 'elastics'; expected one of acoustic, "),
        ({"source_kind": "force-y"}, "the kind of sources is force-y; expected explosive, force-z"),
        ({"source_kind": [[1.0, 0.0], [1.0, 1.0]]}, "or a symmetric moment tensor .2, 2."),
        ({"components": ["vz", "vy"]}, "components has vy; expected some of pressure, vz, vx"),
        ({"components": []}, "components has no names"),
        ({"components": "strain"}, "expected the directions of the fibre and a positive length"),
        (
            {"components": "strain", "directions": [0.0, 0.0], "gauge": 9.0},
            "expected finite vectors .ndim,.* none of length 0",
        ),
        (
            {"components": "strain", "directions": [0.0, 1.0], "gauge": 900.0},
            "gauge end positions lie outside the model",
        ),
        ({"engine": "deepwave"}, "engine is 'deepwave'; expected .* for the equation elastic"),
        ({"history": "boundary"}, "history is boundary; this engine has snapshots"),
    ],
)
def test_arguments_without_meaning_are_refused(changes: dict[str, Any], message: str) -> None:
    survey = random_survey((18, 20))
    model = random_medium("elastic", (18, 20))
    given = {"equation": "elastic", **changes}
    with pytest.raises(ValueError, match=message):
        survey.propagate(given.pop("equation"), model, **given)


@pytest.mark.parametrize(
    ("equation", "changes", "message"),
    [
        ("elastic", {"vs": None}, "the model has no vs; expected vp, vs, rho for the equation"),
        ("elastic", {"vs": 1900.0}, "vs is above vp / sqrt.2. in 360 cells"),
        ("elastic", {"vs": -1.0}, "vs has values that are not finite or below 0; expected m/s of"),
        ("elastic", {"rho": 0.0}, "rho has values that are not finite or not positive; expected"),
        (
            "elastic",
            {"vp": float("nan")},
            "vp has values that are not finite or not positive; expected",
        ),
        ("acoustic-vti", {"epsilon": -0.2}, "epsilon is below delta in 360 cells"),
        ("acoustic-vti", {"delta": -0.5}, "delta has values that are not finite or below -0.49"),
    ],
)
def test_media_without_meaning_are_refused(
    equation: str, changes: dict[str, float | None], message: str
) -> None:
    survey = random_survey((18, 20))
    model = random_medium(equation, (18, 20))
    for name, value in changes.items():
        old = model.pop(name)
        if value is not None:
            model[name] = torch.full_like(old, value)
    with pytest.raises(ValueError, match=message):
        survey.propagate(equation, model)


def test_no_shots_have_no_traces_and_a_gradient_of_zero() -> None:
    survey = random_survey((18, 20))
    model = {n: a.requires_grad_() for n, a in random_medium("elastic", (18, 20)).items()}
    shots = survey.sources[:0], survey.receivers[:0]
    found = propagate("elastic", model, survey.spacing, survey.dt, survey.wavelet[0], *shots)
    assert found.shape == (0, 3, 40)
    found.sum().backward()
    assert all(torch.equal(a.grad, torch.zeros_like(a)) for a in model.values())
    single = {name: array.detach().float() for name, array in model.items()}
    found = propagate("elastic", single, survey.spacing, survey.dt, survey.wavelet[0], *shots)
    assert found.dtype == torch.float32


def test_gradients_of_positions_are_refused() -> None:
    survey = random_survey((18, 20))
    places = torch.tensor(survey.sources, requires_grad=True), survey.receivers
    with pytest.raises(ValueError, match="sources requires a gradient"):
        propagate(
            "elastic",
            random_medium("elastic", (18, 20)),
            survey.spacing,
            survey.dt,
            survey.wavelet,
            *places,
        )


def test_explosion_on_a_free_surface_is_refused_where_it_emits_nothing() -> None:
    survey = random_survey((18, 20), free_surface=True, shots=1, on_grid=True)
    survey.sources[..., 0] = 0.0
    for equation in ("acoustic-density", "elastic"):
        with pytest.raises(ValueError, match="1 of 1 sources lie on the free surface"):
            survey.propagate(equation, random_medium(equation, (18, 20), water=3))
    on_land = random_medium("elastic", (18, 20))
    assert bool(survey.propagate("elastic", on_land).abs().sum() > 0.0)
    with pytest.raises(ValueError, match="1 of 1 sources lie on the free surface"):
        survey.propagate("elastic", on_land, source_kind=[[0.0, 1.0], [1.0, 0.0]])
    weight = survey.propagate("elastic", on_land, source_kind="force-z", components="vz")
    assert bool(weight.abs().sum() > 0.0)
