"""Tests of the descriptions of first-order equations, and of means of a medium."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hpcfwi.wave.equation import (
    Attenuation,
    FirstOrderEquation,
    Source,
    System,
    Term,
    Wavefield,
    find_equation,
    harmonic_mean,
    mean,
)
from tests.wave.media import FIRST_ORDER, random_medium

moduli = arrays.arrays(np.float64, (3, 4), elements=st.floats(1e-3, 1e3))


def simple_system(*, half: str = "x", reads: str = "p") -> System:
    """Return a system with one axis of motion; half: of the velocity; reads: its derivative's."""
    return System(
        fields={"p": Wavefield(), "v": Wavefield(half)},
        stages=({"v": (Term("b", "x", reads),)}, {"p": (Term("k", "x", "v"),)}),
        sources={"explosive": Source({"p": "1"}, "rate")},
        components={"pressure": {"p": 1.0}},
        surface="p",
    )


def test_description_whose_derivatives_lie_where_their_field_lies_is_accepted() -> None:
    assert simple_system().stage_of("p") == 1


def test_description_with_a_derivative_at_the_wrong_place_is_refused() -> None:
    with pytest.raises(ValueError, match="v cannot be updated by"):
        simple_system(half="z")


def test_description_whose_stage_reads_what_it_updates_is_refused() -> None:
    with pytest.raises(ValueError, match="v cannot be updated by"):
        simple_system(reads="v")


@pytest.mark.parametrize("axes", ["zx", "zyx"])
@pytest.mark.parametrize("name", FIRST_ORDER)
def test_every_equation_defines_the_coefficients_of_its_terms_and_sources(
    name: str, axes: str
) -> None:
    equation = find_equation(name)
    assert isinstance(equation, FirstOrderEquation)
    system = equation.system(axes)
    model = random_medium(name, (8,) * len(axes))
    assert set(model) == set(equation.parameters)
    defined = {"1", *equation.coefficients(model, axes)}
    terms = [term for stage in system.stages for terms in stage.values() for term in terms]
    used = [term.coefficient for term in terms]
    used += [c for source in system.sources.values() for c in source.coefficients.values()]
    assert {coefficient.removeprefix("-") for coefficient in used} == defined - (
        set() if "elastic" in name else {"1"}
    )


@given(moduli)
def test_mean_is_that_of_a_cell_and_the_next_one(values: np.ndarray) -> None:
    found = mean(torch.tensor(values), 1).numpy()
    after = np.concatenate([values[:, 1:], values[:, -1:]], axis=1)
    assert np.allclose(found, 0.5 * (values + after), rtol=1e-15)


@given(moduli)
def test_harmonic_mean_is_the_inverse_of_the_mean_of_inverses(values: np.ndarray) -> None:
    inverse = 1.0 / torch.tensor(values)
    expected = 1.0 / mean(mean(inverse, 0), 1)
    assert torch.allclose(harmonic_mean(torch.tensor(values), 0, 1), expected, rtol=1e-12)


def test_harmonic_mean_beside_a_fluid_is_zero_and_has_a_finite_derivative() -> None:
    modulus = torch.ones(4, 4, dtype=torch.float64)
    modulus[:2] = 0.0
    modulus.requires_grad_()
    found = harmonic_mean(modulus, 0, 1)
    found.sum().backward()
    assert torch.equal(found[:2], torch.zeros(2, 4))
    assert torch.equal(found[2:], torch.ones(2, 4))
    assert modulus.grad is not None
    assert torch.isfinite(modulus.grad).all()


def test_speeds_of_an_elastic_medium_are_those_of_its_waves() -> None:
    equation = find_equation("elastic")
    model = {"vp": np.array([1500.0, 2000.0]), "vs": np.array([0.0, 1000.0])}
    assert equation.fastest(model).tolist() == [1500.0, 2000.0]
    assert equation.slowest(model).tolist() == [1500.0, 1000.0]


thomsen = st.tuples(
    st.floats(0.0, 0.7), st.floats(-0.3, 0.6), st.floats(-0.4, 0.6), st.sampled_from(["d", "e"])
)


