"""Tests of first-order equations in the `cpu` engine, against the reference engine."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

from hpcfwi.bench import measure_growth_of_memory
from hpcfwi.survey import Components, SourceKinds
from hpcfwi.wave import Acquisition, Method, Simulation
from hpcfwi.wave.engines.cpu import engine as cpu
from hpcfwi.wave.engines.cpu import staggered, teams
from hpcfwi.wave.engines.cpu.estimates import count_kept
from hpcfwi.wave.engines.cpu.windows import whole_of
from hpcfwi.wave.history import History, Recompute, Snapshots, describe
from hpcfwi.wave.problem import Gradients
from hpcfwi.wave.simulation import set_up
from tests.wave.engines.cpu.test_engine import threads as on_threads
from tests.wave.examples import relative
from tests.wave.media import (
    FIRST_ORDER,
    everything,
    random_medium,
    random_survey,
    shorten,
    traces_and_gradients,
)

EXACT = Snapshots(interval=1)
equations = pytest.mark.parametrize("equation", FIRST_ORDER)
SHAPES = ((26, 40), (10, 12, 9))
shapes = pytest.mark.parametrize("shape", SHAPES)
# Every equation with every order, and every order with every shape and kind of surface
CASES = [
    (equation, (2, 4, 6, 8)[(first + 2 * free_surface + number) % 4], free_surface, shape)
    for first, equation in enumerate(FIRST_ORDER)
    for free_surface in (False, True)
    for number, shape in enumerate(SHAPES)
]


@pytest.mark.parametrize(("equation", "order", "free_surface", "shape"), CASES)
def test_traces_and_gradients_are_those_of_autograd(
    equation: str, order: int, free_surface: bool, shape: tuple[int, ...]
) -> None:
    model = random_medium(equation, shape, water=3)
    source_kind = "force-z" if free_surface else "explosive"
    options = {"order": order, "free_surface": free_surface, "source_kind": source_kind}
    survey = random_survey(shape, **options, **everything(shape), **shorten(equation, shape))
    expected = traces_and_gradients(equation, model, survey, engine="eager")
    found = traces_and_gradients(equation, model, survey, engine="cpu")
    for each, other in zip(found, expected, strict=True):
        assert relative(each, other) < 1e-12


@equations
@shapes
def test_forward_derivatives_are_those_of_autograd(equation: str, shape: tuple[int, ...]) -> None:
    model = random_medium(equation, shape, water=3)
    survey = random_survey(
        shape, free_surface=True, **everything(shape), **shorten(equation, shape)
    )
    found = []
    for engine in ("eager", "cpu"):
        generator = torch.Generator().manual_seed(4)
        with forward_ad.dual_level():
            dual = {}
            for name, array in model.items():
                change = torch.randn(array.shape, generator=generator, dtype=array.dtype)
                dual[name] = forward_ad.make_dual(array, array.mean() * change)
            change = torch.randn(survey.wavelet.shape, generator=generator, dtype=torch.float64)
            wavelet = forward_ad.make_dual(survey.wavelet, change)
            traces = survey.propagate(equation, dual, wavelet=wavelet, engine=engine)
            found.append(forward_ad.unpack_dual(traces).tangent)
    assert relative(found[1], found[0]) < 1e-12


def test_moment_tensors_are_those_of_the_reference_engine() -> None:
    model = random_medium("elastic", (24, 26))
    survey = random_survey((24, 26), source_kind=[[1.0, 0.5], [0.5, -2.0]], free_surface=True)
    expected = traces_and_gradients("elastic", model, survey, engine="eager")
    found = traces_and_gradients("elastic", model, survey, engine="cpu")
    assert all(relative(*pair) < 1e-12 for pair in zip(found, expected, strict=True))


MIXED = Components(
    ("pressure", "vz", "strain"),
    np.array([[0, 1, 2, 1], [2, 2, 1, 1]], dtype=np.int8),
    gauge=6.0,
    directions=np.array([[0.6, 0.8], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]),
)
KINDS = {
    "explosive": np.array([[1.0, 0.0], [0.0, 0.0]]),
    "force-z": np.array([[0.0, 1.0], [0.5, 1.0]]),
    "moment-zx": np.array([[0.0, 0.0], [2.0, 0.0]]),
    "moment-zz": np.array([[0.0, 0.0], [1.0, 0.0]]),
}


@pytest.mark.parametrize("engine", ["cpu", "eager"])
def test_traces_of_mixed_kinds_are_those_of_each_kind_alone(engine: str) -> None:
    generator = torch.Generator().manual_seed(6)
    model = random_medium("elastic", (30, 33))
    wavelet = torch.randn((2, 2, 24), generator=generator, dtype=torch.float64)
    sources, receivers = (
        60.0 + 150.0 * torch.rand((2, n, 2), generator=generator, dtype=torch.float64)
        for n in (2, 4)
    )
    method = Method(order=4, equation="elastic", free_surface=True, engine=engine, history=EXACT)

    def simulate(components: Components, kinds: SourceKinds) -> Simulation:
        shots = Acquisition(1e-3, wavelet, sources, receivers, components, kinds)
        return Simulation(set_up(model, 9.0, shots, method), keep=True)

    mixed = simulate(MIXED, KINDS)
    residual = torch.randn(mixed.data.shape, generator=generator, dtype=torch.float64)
    gradients = mixed.backpropagate(residual)
    change = {n: torch.randn(a.shape, generator=generator) for n, a in model.items()}
    data, scattered = torch.zeros(2, *mixed.data.shape, dtype=torch.float64).unbind()
    of_wavelet = torch.zeros_like(wavelet)
    of_model = {name: torch.zeros_like(array).expand(2, -1, -1) for name, array in model.items()}
    for number, name in enumerate(MIXED.names):
        mask = torch.from_numpy(MIXED.kinds == number)[..., None]
        for kind, factors in KINDS.items():
            alone = replace(MIXED, names=(name,), kinds=None)
            found = simulate(alone, {kind: factors})
            data += mask * found.data
            scattered += mask * found.scatter(change)
            some = found.backpropagate(mask * residual)
            of_wavelet += some.wavelet
            of_model = {name: of_model[name] + some.model[name] for name in model}
    assert relative(mixed.data, data) < 1e-12
    assert relative(mixed.scatter(change), scattered) < 1e-12
    assert relative(gradients.wavelet, of_wavelet) < 1e-12
    assert all(relative(gradients.model[name], of_model[name]) < 1e-12 for name in model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("shape", "threads"), [((150, 30), 2), ((150, 30), 3), ((13, 40, 12), 2)])
def test_threads_that_share_a_shot_compute_the_same_bits(
    shape: tuple[int, ...], threads: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {n: a.to(dtype) for n, a in random_medium("elastic", shape, water=3).items()}
    survey = random_survey(shape, shots=1, free_surface=True, **everything(shape))
    survey = replace(survey, wavelet=survey.wavelet.to(dtype))
    sizes = []
    run_team = cpu.run_team

    def note_size(size: int, *rest: Any, **options: Any) -> None:
        sizes.append(size)
        run_team(size, *rest, **options)

    monkeypatch.setattr(cpu, "run_team", note_size)
    found = []
    for count in (1, threads):
        with on_threads(count):
            found.append(traces_and_gradients("elastic", model, survey, engine="cpu"))
    assert set(sizes) == {1, threads}
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@pytest.mark.parametrize("history", [Snapshots(3), Recompute(3, states=2)])
@pytest.mark.parametrize("shape", [(50, 30), (13, 20, 12)])
def test_sweeps_in_pieces_have_the_same_bits(
    shape: tuple[int, ...], history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_medium("elastic", shape, water=3)
    survey = random_survey(shape, shots=2, free_surface=True)

    def results() -> list[torch.Tensor]:
        return traces_and_gradients("elastic", model, survey, engine="cpu", history=history)

    expected = results()
    monkeypatch.setattr(teams, "UPDATES_PER_PIECE", 1)
    assert all(map(torch.equal, results(), expected))


@pytest.mark.parametrize("equation", ["viscoacoustic", "viscoelastic"])
def test_threads_compute_the_same_gradient_of_a_source_just_below_a_free_surface(
    equation: str,
) -> None:
    """Such a source adds to memory variables, which each stage changes."""
    shape = (16, 17, 18)
    model = random_medium(equation, shape)
    survey = random_survey(shape, shots=1, free_surface=True)
    survey.sources[:, 0] = 4.0
    expected = traces_and_gradients(equation, model, survey, engine="cpu")
    for _ in range(3):
        with on_threads(2):
            found = traces_and_gradients(equation, model, survey, engine="cpu")
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(
    ("shape", "samples", "options"),
    [
        ((300, 480), 402, {"order": 4}),
        # A receiver whose trace needs more rows than a few steps leave unchanged
        ((300, 480), 201, {"order": 8, "directions": [1.0, 0.0], "gauge": 400.0}),
        ((40, 44, 40), 51, {"order": 8}),
    ],
)
def test_several_steps_of_a_large_grid_at_a_time_compute_the_same_bits(
    shape: tuple[int, ...], samples: int, options: dict[str, Any]
) -> None:
    model = random_medium("elastic", shape, water=3)
    keys = {"free_surface": True, **everything(shape), **options}
    survey = random_survey(shape, shots=1, samples=samples, **keys)
    found = []
    for threads in (1, 2):  # Threads that share a shot compute one step at a time
        with on_threads(threads):
            found.append(traces_and_gradients("elastic", model, survey, engine="cpu"))
    assert all(trace.any() for trace in found[0][0].reshape(-1, samples))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_shots_have_the_same_bits_alone_and_together() -> None:
    model = random_medium("elastic", (30, 33))
    survey = random_survey((30, 33), shots=3)
    together = survey.propagate("elastic", model, engine="cpu")
    for shot in range(3):
        one = slice(shot, shot + 1)
        alone = replace(
            survey,
            wavelet=survey.wavelet[one],
            sources=survey.sources[one],
            receivers=survey.receivers[one],
        )
        assert torch.equal(alone.propagate("elastic", model, engine="cpu"), together[one])


@equations
def test_windows_do_not_change_traces_and_gradients(
    equation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (260, 290)
    model = random_medium(equation, shape, water=3)
    survey = random_survey(shape, shots=1, samples=60, order=4)
    inside = traces_and_gradients(equation, model, survey, engine="cpu")
    made = staggered._CpuShots._keep_samples

    def everywhere(self: Any, shot: Any, *others: Any) -> Any:
        kept = made(self, shot, *others)
        kept.tape.windows[:] = whole_of.py_func(shot.tables.grid)
        return kept

    monkeypatch.setattr(staggered._CpuShots, "_keep_samples", everywhere)
    whole = traces_and_gradients(equation, model, survey, engine="cpu")
    assert torch.equal(inside[0], whole[0])
    assert all(relative(*pair) < 1e-13 for pair in zip(inside, whole, strict=True))


def test_wavelet_may_change_before_it_begins() -> None:
    """The wave of the change goes where that of the wavelet has not been yet."""
    shape = (260, 290)
    model = random_medium("elastic", shape)
    survey = random_survey(shape, shots=1, samples=60, order=4)
    wavelet = survey.wavelet.clone()
    wavelet[..., :40] = 0.0
    found = []
    for engine in ("cpu", "eager"):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(wavelet, survey.wavelet)
            traces = survey.propagate("elastic", model, wavelet=dual, engine=engine)
            found.append(forward_ad.unpack_dual(traces).tangent)
    assert relative(*found) < 1e-12


def elastic_simulation(history: Snapshots, dtype: torch.dtype = torch.float32) -> Simulation:
    """Return a simulation whose wavelet is well sampled by its steps."""
    shape = (60, 70)
    model = {
        "vp": torch.full(shape, 2000.0, dtype=dtype),
        "vs": torch.full(shape, 1000.0, dtype=dtype),
        "rho": torch.full(shape, 2000.0, dtype=dtype),
    }
    model["vp"][30:] = 2200.0
    time = 1e-3 * torch.arange(400, dtype=dtype)
    wavelet = torch.exp(-(((time - 0.08) / 0.03) ** 2)) * torch.sin(60.0 * (time - 0.08))
    shots = Acquisition(
        1e-3, wavelet, torch.tensor([[100.0, 350.0]]), torch.tensor([[20.0, 200.0], [20.0, 500.0]])
    )
    task = set_up(
        model,
        10.0,
        shots,
        Method(order=4, equation="elastic", history=history),
        wanted=["vp", "vs"],
    )
    return Simulation(task, keep=True)


@pytest.mark.parametrize(
    ("history", "error"),
    [
        (Snapshots(interval=8), 0.02),
        (Snapshots(interval=1, format="float16"), 2e-3),
        (Snapshots(interval=8, format="float16"), 0.02),
        (Snapshots(interval=1, format="int8"), 0.05),
    ],
)
def test_sampled_and_shortened_histories_give_nearly_the_same_gradient(
    history: Snapshots, error: float
) -> None:
    exact = elastic_simulation(EXACT)
    expected = exact.backpropagate(exact.data).model
    found = elastic_simulation(history)
    assert torch.equal(found.data, exact.data)
    gradients = found.backpropagate(found.data).model
    assert list(gradients) == ["vp", "vs"]
    for name, gradient in gradients.items():
        assert 0.0 < relative(gradient, expected[name]) < error


@pytest.mark.parametrize(
    "history",
    [
        Recompute(interval=1, states=3),
        Recompute(interval=3, states=1),
        Recompute(interval=7, states=9),
        Recompute(interval=500, states=2),
    ],
    ids=describe,
)
def test_recomputed_samples_give_the_same_bits_as_stored_ones(history: Recompute) -> None:
    stored = elastic_simulation(Snapshots(interval=history.interval))
    repeated = elastic_simulation(history)
    assert torch.equal(stored.data, repeated.data)
    generator = torch.Generator().manual_seed(5)
    change = {name: torch.randn((60, 70), generator=generator) for name in ("vp", "vs")}
    for _ in range(2):
        for one, other in zip(
            flatten(stored.backpropagate(stored.data)),
            flatten(repeated.backpropagate(repeated.data)),
            strict=True,
        ):
            assert torch.equal(one, other)
        assert torch.equal(stored.scatter(change), repeated.scatter(change))


@equations
@pytest.mark.parametrize("shape", [(26, 31), (14, 15, 16)])
@pytest.mark.parametrize("threads", [1, 2])
def test_every_equation_gives_the_same_bits_with_few_states(
    equation: str, shape: tuple[int, ...], threads: int
) -> None:
    model = random_medium(equation, shape)
    survey = random_survey(shape, shots=1, free_surface=True)
    with on_threads(threads):
        stored, repeated = (
            traces_and_gradients(equation, model, survey, engine="cpu", history=history)
            for history in (Snapshots(interval=1), Recompute(interval=1, states=2))
        )
    assert all(map(torch.equal, stored, repeated))


def flatten(gradients: Gradients) -> list[torch.Tensor]:
    """Return all tensors of some gradients."""
    illuminations = gradients.source_illumination, gradients.receiver_illumination
    assert None not in illuminations
    return [*gradients.model.values(), gradients.wavelet, *illuminations]  # type: ignore[list-item]


@pytest.mark.parametrize("interval", [1, 3])
def test_scattering_is_the_transpose_of_the_gradient(interval: int) -> None:
    simulation = elastic_simulation(Snapshots(interval=interval), torch.float64)
    generator = torch.Generator().manual_seed(5)
    residual = torch.randn(simulation.data.shape, generator=generator, dtype=torch.float64)
    change = {
        name: torch.randn((60, 70), generator=generator, dtype=torch.float64)
        for name in ("vp", "vs")
    }
    gradients = simulation.backpropagate(residual).model
    product = sum((change[name] * gradients[name][0]).sum() for name in change)
    scattered = (simulation.scatter(change) * residual).sum()
    assert float(scattered) == pytest.approx(float(product), rel=1e-10)


def test_only_differences_of_wanted_parameters_are_stored() -> None:
    shape = (26, 26)
    model = random_medium("elastic", shape)
    shots = Acquisition(1e-3, torch.ones(4), torch.zeros(1, 2), torch.zeros(1, 2))
    counts = []
    for wanted in (["rho"], ["vp"], ["vs"], ["vp", "vs"], ["vp", "vs", "rho"]):
        task = set_up(model, 10.0, shots, Method(equation="elastic", order=4), wanted=wanted)
        counts.append(count_kept(task.problem))
    assert counts == [5, 2, 3, 3, 5]


@equations
@pytest.mark.parametrize("free_surface", [False, True])
def test_estimate_counts_the_stored_differences(equation: str, free_surface: bool) -> None:
    shots = Acquisition(1e-3, torch.ones(4), torch.full((1, 2), 50.0), torch.full((1, 2), 50.0))
    method = Method(equation=equation, order=4, free_surface=free_surface)
    for wanted in (["vp"], ["rho"], None):
        task = set_up(random_medium(equation, (12, 12)), 10.0, shots, method, wanted=wanted)
        _, state = staggered.forward(task.problem, task.wavelet, keep=True)
        assert state is not None
        assert state.shots._tables.stages["n_samples"].sum() == count_kept(task.problem)


@pytest.mark.parametrize("equation", ["elastic", "viscoelastic", "elastic-tti"])
def test_memory_of_a_simulation_without_a_history_is_not_underestimated(equation: str) -> None:
    points = torch.full((1, 3), 50.0)
    shots = Acquisition(1e-3, torch.ones(4, dtype=torch.float64), points, points)
    method = Method(equation=equation, order=4, boundary=10)
    small, task = (
        set_up(random_medium(equation, shape), 10.0, shots, method)
        for shape in ((12, 12, 12), (40, 44, 48))
    )
    Simulation(small, keep=False)  # loads the compiled loop
    taken = measure_growth_of_memory(lambda: Simulation(task, keep=False))
    assert taken < 1.2 * task.footprint_forward()


def test_footprint_grows_with_samples_shots_and_stored_differences() -> None:
    shape = (80, 90)
    model = random_medium("elastic", shape)

    def footprint(shots: int, wanted: list[str], history: History) -> int:
        points = torch.full((shots, 2), 100.0)
        acquisition = Acquisition(1e-3, torch.ones(200), points, points[:1])
        method = Method(equation="elastic", order=4)
        task = set_up(model, 10.0, acquisition, method, wanted=wanted)
        return task.footprint(history)

    found = [
        footprint(1, ["vp", "vs"], Snapshots(interval=8, format="float16")),
        footprint(1, ["vp", "vs"], Snapshots(interval=8)),
        footprint(1, ["vp", "vs"], EXACT),
        footprint(1, ["vp", "vs", "rho"], EXACT),
        footprint(3, ["vp", "vs", "rho"], EXACT),
    ]
    assert all(smaller < larger for smaller, larger in pairwise(found))
    few, several = (
        footprint(1, ["vp", "vs"], Recompute(interval=1, states=states)) for states in (1, 4)
    )
    assert few < several < 0.5 * found[2], "states take less memory than all samples"


def test_ranks_that_divide_a_shot_need_more_memory_together_than_one() -> None:
    point = torch.full((1, 2), 100.0)
    acquisition = Acquisition(1e-3, torch.ones(200), point, point)
    model = random_medium("elastic", (80, 90))
    task = set_up(model, 10.0, acquisition, Method(equation="elastic", order=4))
    problem = replace(task.problem, history=EXACT)
    one, two, four = (staggered.footprint(problem, 200, layers) for layers in (1, 2, 4))
    assert one < two < four < 4 * one


@pytest.mark.parametrize("engine", ["cpu", "eager"])
def test_gradient_of_the_wavelet_alone_needs_no_parameter(engine: str) -> None:
    model = random_medium("elastic", (26, 26))
    point = torch.full((1, 2), 100.0)
    shots = Acquisition(1e-3, torch.ones(20), point, point)
    method = Method(equation="elastic", order=4, engine=engine)
    simulation = Simulation(set_up(model, 10.0, shots, method, wanted=[]), keep=True)
    found = simulation.backpropagate(simulation.data)
    assert found.model == {}
    assert bool(found.wavelet.any())


# In a process of its own, because other tests import other engines.
RELEASE = """
import numpy as np
from hpcfwi.wave import engines
from hpcfwi.wave.engines.cpu import staggered
from hpcfwi.wave.engines.cpu.layout import POOL
array = POOL.take((1000, 1000), np.dtype(np.float32))
array[...] = 1
POOL.put(array)
assert staggered.idle() > 0
assert engines.release_buffers()
assert staggered.idle() == 0
"""


def test_buffers_of_first_order_equations_are_released() -> None:
    subprocess.run([sys.executable, "-c", RELEASE], check=True)


@equations
def test_engines_without_the_equation_are_refused(equation: str) -> None:
    survey = random_survey((20, 20))
    with pytest.raises(ValueError, match=f"engine is 'deepwave'; .* for the equation {equation}"):
        survey.propagate(equation, random_medium(equation, (20, 20)), engine="deepwave")
