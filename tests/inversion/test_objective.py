"""The misfit of a batch and its gradient, against autograd and for any split over ranks."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import ndimage

from hpcfwi.errors import InversionFailure
from hpcfwi.inversion.misfits import least_squares
from hpcfwi.inversion.objective import Objective
from hpcfwi.inversion.stages import Batch, Part
from hpcfwi.model import Grid, Model
from hpcfwi.operators.simulator import Aperture, Chunks, Simulator
from hpcfwi.parallel.context import Context
from hpcfwi.survey import Survey
from hpcfwi.wave import Method, Snapshots
from hpcfwi.wave.engines.cpu import engine as cpu
from hpcfwi.wave.numerics import ricker
from tests.inversion.examples import N_RECEIVERS, N_SAMPLES, prepared, simulate_as
from tests.parallel.together import on_ranks
from tests.wave.examples import relative

SHOTS = np.array([7, 0, 4, 9])


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("evaluation"))


def batch_of(shots, survey, observed, chunks=1, epoch=1):
    """Return a batch in memory that is dealt in chunks; survey and traces are of its shots only."""

    def part(chosen):
        places = np.array([shots.tolist().index(shot) for shot in chosen], dtype=int)
        return Part(chosen, survey.select(places), lambda: observed[places])

    return Batch(epoch, shots, (), part, lambda left: map(part, np.array_split(left, chunks)))


def make_batch(experiment, shots=SHOTS, observed=None, chunks=1):
    if observed is None:
        observed = np.zeros((len(shots), N_RECEIVERS, N_SAMPLES), np.float32)
    return batch_of(shots, experiment.survey.select(shots), observed, chunks)


def simulate(simulator, vp, survey):
    return simulator.simulate(Model(simulator.grid, {"vp": vp}), survey, keep=False)


def evaluate_alone(vp, batch, simulator, threads=1, **options):
    context = Context.alone(threads=threads)
    objective = Objective(simulator, least_squares, context, Chunks(threads, context))
    return plain(objective.evaluate(Model(simulator.grid, {"vp": vp}), batch, **options))


def test_ranks_agree_on_the_scale_of_sums_if_the_first_shot_fails_on_one(experiment):
    """Every rank simulates this shot; here it is not finite on rank 1, as on a damaged device."""
    vp = torch.as_tensor(experiment.initial["vp"])

    def evaluate(context):
        calls = iter(range(100))

        def misfit(simulated, observed, dt):
            values, adjoint_source = least_squares(simulated, observed, dt)
            if context.rank == 1 and next(calls) == 0:
                values = values * np.nan
            return values, adjoint_source

        batch = make_batch(experiment)
        mine = replace(batch, deal=lambda left: [batch.part(left[context.rank :: 2])])
        simulator = experiment.make_simulator()
        objective = Objective(simulator, misfit, context, Chunks(1, context))
        return plain(objective.evaluate(Model(simulator.grid, {"vp": vp}), mine))

    one, other = on_ranks(2, evaluate)
    assert one.failed == other.failed == ()
    assert one.magnitudes == other.magnitudes
    assert torch.equal(one.gradient, other.gradient)


def plain(evaluation):
    """Return the results of an evaluation, with its arrays as separate attributes."""
    arrays = {"gradient": evaluation.gradient["vp"], **evaluation.illuminations}
    names = ("misfit", "failed", "magnitudes", "times")
    return SimpleNamespace(**arrays, **{name: getattr(evaluation, name) for name in names})


@pytest.mark.parametrize("threads", [1, 3])
def test_misfit_and_gradient_match_autograd_mean_over_shots(experiment, threads):
    # History of every step, since noise has frequencies above the wavelet's band
    simulator = experiment.simulator(experiment.initial).with_history(Snapshots(1))
    vp = torch.tensor(experiment.initial["vp"], requires_grad=True)
    survey = experiment.survey.select(SHOTS)
    observed = 0.01 * np.random.default_rng(0).normal(size=(4, N_RECEIVERS, N_SAMPLES))
    wavelet = torch.from_numpy(survey.wavelet.copy())
    data = simulate_as(simulator, vp, survey.dt, wavelet, survey.sources, survey.receivers)
    residual = data - torch.from_numpy(observed.astype(np.float32))
    misfit = 0.5 * survey.dt * residual.square().sum() / 4
    misfit.backward()

    batch = make_batch(experiment, SHOTS, observed.astype(np.float32))
    found = evaluate_alone(vp.detach(), batch, simulator, threads)

    assert found.misfit == pytest.approx(misfit.item(), rel=1e-5)
    scale = float(vp.grad.abs().max())
    torch.testing.assert_close(found.gradient, vp.grad, rtol=1e-4, atol=1e-5 * scale)
    for illumination in (found.source_illumination, found.receiver_illumination):
        assert illumination.shape == vp.shape
        assert float(illumination.min()) >= 0.0
        assert float(illumination.max()) > 0.0


@pytest.mark.parametrize("encoded", [False, True])
def test_gradient_with_respect_to_wavelet_matches_autograd(experiment, encoded):
    simulator = experiment.simulator(experiment.initial).with_history(Snapshots(1))
    model = Model(simulator.grid, {"vp": torch.tensor(experiment.initial["vp"])})
    whole, signs = experiment.survey, None
    if encoded:
        signs = np.random.default_rng(2).choice(np.array([-1, 1], np.int8), (3, whole.n_shots))
    survey = whole.select(SHOTS) if signs is None else whole.encoded(signs)
    n, wavelet = survey.n_shots, torch.tensor(whole.wavelet, requires_grad=True)
    observed = np.random.default_rng(0).normal(size=(n, N_RECEIVERS, N_SAMPLES))
    observed = (0.01 * observed).astype(np.float32)
    factors = torch.ones(n, 1) if signs is None else torch.from_numpy(signs).float()
    emitted = factors[:, :, None] * wavelet
    places = survey.sources if encoded else survey.sources[:, None]
    data = simulate_as(simulator, model["vp"], survey.dt, emitted, places, survey.receivers)
    (0.5 * survey.dt * (data - torch.from_numpy(observed)).square().sum() / n).backward()

    shots, context = np.arange(n), Context.alone()

    def part(chosen):
        chosen_signs = None if signs is None else signs[chosen]
        return Part(chosen, survey.select(chosen), lambda: observed[chosen], chosen_signs)

    batch = Batch(1, shots, (), part, lambda left: map(part, np.array_split(left, 2)))
    objective = Objective(
        simulator, least_squares, context, Chunks(1, context), wavelet_samples=N_SAMPLES
    )
    found = objective.evaluate(model, batch.with_wavelet(wavelet.detach().numpy())).wavelet_gradient
    largest = float(wavelet.grad.abs().max())
    np.testing.assert_allclose(found, wavelet.grad, rtol=1e-4, atol=1e-5 * largest)
    without = replace(objective, wavelet_samples=0).evaluate(model, batch)
    assert without.wavelet_gradient is None


def same(one, other):
    return one.misfit == other.misfit and all(
        torch.equal(getattr(one, name), getattr(other, name))
        for name in ("gradient", "source_illumination", "receiver_illumination")
    )


def test_bits_do_not_depend_on_order_and_chunks_of_shots(experiment):
    simulator, vp = experiment.simulator(experiment.initial), torch.tensor(experiment.initial["vp"])
    observed = 0.01 * np.random.default_rng(0).normal(size=(4, N_RECEIVERS, N_SAMPLES))
    observed = observed.astype(np.float32)
    # The first shot stays first, since it sets the resolution of the sums.
    order = np.array([0, 3, 1, 2])
    expected = evaluate_alone(vp, make_batch(experiment, SHOTS, observed), simulator)
    for chunks, threads in ((1, 2), (2, 1), (3, 3)):
        batch = make_batch(experiment, SHOTS[order], observed[order], chunks)
        assert same(evaluate_alone(vp, batch, simulator, threads), expected)


def test_results_left_by_a_lost_rank_are_not_reused_in_another_epoch(experiment):
    # Encoded shots have the same numbers in every epoch, but other data
    simulator = experiment.simulator(experiment.initial)
    model = Model(simulator.grid, {"vp": torch.tensor(experiment.initial["vp"])})
    comm = SimpleNamespace(Iprobe=lambda: False)
    context = replace(Context.alone(), fault_tolerant=True, comm=comm)
    survivor = Objective(simulator, least_squares, context, Chunks(1, context))
    survey = experiment.survey.select(SHOTS)
    noise = np.random.default_rng(0).normal(size=(2, 4, N_RECEIVERS, N_SAMPLES))
    first, second = (
        batch_of(SHOTS, survey, observed, epoch=epoch)
        for epoch, observed in enumerate(0.01 * noise.astype(np.float32), start=1)
    )
    magnitudes = evaluate_alone(model["vp"], first, simulator).magnitudes
    for batch in (first, second):
        found = plain(survivor.evaluate(model, batch, magnitudes))
        assert same(found, evaluate_alone(model["vp"], batch, simulator, magnitudes=magnitudes))


def test_sum_with_wrong_magnitudes_is_repeated_with_new_ones(experiment):
    simulator, vp = experiment.simulator(experiment.initial), torch.tensor(experiment.initial["vp"])
    batch = make_batch(experiment)
    first = evaluate_alone(vp, batch, simulator)
    expected = evaluate_alone(vp, batch, simulator, magnitudes=first.magnitudes)
    for factor in (1e-12, 1e12):
        magnitudes = {name: factor * most for name, most in first.magnitudes.items()}
        found = evaluate_alone(vp, batch, simulator, magnitudes=magnitudes)
        assert found.magnitudes == first.magnitudes
        assert same(found, expected)


def test_gradient_has_same_bits_without_illuminations(experiment):
    simulator, vp = experiment.simulator(experiment.initial), torch.tensor(experiment.initial["vp"])
    whole = evaluate_alone(vp, make_batch(experiment), simulator)
    batch, magnitudes = make_batch(experiment), whole.magnitudes
    expected = evaluate_alone(vp, batch, simulator, magnitudes=magnitudes)
    found = evaluate_alone(vp, batch, simulator, magnitudes=magnitudes, illuminate=False)
    assert found.magnitudes == magnitudes
    assert torch.equal(found.gradient, expected.gradient)
    assert not found.source_illumination.any()
    assert not found.receiver_illumination.any()


@pytest.mark.parametrize("first", [0, 2])
def test_shot_with_nonfinite_data_is_left_out(experiment, first):
    """This holds for the first shot, too, which would set the resolution of the sums."""
    simulator, vp = experiment.simulator(experiment.initial), torch.tensor(experiment.initial["vp"])
    observed = np.zeros((4, N_RECEIVERS, N_SAMPLES), np.float32)
    observed[first, 5, 80] = np.nan
    observed[3, 0, 10] = np.inf
    good = np.setdiff1d(np.arange(4), [first, 3])
    found = evaluate_alone(vp, make_batch(experiment, SHOTS, observed), simulator, threads=2)
    assert found.failed == tuple(sorted(SHOTS[[first, 3]].tolist()))
    expected = evaluate_alone(vp, make_batch(experiment, SHOTS[good]), simulator)
    assert found.misfit == expected.misfit
    assert relative(found.gradient, expected.gradient) < 1e-7


def test_nonfinite_data_of_all_shots_are_an_error(experiment):
    observed = np.full((4, N_RECEIVERS, N_SAMPLES), np.nan, np.float32)
    vp, simulator = torch.tensor(experiment.initial["vp"]), experiment.simulator(experiment.initial)
    with pytest.raises(InversionFailure, match=r"none of the shots \[0, 4, 7, 9\] gives"):
        evaluate_alone(vp, make_batch(experiment, SHOTS, observed), simulator)


def test_misfit_and_gradient_are_zero_at_the_true_model(experiment):
    simulator = experiment.simulator(experiment.true)
    vp = torch.tensor(experiment.true["vp"])
    observed = simulate(simulator, vp, experiment.survey.select(SHOTS)).data.numpy()
    found = evaluate_alone(vp, make_batch(experiment, SHOTS, observed), simulator)
    assert found.misfit == 0.0
    assert not found.gradient.any()


# A line of 500 cells that is much longer than the spread around each source.
LINE = Grid((25, 500), (20.0, 20.0), (0.0, 1000.0))
SPREAD = 300.0  # m, on both sides


def line_simulator(aperture=None, ndim=2, **options):
    """Return a simulator on the line, or on a short part of it in 3-D."""
    grid = LINE if ndim == 2 else Grid((8, 36, 8), (20.0,) * 3, (0.0, 1000.0, 0.0))
    options = {
        "order": 4,
        "boundary": 12,
        "boundary_frequency": 8.0,
        "max_velocity": 2400.0,
        "history": Snapshots(3),
        **options,
    }
    return Simulator(grid, Method(**options), aperture or Aperture())


def line_model(shape, seed=0):
    rough = np.random.default_rng(seed).normal(size=shape)
    smooth = ndimage.gaussian_filter(rough, 3.0)
    return torch.tensor(2000.0 + 150.0 * smooth / smooth.std(), dtype=torch.float32).clamp(max=2400)


def line_batch(simulator, vp, samples=220, places=(1500.0, 5000.0, 9700.0), dt=0.004):
    """Return shots with receivers around each source, and data of a model other than `vp`."""
    ndim, shots = simulator.grid.ndim, np.arange(len(places))
    offsets = np.linspace(-SPREAD, SPREAD, 16)
    sources = np.zeros((len(places), ndim))
    receivers = np.zeros((len(places), 16, ndim))
    sources[:, 0], receivers[..., 0] = 20.0, 40.0
    if ndim == 3:
        sources[:, 2] = receivers[..., 2] = 80.0
    sources[:, 1] = places
    receivers[..., 1] = np.clip(sources[:, 1:2] + offsets, 1000.0, simulator.grid.last[1])
    wavelet = ricker(8.0, samples, dt, 0.15).astype(np.float32)
    survey = Survey(sources, receivers, wavelet, dt).select(shots)
    observed = simulate(simulator, 0.97 * vp, survey).data.numpy()
    return batch_of(shots, survey, observed)


def counting_cells(monkeypatch):
    """Return a list that gets the number of cells of each call of the engine, for all shots."""
    cells, forward = [], cpu.forward

    def count(problem, *rest):
        cells.append(problem.n_shots * int(np.prod(problem.padded_shape)))
        return forward(problem, *rest)

    monkeypatch.setattr(cpu, "forward", count)
    return cells


@pytest.mark.parametrize("aperture", [Aperture(), Aperture(600.0)], ids=["whole", "window"])
@pytest.mark.parametrize("unheard", [np.nan, 1e30, 0.0])
def test_masked_trace_does_not_change_misfit_and_gradient(aperture, unheard):
    vp, shots = line_model(LINE.shape), np.arange(3)
    batch = line_batch(line_simulator(), vp)
    part = batch.part(shots)
    survey, observed, simulator = part.survey, part.traces().copy(), line_simulator(aperture)
    alone = evaluate_alone(vp, batch_of(shots, survey, observed), simulator)

    padded = [np.repeat(a[:, -1:], 2, axis=1) for a in (survey.receivers, observed)]
    padded[1][...] = unheard
    more = replace(
        survey,
        receivers=np.concatenate([survey.receivers, padded[0]], axis=1),
        mask=np.arange(18)[None, :] < np.array([[16], [16], [16]]),
    )
    found = evaluate_alone(
        vp, batch_of(shots, more, np.concatenate([observed, padded[1]], axis=1)), simulator
    )
    assert found.failed == ()
    # The order of the sum over traces depends on their number.
    assert found.misfit == pytest.approx(alone.misfit, rel=1e-14)
    assert relative(found.gradient, alone.gradient) < 1e-6


def test_windows_give_gradient_of_whole_model_with_fewer_cells(monkeypatch):
    vp = line_model(LINE.shape)
    batch = line_batch(line_simulator(), vp)
    cells = counting_cells(monkeypatch)
    whole = evaluate_alone(vp, batch, line_simulator())
    windows = evaluate_alone(vp, batch, line_simulator(Aperture(600.0)))
    assert sum(cells[4:]) < 0.3 * sum(cells[:4]), "the first shot, then three shots"
    assert windows.misfit == pytest.approx(whole.misfit, rel=1e-4)
    assert 0.0 < relative(windows.gradient, whole.gradient) < 1e-3
    inside = windows.source_illumination > 0
    for name in ("source_illumination", "receiver_illumination"):
        found, expected = getattr(windows, name)[inside], getattr(whole, name)[inside]
        assert relative(found, expected) < 1e-2
    assert float(inside.float().mean()) < 0.6, "illumination is zero outside of windows"


def test_windows_change_nothing_if_no_wave_reaches_their_edges():
    vp = line_model(LINE.shape)
    batch = line_batch(line_simulator(), vp, samples=120)
    whole = evaluate_alone(vp, batch, line_simulator())
    windows = evaluate_alone(vp, batch, line_simulator(Aperture(900.0)))
    assert windows.misfit == whole.misfit
    assert relative(windows.gradient, whole.gradient) < 1e-6


def test_too_narrow_window_changes_the_gradient():
    """This shows that the comparisons above can fail."""
    vp = line_model(LINE.shape)
    batch = line_batch(line_simulator(), vp)
    whole = evaluate_alone(vp, batch, line_simulator())
    assert relative(
        evaluate_alone(vp, batch, line_simulator(Aperture(1.0))).gradient, whole.gradient
    ) > (1e-2)


def test_windows_in_3d_give_gradient_of_whole_model():
    options = {"ndim": 3, "engine": "eager", "order": 2, "boundary": 3}
    whole = line_simulator(Aperture(max_offset=60.0), **options)
    vp = line_model(whole.grid.shape)
    batch = line_batch(whole, vp, samples=50, places=(1240.0,))
    expected = evaluate_alone(vp, batch, whole)
    found = evaluate_alone(vp, batch, line_simulator(Aperture(200.0, max_offset=60.0), **options))
    assert found.misfit == pytest.approx(expected.misfit, rel=1e-4)
    assert relative(found.gradient, expected.gradient) < 1e-3
    assert not found.gradient[:, 26:].any(), "zero beyond 1500 m along y"
    assert expected.gradient[:, 26:].any()


def test_bits_of_shots_with_windows_do_not_depend_on_threads():
    vp = line_model(LINE.shape)
    batch = line_batch(line_simulator(), vp, samples=120)
    alone = evaluate_alone(vp, batch, line_simulator(Aperture(300.0)))
    several = evaluate_alone(vp, batch, line_simulator(Aperture(300.0)), threads=3)
    assert torch.equal(alone.gradient, several.gradient)
    assert torch.equal(alone.receiver_illumination, several.receiver_illumination)


@pytest.mark.parametrize("aperture", [None, 2000.0])
def test_traces_beyond_max_offset_do_not_count(experiment, aperture):
    """Results are as if they had not been recorded, even if they are NaN."""
    vp = torch.tensor(experiment.initial["vp"])
    aperture = Aperture(aperture, max_offset=300.0)
    simulator = replace(experiment.simulator(experiment.initial), aperture=aperture)
    observed = np.zeros((4, N_RECEIVERS, N_SAMPLES), np.float32)
    observed[0, 0] = np.nan
    batch = make_batch(experiment, SHOTS, observed)
    survey = experiment.survey.select(SHOTS)
    assert not aperture.within_offsets(survey.sources[0], survey.receivers[0])[0]
    found = evaluate_alone(vp, batch, simulator, threads=2)
    misfits, total = 0.0, torch.zeros_like(vp)
    for shot in SHOTS:
        survey = experiment.survey.select(np.array([shot]))
        near = np.abs(survey.receivers[0, :, 1] - survey.sources[0, 1]) <= 300.0
        assert 0 < near.sum() < N_RECEIVERS
        fewer = replace(survey, receivers=survey.receivers[:, near])
        one = batch_of(np.array([0]), fewer, np.zeros((1, near.sum(), N_SAMPLES), "f4"))
        alone = evaluate_alone(vp, one, experiment.simulator(experiment.initial))
        misfits, total = misfits + alone.misfit / 4, total + alone.gradient / 4
    assert found.misfit == pytest.approx(misfits, rel=1e-6)
    assert relative(found.gradient, total) < 1e-6


def test_out_of_memory_does_not_change_misfit_and_gradient(experiment, monkeypatch, caplog):
    """The engine has no memory for more than one shot."""
    forward = cpu.forward

    def cramped(problem, *rest):
        if problem.n_shots > 1:
            raise MemoryError("Unable to allocate 5 GiB")
        return forward(problem, *rest)

    simulator = experiment.simulator(experiment.initial)
    vp = torch.tensor(experiment.initial["vp"])
    expected = evaluate_alone(vp, make_batch(experiment, SHOTS), simulator, threads=4)
    monkeypatch.setattr(cpu, "forward", cramped)
    context = Context.alone(threads=4)
    chunks = Chunks(4, context)
    for _ in range(2):
        objective = Objective(simulator, least_squares, context, chunks)
        model = Model(simulator.grid, {"vp": vp})
        found = plain(objective.evaluate(model, make_batch(experiment)))
        assert found.misfit == expected.misfit
        assert torch.equal(found.gradient, expected.gradient)
    assert [record.getMessage().split(" ran ")[1] for record in caplog.records] == [
        "out of memory with 4 shots at a time: continuing with 2",
        "out of memory with 2 shots at a time: continuing with 1",
    ]