@pytest.mark.parametrize("equation_name", ["elastic-vti", "elastic-tti"])
@given(values=thomsen)
def test_limits_of_an_anisotropic_elastic_medium_make_it_possible(
    equation_name: str, values: tuple[float, float, float, str]
) -> None:
    ratio, epsilon, delta, changed = values
    equation = find_equation(equation_name)
    given_model = {
        name: torch.tensor([value], dtype=torch.float64)
        for name, value in (("vs", 2000.0 * ratio), ("epsilon", epsilon), ("delta", delta))
    } | {"vp": torch.tensor([2000.0]).double(), "rho": torch.tensor([2000.0]).double()}
    name = {"d": "delta", "e": "epsilon"}[changed]
    model = {**given_model, **equation.limit(given_model, [name])}
    hopeless = delta < -0.5 * (1.0 - ratio**2) or 1.0 + 2.0 * epsilon <= ratio**2
    if not hopeless:
        assert equation.find_fault(model) is None
    if equation.find_fault(given_model) is None:
        tolerated = 1e-6 if equation_name == "elastic-tti" else 0.026
        torch.testing.assert_close(model[name], given_model[name], rtol=1e-5, atol=tolerated)


@pytest.mark.parametrize(
    ("ratio", "epsilon", "delta", "grows"),
    [
        # Wills Point shale and Mesaverde clayshale (Thomsen 1986, table 1)
        (0.366, 0.215, 0.315, True),
        (0.523, 0.334, 0.73, True),
        (0.5, -0.15, -0.05, True),
        (0.5, -0.15, -0.08, False),
        (0.5, 0.1, 0.22, False),
    ],
)
def test_elastic_vti_media_whose_waves_grow_in_the_boundary_are_refused(
    ratio: float, epsilon: float, delta: float, grows: bool
) -> None:
    values = {"vp": 2e3, "vs": 2e3 * ratio, "epsilon": epsilon, "delta": delta, "rho": 2e3}
    model = {name: torch.full((2, 2), value) for name, value in values.items()}
    fault = find_equation("elastic-vti").find_fault(model)
    assert (fault or "").startswith("delta is too large in 4 cells") == grows
    assert find_equation("elastic-tti").find_fault(model) is None


@given(thomsen)
def test_no_wave_of_an_elastic_vti_medium_is_faster_than_the_fastest(
    values: tuple[float, float, float, str],
) -> None:
    ratio, epsilon, delta, _ = values
    model = {
        "vp": np.array(2000.0),
        "vs": np.array(2000.0 * ratio),
        "epsilon": np.array(epsilon),
        "delta": np.array(delta),
        "rho": np.array(2000.0),
    }
    equation = find_equation("elastic-vti")
    if equation.find_fault(model) is not None:
        return
    # The eigenvalues of Christoffel's matrix (Thomsen 1986), relative to vp^2
    sine, cosine = (f(np.linspace(0.0, np.pi / 2.0, 91)) for f in (np.sin, np.cos))
    shear = ratio**2
    coupling = np.sqrt((1.0 - shear) * (1.0 + 2.0 * delta - shear)) * sine * cosine
    across = (1.0 + 2.0 * epsilon) * sine**2 + shear * cosine**2
    along = shear * sine**2 + cosine**2
    matrices = np.array([[across, coupling], [coupling, along]]).transpose(2, 0, 1)
    largest = np.linalg.eigvalsh(matrices).max()
    assert 2000.0 * np.sqrt(largest) <= float(equation.fastest(model)) * (1.0 + 1e-9)


def test_fields_that_the_other_stage_reads_along_z_follow_from_the_terms() -> None:
    elastic, lossy = (find_equation(name) for name in ("elastic", "viscoacoustic"))
    assert isinstance(elastic, FirstOrderEquation)
    assert isinstance(lossy, FirstOrderEquation)
    assert elastic.system("zx").read_along("z") == (["vx", "vz"], ["szx", "szz"])
    assert lossy.system("zyx").read_along("z") == (["vz"], ["p"])


@pytest.mark.parametrize("name", ["acoustic", *FIRST_ORDER])
def test_equations_can_be_sent_to_other_ranks(name: str) -> None:
    attenuation = Attenuation(frequency=7.0, mechanisms=2) if name.startswith("visco") else None
    sent = find_equation(name, attenuation)
    found = pickle.loads(pickle.dumps(sent))
    assert (found.name, found.attenuation) == (name, attenuation)
    if attenuation is None:
        assert found is sent
    else:
        assert isinstance(sent, FirstOrderEquation)
        assert found.system("zx") == sent.system("zx")
