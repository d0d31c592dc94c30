"""Shots as operators, against plain simulations, and the transpose of their derivative."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcfwi.model import Grid, Model
from hpcfwi.operators import Fidelity, Shots
from hpcfwi.operators.simulator import Aperture
from hpcfwi.operators.vectors import dot, length, randomize
from hpcfwi.wave import Snapshots, acoustic
from tests.operators.examples import DT, GRID, METHOD, make_model, make_survey
from tests.wave.examples import relative

ENGINES = ["eager", "cpu"]


def make_shots(survey=None, **changes):
    return Shots(make_survey() if survey is None else survey, GRID, **{**METHOD, **changes})


def simulate(model, survey, shots=slice(None)):
    return acoustic(
        model["vp"],
        10.0,
        DT,
        torch.from_numpy(survey.wavelet).double(),
        survey.sources[shots],
        survey.receivers,
        order=4,
        boundary=4,
        max_velocity=2600.0,
        boundary_frequency=make_shots()._simulator.method.boundary_frequency,
        engine="eager",
        history=Snapshots(1),
    )


def test_shots_give_traces_of_acoustic():
    model, survey = make_model(), make_survey()
    data = make_shots(survey)(model)
    assert data.shape == survey.shape
    assert relative(data, simulate(model, survey)) < 1e-13


def test_autograd_through_shots_matches_acoustic():
    model, survey = make_model(), make_survey()
    residual = torch.randn(survey.shape, dtype=torch.float64)
    one, other = (Model(GRID, {"vp": model["vp"].clone().requires_grad_()}) for _ in range(2))
    (make_shots(survey)(one) * residual).sum().backward()
    (simulate(other, survey) * residual).sum().backward()
    assert relative(one["vp"].grad, other["vp"].grad) < 1e-12


def test_second_derivative_is_refused():
    shots, vp = make_shots(), make_model()["vp"]

    def misfit(values):
        return shots(Model(GRID, {"vp": values})).square().sum()

    with pytest.raises(NotImplementedError, match="no second derivatives"):
        torch.autograd.functional.hvp(misfit, vp, vp)


def test_arrays_that_the_equation_does_not_have_are_ignored():
    shots, vp = make_shots(), make_model()["vp"]
    leaves = {"rho": vp.clone().requires_grad_(), "vp": vp.clone().requires_grad_()}
    more, traces = Model(GRID, leaves), shots(make_model()).detach()
    shots(more).backward(traces)
    expected = shots.vjp(make_model(), traces)["vp"]
    assert torch.equal(leaves["vp"].grad, expected)
    assert leaves["rho"].grad is None
    matrix = shots.linearize(more).as_scipy()
    assert matrix.shape == (traces.numel(), vp.numel())
    assert np.array_equal(matrix.T @ traces.numpy().ravel(), expected.numpy().ravel())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"order": 5}, r"^order is 5; expected one of"),
        ({"equation": "elastics"}, r"^equation is 'elastics'; expected one of acoustic, "),
        ({"engine": "cuda"}, r"^engine is 'cuda'; expected"),
    ],
)
def test_method_without_meaning_is_refused_in_words_of_the_caller(changes, message):
    with pytest.raises(ValueError, match=message):
        make_shots(**changes)(make_model())


def test_input_that_is_no_model_of_the_grid_is_refused():
    shots, model = make_shots(), make_model()
    born, vp = shots.linearize(model), model["vp"]
    coarse = Grid(GRID.shape, (20.0, 20.0), GRID.origin)
    for call in (shots, born, born.normal, lambda x: shots.vjp(x, torch.zeros(5, 4, 60))):
        with pytest.raises(TypeError, match=r"found a torch.Tensor \(12, 20\); expected a .*Model"):
            call(vp)
        with pytest.raises(TypeError, match=r"found a Model of vp: a numpy.ndarray"):
            call(Model(GRID, {"vp": vp.numpy()}))
        with pytest.raises(ValueError, match=r"vp is \(9, 20\); expected \(12, 20\), the grid of"):
            call(Model(GRID, {"vp": vp[:9]}))
        with pytest.raises(ValueError, match=r"the model is on .* 20 x .*; expected the grid of"):
            call(Model(coarse, {"vp": vp}))


def test_change_of_other_parameters_than_those_of_the_equation_is_refused():
    born, array = make_shots().linearize(make_model()), make_model()["vp"]
    with pytest.raises(ValueError, match=r"found a Model of rho: .*; expected a change of vp"):
        born(Model(GRID, {"rho": array}))


@pytest.mark.parametrize("shape", [(5, 1, 60), (5, 4, 1), (5, 2, 60)])
def test_traces_in_another_shape_than_the_survey_are_refused(shape):
    """Some of these shapes would be broadcast, and give the adjoint of other traces."""
    shots, model, traces = make_shots(), make_model(), torch.zeros(shape)
    message = r"as the traces of shot 0; expected a torch.Tensor \(4, 60\) \(receiver, time\)"
    for call in (
        shots.linearize(model).adjoint,
        lambda ys: shots.vjp(model, ys),
        lambda ys: Fidelity(shots, ys).grad(model),
    ):
        with pytest.raises(ValueError, match=message):
            call(traces)


@pytest.mark.parametrize("engine", ENGINES)
def test_vjp_equals_adjoint_of_linearization(engine):
    shots, model = make_shots(engine=engine), make_model()
    residual = torch.randn(shots.survey.shape, dtype=torch.float64)
    one, other = shots.vjp(model, residual), shots.linearize(model).adjoint(residual)
    assert torch.equal(one["vp"], other["vp"])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("margin", [None, 30.0])
def test_adjoint_of_linearization_passes_dot_product_test(engine, margin):
    mask = np.arange(20).reshape(5, 4) % 3 > 0
    aperture = Aperture(margin, 80.0)
    shots = make_shots(make_survey(mask=mask), engine=engine, aperture=aperture)
    born = shots.linearize(make_model())
    x, y = randomize(born.model), torch.randn(shots.survey.shape, dtype=torch.float64)
    forward, backward = dot(born(x), y), dot(x, born.adjoint(y))
    assert forward == pytest.approx(backward, rel=1e-12)
    assert not born(x)[torch.from_numpy(~mask)].any()


@pytest.mark.parametrize("history", ["auto", Snapshots(4, 60.0)])
def test_adjoint_with_sampled_history_passes_dot_product_test(history):
    born = make_shots(engine="cpu", history=history).linearize(make_model())
    x, y = randomize(born.model), torch.randn(born.survey.shape, dtype=torch.float64)
    assert dot(born(x), y) == pytest.approx(dot(x, born.adjoint(y)), rel=1e-12)


def test_linearization_of_a_linearization_is_itself():
    born = make_shots().linearize(make_model())
    change = randomize(born.model)
    assert torch.equal(born.linearize(change)(change), born(change))


def test_linearization_error_is_quadratic_in_model_change():
    shots, model = make_shots(), make_model()
    direction, born = randomize(model), shots.linearize(model)
    before, first = shots(model), born(direction)
    left = [
        float((shots(model + direction * h) - before - first * h).norm()) for h in (1.0, 0.5, 0.25)
    ]
    assert left[0] / left[1] == pytest.approx(4.0, rel=0.05)
    assert left[1] / left[2] == pytest.approx(4.0, rel=0.05)


def test_normal_operator_is_adjoint_of_forward_product():
    born = make_shots().linearize(make_model())
    x = randomize(born.model)
    assert relative(born.normal(x)["vp"], born.adjoint(born(x))["vp"]) < 1e-13


def test_norm_of_linearization_is_largest_singular_value():
    born = make_shots(make_survey(shots=2)).linearize(make_model())
    columns = []
    for cell in range(GRID.shape[0] * GRID.shape[1]):
        unit = torch.zeros(GRID.shape, dtype=torch.float64)
        unit.view(-1)[cell] = 1.0
        columns.append(born(Model(GRID, {"vp": unit})).flatten())
    matrix = torch.stack(columns, dim=1)
    largest = float(torch.linalg.svdvals(matrix)[0])
    assert born.norm(tolerance=1e-6) == pytest.approx(largest, rel=1e-3)


def test_pseudoinverse_reproduces_the_data():
    born = make_shots(make_survey(shots=2)).linearize(make_model())
    data = born(randomize(born.model))
    found = born.pseudoinverse(data, tolerance=1e-4, iterations=100)
    assert relative(born(found), data) < 1e-2
    short = born.pseudoinverse(data, iterations=3)
    assert length(short) < length(found)


def test_adjoint_of_nonlinear_shots_is_an_error_that_names_vjp():
    shots = make_shots()
    with pytest.raises(TypeError, match="Shots is not linear and has no adjoint; expected vjp"):
        shots.adjoint(torch.zeros(shots.survey.shape))


def test_vjp_refuses_wrong_number_of_gathers():
    shots = make_shots()
    with pytest.raises(ValueError, match="found 4 outputs; expected those of all members, 5"):
        shots.vjp(make_model(), torch.zeros(4, 4, 60))


def test_error_for_nonfinite_residual_names_its_shots():
    shots = make_shots()
    residual = torch.zeros(shots.survey.shape, dtype=torch.float64)
    residual[3, 0, 5] = torch.nan
    with pytest.raises(ValueError, match=r"the members \[3\] of a stack give values that are not"):
        shots.vjp(make_model(), residual)
