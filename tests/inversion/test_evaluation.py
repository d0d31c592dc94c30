"""The misfit of a batch and its gradient, against autograd and for any split over ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcfwi.config import load_config
from hpcfwi.errors import InversionFailure
from hpcfwi.inversion.evaluation import evaluate
from hpcfwi.inversion.experiment import prepare
from hpcfwi.inversion.sampler import Batch
from hpcfwi.parallel.context import Context
from hpcfwi.wave import acoustic
from tests.inversion.examples import N_RECEIVERS, N_SAMPLES, write_input

SHOTS = np.array([7, 0, 4, 9])


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    path = write_input(tmp_path_factory.mktemp("evaluation"))
    return prepare(load_config(path), Context.alone())


def make_batch(experiment, mine, observed=None):
    if observed is None:
        observed = np.zeros((len(mine), N_RECEIVERS, N_SAMPLES), np.float32)
    return Batch(SHOTS, mine, experiment.survey.select(mine), observed)


@pytest.mark.parametrize("threads", [1, 3])
def test_misfit_and_gradient_are_the_mean_over_shots_of_autograds(experiment, threads):
    physics = experiment.physics(experiment.initial)
    vp = torch.tensor(experiment.initial.vp, requires_grad=True)
    survey = experiment.survey.select(SHOTS)
    observed = 0.01 * np.random.default_rng(0).normal(size=(4, N_RECEIVERS, N_SAMPLES))
    wavelet = torch.from_numpy(survey.wavelet.copy())
    data = acoustic(
        vp, 20.0, survey.dt, wavelet, survey.sources, survey.receivers, **physics.options
    )
    residual = data - torch.from_numpy(observed.astype(np.float32))
    misfit = 0.5 * survey.dt * residual.square().sum() / 4
    misfit.backward()

    batch = make_batch(experiment, SHOTS, observed.astype(np.float32))
    found = evaluate(vp.detach(), batch, physics, Context.alone(threads=threads))

    assert found.misfit == pytest.approx(misfit.item(), rel=1e-5)
    scale = float(vp.grad.abs().max())
    torch.testing.assert_close(found.gradient, vp.grad, rtol=1e-4, atol=1e-5 * scale)
    for illumination in (found.source_illumination, found.receiver_illumination):
        assert illumination.shape == vp.shape
        assert float(illumination.min()) >= 0.0
        assert float(illumination.max()) > 0.0


class Recorded(Context):
    """One rank of several: notes what it adds to the sums."""

    def sum(self, tensor):
        self.__dict__.setdefault("summed", []).append(tensor.clone())
        return tensor


def test_uneven_parts_are_divided_by_the_count_of_all_shots(experiment):
    """The ranks' parts add up to the whole batch's result, an empty part included."""
    physics = experiment.physics(experiment.initial)
    vp = torch.tensor(experiment.initial.vp)
    whole = evaluate(vp, make_batch(experiment, SHOTS), physics, Context.alone())
    parts = []
    for mine in (SHOTS[:3], SHOTS[3:], SHOTS[:0]):
        context = Recorded(0, 1, 0, "host", torch.device("cpu"), 1)
        parts.append(evaluate(vp, make_batch(experiment, mine), physics, context))
        assert len(context.summed) == 2, "a rank without shots takes part in both sums"
    assert sum(part.misfit for part in parts) == pytest.approx(whole.misfit, rel=1e-12)
    scale = float(whole.gradient.abs().max())
    total = sum(part.gradient for part in parts)
    torch.testing.assert_close(total, whole.gradient, rtol=1e-6, atol=1e-6 * scale)
    assert parts[2].misfit == 0.0
    assert not parts[2].gradient.any()


def test_a_shot_whose_data_are_not_numbers_is_named(experiment):
    observed = np.zeros((4, N_RECEIVERS, N_SAMPLES), np.float32)
    observed[2, 5, 80] = np.nan
    observed[3, 0, 10] = np.inf
    vp = torch.tensor(experiment.initial.vp)
    batch = make_batch(experiment, SHOTS, observed)
    with pytest.raises(InversionFailure, match=r"shots \[4, 9\] is not finite"):
        evaluate(vp, batch, experiment.physics(experiment.initial), Context.alone(threads=2))


def test_at_the_true_model_there_is_neither_misfit_nor_gradient(experiment):
    physics = experiment.physics(experiment.true)
    vp = torch.tensor(experiment.true.vp)
    observed = physics.simulate(vp, experiment.survey.select(SHOTS), keep=False).data.numpy()
    found = evaluate(vp, make_batch(experiment, SHOTS, observed), physics, Context.alone())
    assert found.misfit == 0.0
    assert not found.gradient.any()
