"""Encoded shots: their wavelets and their observed data."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.errors import InputError
from hpcfwi.inversion import stages
from hpcfwi.inversion.misfits import least_squares
from hpcfwi.inversion.objective import AlikeShots, evaluate_shots
from hpcfwi.inversion.stages import Draws, EncodedData, Lattice, Stage, draw_signs
from hpcfwi.operators.simulator import Chunks, Window
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.shards import StaticSchedule
from hpcfwi.survey import Survey
from hpcfwi.wave import Acquisition, Method, Simulation, Snapshots
from hpcfwi.wave.simulation import set_up
from tests.inversion.examples import prepared, simulate_as

N_SHOTS, SHAPE = 6, (6, 3, 40)
DRAWS = Draws(1, 0, N_SHOTS, (2, 3))


class FakePrefetcher:
    """A prefetcher of traces in memory, which counts the shots that it reads."""

    def __init__(self, traces):
        self.traces, self.read = traces, 0

    def request(self, shots):
        self.read += shots.size
        return lambda: self.traces[shots]


def traces_of(seed=0):
    generator = np.random.default_rng(seed)
    scales = 10.0 ** generator.uniform(-6, 0, SHAPE[:2])[..., None]
    return (scales * generator.standard_normal(SHAPE)).astype(np.float32)


def combine_on(size, traces, signs, holds):
    """Return the sum over ranks, which run one after the other."""
    parts = []
    for rank in range(size):
        context = Context(rank, size, rank, "host", Context.alone().device, 1)
        gathered = [(float(np.abs(traces).max()), [])]
        context = SimpleNamespace(
            rank=rank,
            size=size,
            device=context.device,
            heartbeat=context.heartbeat,
            all_gather=lambda _, gathered=gathered: gathered,
            sum=lambda part: parts.append(part) or sum(parts),
        )
        whole = EncodedData(SHAPE, FakePrefetcher(traces), context, holds).combine(signs)
    return whole


def test_rank_encodes_only_wavelets_of_its_shots(tmp_path, monkeypatch):
    keys = {"inversion.encoding": "signs", "inversion.batch": 6, "inversion.epochs": 1}
    experiment = prepared(tmp_path, keys)
    stage, made = Stage(0, "", 0, experiment), []

    encoded = Survey.encoded

    def count(survey, signs):
        made.append(len(signs))
        return encoded(survey, signs)

    monkeypatch.setattr(Survey, "encoded", count)
    traces = np.zeros((6, *experiment.survey.shape[1:]), np.float32)
    data = SimpleNamespace(combine=lambda signs: traces[: len(signs)])
    second = Context(1, 3, 1, "host", Context.alone().device, 1)
    schedule, chunks = StaticSchedule(second), Chunks(1, second)
    batch = stages.EncodedSampler(stage, data, schedule, chunks).take(1)
    (part,) = batch.deal(batch.shots)
    monkeypatch.undo()
    whole = experiment.survey.encoded(draw_signs(stage.draws, 0)).select(part.shots)
    np.testing.assert_array_equal(part.survey.wavelet, whole.wavelet)
    np.testing.assert_array_equal(part.survey.sources, whole.sources)
    assert made[0] == part.shots.size == 2
    assert sum(made) == 2


def test_signs_differ_between_draws_and_are_reproducible():
    first, second = (draw_signs(DRAWS, number) for number in (0, 1))
    assert first.shape == (2, N_SHOTS)
    assert set(np.unique(second)) == {-1, 1}
    assert not np.array_equal(first, second[:2])
    np.testing.assert_array_equal(first, draw_signs(DRAWS, 0))


def test_encoded_shot_emits_all_wavelets_with_its_signs():
    wavelet = np.arange(5.0, dtype=np.float32)
    survey = Survey(np.ones((N_SHOTS, 2)), np.zeros((3, 2)), wavelet, 0.002)
    signs = draw_signs(DRAWS, 0)
    encoded = survey.encoded(signs)
    assert encoded.shape == (2, 3, 5)
    assert encoded.sources.shape == (2, N_SHOTS, 2)
    np.testing.assert_array_equal(encoded.wavelet, signs[..., None] * wavelet)


def test_data_of_encoded_shot_match_its_simulation():
    places = np.array([[20.0, 40.0], [20.0, 90.0], [30.0, 130.0]])
    wavelet = np.random.default_rng(0).standard_normal((3, 60)).astype(np.float32)
    survey = Survey(places, np.array([[30.0, 60.0], [40.0, 100.0]]), wavelet, 0.002)

    def simulate(survey):
        acquisition = Acquisition(
            survey.dt, torch.from_numpy(survey.wavelet), survey.sources, survey.receivers
        )
        model = {"vp": torch.full((15, 18), 2000.0)}
        method = Method(order=4, boundary=5, engine="eager", boundary_frequency=20.0)
        return Simulation(set_up(model, (10.0, 10.0), acquisition, method), False).data.numpy()

    signs = draw_signs(Draws(3, 0, 3, (2,)), 0)
    each = simulate(survey)
    data = EncodedData(each.shape, FakePrefetcher(each), Context.alone(), holds=True)
    together = simulate(survey.encoded(signs))
    assert np.abs(together).max() > 0.0
    np.testing.assert_allclose(data.combine(signs), together, atol=3e-6 * np.abs(together).max())


CONDITIONED = {
    "data.gain": 1.5,
    "data.mute": {"after": 0.5, "taper": 0.05},
}


def test_conditioning_of_encoded_shots_equals_conditioning_before_sum(tmp_path):
    changes = {"survey.sources.count": 2, "inversion.encoding": "signs", "inversion.batch": 1}
    experiment = prepared(tmp_path, {**changes, **CONDITIONED, "wave.engine": "eager"})
    wavelets = np.float32([[1.0], [-2.0]]) * experiment.survey.wavelet
    survey, conditioning = replace(experiment.survey, wavelet=wavelets), experiment.conditioning()
    observed = np.random.default_rng(0).normal(size=survey.shape).astype(np.float32)
    signs = np.array([[1, -1]], np.int8)
    simulator = experiment.simulator(experiment.initial).with_history(Snapshots(1))

    vp = torch.tensor(experiment.initial["vp"], requires_grad=True)
    shots = (torch.tensor(survey.wavelet), survey.sources, survey.receivers)
    first, second = simulate_as(simulator, vp, survey.dt, *shots)
    one, other = torch.from_numpy(observed)
    times = survey.dt * torch.arange(survey.n_samples)
    fade = 0.5 - 0.5 * torch.cos(np.pi * ((0.5 - times) / 0.05).clamp(0.0, 1.0))
    residual = times**1.5 * fade * ((first - second) - (one - other))
    misfit = 0.5 * survey.dt * residual.square().sum()
    misfit.backward()

    data = EncodedData(survey.shape, FakePrefetcher(observed), Context.alone(), True)
    shots = AlikeShots(
        np.arange(1),
        survey.encoded(signs).select(np.array([0])),
        Window(tuple((0, n) for n in vp.shape)),
        lambda: data.combine(signs),
        simulator,
        conditioning,
    )
    model = experiment.initial.as_tensors(vp.device)
    (found,) = evaluate_shots(shots, model, least_squares, illuminate=False)
    assert found.misfit == pytest.approx(misfit.item(), rel=1e-5)
    scale = float(vp.grad.abs().max())
    torch.testing.assert_close(found.fields["vp"], vp.grad, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"data.offsets": [0.0, 400.0]}, "data.offsets leaves out different receivers"),
        (
            {"data.mute": [{"after": 0.5}, {"velocity": 1500.0}]},
            "data.mute .* depends on the offset",
        ),
        ({"data.weight": {"offset": 0.5}}, "data.weight depends on offset or amplitude"),
        ({"data.edit": {}}, "data.edit leaves out different traces"),
    ],
)
def test_conditioning_that_depends_on_the_shot_is_refused(tmp_path, changes, problem):
    with pytest.raises(InputError, match=f"inversion.encoding: .*{problem}.* without an encoding"):
        prepared(tmp_path, {"inversion.encoding": "signs", **changes})


@pytest.mark.parametrize("holds", [True, False])
def test_bits_of_encoded_data_do_not_depend_on_number_of_ranks(holds):
    traces, signs = traces_of(), draw_signs(DRAWS, 1)
    shelf = FakePrefetcher(traces)
    alone = EncodedData(SHAPE, shelf, Context.alone(), holds)
    found = alone.combine(signs)
    assert shelf.read == N_SHOTS * (1 if holds else 2), "held, or read again"
    exact = np.einsum("es,srt->ert", signs.astype(np.float64), traces)
    np.testing.assert_allclose(found, exact, rtol=2e-7, atol=1e-12 * np.abs(traces).max())
    for size in (2, 3, 8):
        np.testing.assert_array_equal(combine_on(size, traces, signs, holds), found)


@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=50), st.randoms())
def test_sum_of_values_rounded_to_lattice_does_not_depend_on_order(values, random):
    terms = np.array(values, np.float32)
    rounded = Lattice.of(float(np.abs(terms).max()), terms.size).round(terms)
    shuffled = rounded.tolist()
    random.shuffle(shuffled)
    assert sum(shuffled) == sum(rounded.tolist())
    np.testing.assert_allclose(rounded, terms, rtol=0, atol=1e-12 * np.abs(terms).max())


def test_nonfinite_data_are_refused_before_simulation():
    traces = traces_of()
    traces[4, 1, 7] = np.nan
    with pytest.raises(InputError, match=r"observed data of shots \[4\] have values that are not"):
        EncodedData(SHAPE, FakePrefetcher(traces), Context.alone(), holds=True)
