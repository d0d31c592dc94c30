"""Products of the Gauss-Newton matrix of a batch with a direction."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hpcfwi.inversion.loop import EpochEvaluator
from hpcfwi.inversion.misfits import least_squares
from hpcfwi.inversion.objective import Objective
from hpcfwi.inversion.regularizers import tikhonov
from hpcfwi.inversion.state import State
from hpcfwi.operators.simulator import Aperture, Chunks
from hpcfwi.parallel.context import Context
from hpcfwi.registry import MISFITS, find
from hpcfwi.wave import Snapshots
from tests.inversion.examples import N_RECEIVERS, N_SAMPLES, prepared
from tests.inversion.test_objective import SHOTS, make_batch
from tests.wave.examples import relative


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("products"))


@pytest.fixture(scope="module")
def exact(experiment):
    """Return a simulator whose history has every step."""
    return experiment.simulator(experiment.initial).with_history(Snapshots(1))


@pytest.fixture(scope="module")
def initial(experiment):
    return experiment.initial.as_tensors(torch.device("cpu"))


def double(model):
    return model.map(torch.Tensor.double)


def noise(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return model.map(lambda array: torch.randn(array.shape, generator=generator, dtype=array.dtype))


def recorded(simulator, model, survey):
    return simulator.simulate(model, survey, keep=False).data.numpy()


def evaluations_of(model, batch, simulator, misfit=least_squares, regularizer=None, threads=1):
    context = Context.alone(threads=threads)
    objective = Objective(simulator, misfit, context, Chunks(threads, context), regularizer)
    experiment = SimpleNamespace(inverted=model)
    stage = SimpleNamespace(preconditioner=None, experiment=experiment)
    return EpochEvaluator(objective, stage, batch, State(0, model, {}), illuminate=False)


def dot(a, b):
    return float((a["vp"].double() * b["vp"].double()).sum())


def observed_of(experiment, simulator):
    true = experiment.true.as_tensors(torch.device("cpu"))
    return recorded(simulator, true, experiment.survey.select(SHOTS)).astype(np.float32)


@pytest.mark.parametrize("name", MISFITS)
def test_product_matches_change_of_gradient_at_zero_residual(name, experiment, exact, initial):
    """At zero residual, the second derivatives of waves that Gauss-Newton leaves out vanish.

    Misfits other than least squares leave out equal traces, so these get a small residual.
    """
    model = double(initial)
    survey = experiment.survey.select(SHOTS)
    rest = 0.0 if name == "least-squares" else 1e-5
    data = recorded(exact, model, survey)
    evaluate = evaluations_of(
        model, make_batch(experiment, SHOTS, data * (1.0 + rest * np.cos(np.arange(N_SAMPLES)))),
        exact, find(MISFITS[name]),
    )  # fmt: skip
    direction = noise(model)
    found = evaluate.product(model, direction)
    step = 1e-3
    above, below = (evaluate(model + direction * h).gradient for h in (step, -step))
    expected = (above - below) * (0.5 / step)
    assert relative(found["vp"], expected["vp"]) < 1e-3


@pytest.mark.parametrize("name", ["least-squares", "huber"])
def test_gauss_newton_product_is_symmetric_and_positive_for_convex_misfits(
    name, experiment, exact, initial
):
    model = double(initial)
    batch = make_batch(experiment, SHOTS, observed_of(experiment, exact))
    product = partial(evaluations_of(model, batch, exact, find(MISFITS[name])).product, model)
    one, two = noise(model, 1), noise(model, 2)
    forward, backward = dot(one, product(two)), dot(product(one), two)
    assert forward == pytest.approx(backward, rel=1e-10)
    assert dot(one, product(one)) > 0.0


def test_product_includes_the_penalty(experiment, exact, initial):
    model, direction = double(initial), noise(double(initial))
    batch = make_batch(experiment, SHOTS, observed_of(experiment, exact))
    penalize = partial(tikhonov, prior=model * 0.9, weight=2.0)
    penalized, plain = (
        evaluations_of(model, batch, exact, regularizer=r).product(model, direction)
        for r in (penalize, None)
    )
    expected = penalize(model + direction)[1] - penalize(model)[1]
    assert relative((penalized - plain)["vp"], expected["vp"]) < 1e-9


def test_bits_of_product_do_not_depend_on_order_and_chunks_of_shots(experiment, initial):
    simulator, direction = experiment.simulator(experiment.initial), noise(initial)
    observed = observed_of(experiment, simulator)
    expected = evaluations_of(initial, make_batch(experiment, SHOTS, observed), simulator)
    expected = expected.product(initial, direction)
    order = np.array([0, 3, 1, 2])
    for chunks, threads in ((1, 2), (2, 1), (3, 3)):
        batch = make_batch(experiment, SHOTS[order], observed[order], chunks)
        evaluate = evaluations_of(initial, batch, simulator, threads=threads)
        assert torch.equal(evaluate.product(initial, direction)["vp"], expected["vp"])


@pytest.mark.parametrize("size", [1e-36, 1e20])
def test_gauss_newton_product_is_linear_in_the_direction_of_any_size(size, experiment, initial):
    simulator, direction = experiment.simulator(experiment.initial), noise(initial)
    batch = make_batch(experiment, SHOTS, observed_of(experiment, simulator))
    evaluate = evaluations_of(initial, batch, simulator)
    expected = evaluate.product(initial, direction)
    asked = evaluate.simulations
    found = evaluate.product(initial, direction * size)
    assert relative(found["vp"].double() / size, expected["vp"].double()) < 1e-6
    assert evaluate.simulations == asked + 2 * SHOTS.size, "no sum was repeated"


def test_product_of_a_sample_is_mean_over_its_shots(experiment, initial):
    simulator, direction = experiment.simulator(experiment.initial), noise(initial)
    observed = observed_of(experiment, simulator)
    whole = evaluations_of(initial, make_batch(experiment, SHOTS, observed), simulator)
    alone = evaluations_of(initial, make_batch(experiment, SHOTS[:2], observed[:2]), simulator)
    found = whole.product(initial, direction, 2)
    assert relative(found["vp"], alone.product(initial, direction)["vp"]) < 1e-6
    assert whole.simulations == 2 * 2 + 2, "and one shot for the magnitudes, at twice its cost"


def test_product_ignores_traces_beyond_max_offset_and_cells_out_of_window(experiment, initial):
    simulator = replace(
        experiment.simulator(experiment.initial), aperture=Aperture(100.0, max_offset=200.0)
    )
    batch = make_batch(experiment, SHOTS[:1])
    direction = noise(initial)
    found = evaluations_of(initial, batch, simulator).product(initial, direction)["vp"]
    survey = experiment.survey.select(SHOTS[:1])
    (window,) = simulator.aperture.find_windows(simulator.grid, survey)
    inside = torch.zeros_like(found, dtype=torch.bool)
    inside[window.slices] = True
    assert 0 < inside.sum() < inside.numel()
    assert found[inside].any()
    assert not found[~inside].any()
    unheard = ~simulator.aperture.within_offsets(survey.sources, survey.receivers)
    spoiled = np.zeros((1, N_RECEIVERS, N_SAMPLES), np.float32)
    spoiled[unheard] = np.nan
    assert unheard.any()
    again = evaluations_of(initial, make_batch(experiment, SHOTS[:1], spoiled), simulator)
    assert torch.equal(again.product(initial, direction)["vp"], found)


def test_product_leaves_out_shots_with_nonfinite_data(experiment, initial):
    simulator, direction = experiment.simulator(experiment.initial), noise(initial)
    observed = observed_of(experiment, simulator)
    spoiled = observed.copy()
    spoiled[0, 3, 50] = np.nan
    found, expected = (
        evaluations_of(initial, batch, simulator).product(initial, direction)["vp"]
        for batch in (
            make_batch(experiment, SHOTS, spoiled),
            make_batch(experiment, SHOTS[1:], observed[1:]),
        )
    )
    assert relative(found, expected) < 1e-6
