"""Tests of layers: a grid that several ranks share gives the bits of the undivided grid."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.autograd import forward_ad

from hpcfwi.survey import Components, SourceKinds
from hpcfwi.wave import Acquisition, Boundary, Method, Recompute, Snapshots
from hpcfwi.wave.engines import choose
from hpcfwi.wave.history import History, describe
from hpcfwi.wave.layers import ALONE, HALO, THINNEST, Crew, Layer, cut, find_layers
from hpcfwi.wave.problem import Problem
from hpcfwi.wave.simulation import Task, set_up
from tests.wave.engines.cpu.test_engine import threads
from tests.wave.examples import Shots, by_name, random_shots, white_residual
from tests.wave.media import FIRST_ORDER, random_medium

FLAT, SOLID = (57, 33), (24, 13, 21)
SPACINGS = {2: (8.0, 11.0), 3: (8.0, 11.0, 9.0)}


class Board:
    """Memory and values that the threads of `in_layers` share, which stand for ranks of a crew."""

    def __init__(self, size: int) -> None:
        self.memory = np.zeros(2**24, np.uint8)
        self.values: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=120.0)
        self.failed = np.zeros(1, np.int64)


class Thread:
    """A thread as the rank of a crew."""

    def __init__(self, number: int, size: int, board: Board) -> None:
        self.number, self.size, self._board = number, size, board
        self.hosts = (0,) * size
        self.failed, self.courier = board.failed, 0

    def broadcast(self, value: Any) -> Any:
        raise NotImplementedError

    def check(self) -> None:
        raise NotImplementedError

    def fail(self, error: Exception) -> None:  # noqa: ARG002
        self.failed[0] = 1
        self._board.barrier.abort()

    def share(self, size: int) -> NDArray[np.uint8]:
        assert size <= self._board.memory.size
        return self._board.memory

    def gather(self, value: Any) -> list[Any] | None:
        self._board.values[self.number] = value
        self._board.barrier.wait()
        found = list(self._board.values)
        self._board.barrier.wait()
        return found if self.number == 0 else None


def task_of(shots: Shots, **changes: Any) -> Task:
    method, _ = shots.split(engine="cpu", **changes)
    task = set_up({"vp": shots.vp}, shots.spacing, shots.acquisition, method)
    return replace(task, problem=replace(task.problem, history=task.choose_history()))


def results(task: Task, crew: Crew = ALONE) -> dict[str, NDArray]:
    """Return the traces, gradients, illuminations and scattered traces of a task, by name."""
    problem = task.problem
    engine: Any = choose("cpu", problem.like.device, problem.equation)
    data, state = engine.forward(problem, task.wavelet, keep=True, crew=crew)
    assert state is not None
    residual = white_residual(data)
    scattered = engine.scatter(problem, state, white_direction_of(task))
    gradients = engine.backward(problem, state, residual)
    found = {"data": data, "scattered": scattered, **by_name(gradients)}
    return {name: array.numpy() for name, array in found.items()}


def white_direction_of(task: Task) -> dict[str, torch.Tensor]:
    model, rng = task.problem.model, np.random.default_rng(2)
    noise = {name: torch.tensor(rng.normal(size=array.shape)) for name, array in model.items()}
    return {name: (each * model[name].mean()).to(model[name]) for name, each in noise.items()}


def in_layers(task: Task, count: int) -> dict[str, NDArray]:
    """Return `results` of so many layers, each computed by a thread."""
    board, turn, level = Board(count), threading.Lock(), forward_ad.dual_level

    @contextmanager
    def take_turns() -> Iterator[None]:
        """Let one thread at a time differentiate forwards, unlike ranks."""
        with turn, level():
            yield

    def run(crew: Thread) -> dict[str, NDArray]:
        try:
            return results(task, crew)
        except Exception as error:
            crew.fail(error)
            raise

    with (
        mock.patch.object(forward_ad, "dual_level", take_turns),
        ThreadPoolExecutor(count) as threads,
    ):
        crews = [Thread(number, count, board) for number in range(count)]
        return next(iter(threads.map(run, crews)))


def assert_same_bits(task: Task, counts: tuple[int, ...] = (2, 3), n_threads: int = 1) -> None:
    """Compare layers with the whole grid, which one thread computes; n_threads: of each layer."""
    expected = results(task)
    assert np.abs(expected["data"]).max() > 0.0
    for count in counts:
        with threads(n_threads):
            found = in_layers(task, count)
        for name, array in expected.items():
            assert found[name].tobytes() == array.tobytes(), (count, name)


def shots_of(shape: tuple[int, ...], **options: Any) -> Shots:
    return random_shots(shape=shape, spacing=SPACINGS[len(shape)], shots=2, **options)


HISTORIES = [Snapshots(1), Snapshots(3, format="float16"), Boundary(2), Recompute(2, states=2)]


@pytest.mark.parametrize("history", HISTORIES, ids=describe)
@pytest.mark.parametrize("shape", [FLAT, SOLID], ids=str)
def test_layers_have_the_bits_of_the_whole_grid(shape: tuple[int, ...], history: History) -> None:
    assert_same_bits(task_of(shots_of(shape, sources=2), history=history))


# Each number of axes, order and precision takes half a minute to compile. The loops of the volume
# in single precision are also those of an inversion in `tests.run.test_ranks`.
@pytest.mark.parametrize(
    ("shape", "order", "dtype"),
    [
        *((FLAT, order, torch.float64) for order in (2, 4, 6)),
        *((SOLID, order, torch.float64) for order in (2, 6)),
        (SOLID, 4, torch.float32),
    ],
    ids=str,
)
def test_layers_have_the_bits_of_the_whole_grid_at_every_order(
    shape: tuple[int, ...], order: int, dtype: torch.dtype
) -> None:
    shots = shots_of(shape, order=order)
    assert_same_bits(task_of(replace(shots, vp=shots.vp.to(dtype))), counts=(2,))


@pytest.mark.parametrize(
    ("shape", "dtype"), [(FLAT, torch.float32), (SOLID, torch.float64)], ids=str
)
def test_layers_have_the_bits_of_the_whole_grid_under_a_free_surface(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    shots = shots_of(shape, free_surface=True)
    shots = replace(shots, vp=shots.vp.to(dtype))
    assert_same_bits(task_of(shots, history=Boundary(2)), counts=(2,))


def test_points_at_every_distance_from_a_cut_have_the_bits_of_the_whole_grid() -> None:
    shots = shots_of(FLAT)
    (first, _) = cut(task_of(shots).problem, 2)
    h, n = shots.spacing[0], 33  # type: ignore[index]
    depths = h * (first.end - 7 + np.linspace(-2 * HALO, 2 * HALO, n))
    x = np.linspace(20.0, 300.0, n)
    points = np.stack([depths, x], axis=-1)
    points[::4] = np.rint(points[::4] / shots.spacing) * shots.spacing
    wavelet = shots.wavelet[:1, None].expand(1, n, -1).contiguous()
    near = replace(shots, sources=points[None], receivers=points[None], wavelet=wavelet)
    assert_same_bits(task_of(near), counts=(2,))


def test_layers_with_several_threads_have_the_bits_of_the_whole_grid() -> None:
    for shape in (FLAT, SOLID):
        task = task_of(shots_of(shape, free_surface=True), history=Boundary(2))
        assert_same_bits(task, counts=(2,), n_threads=2)


def test_windows_that_have_not_reached_a_layer_are_those_of_the_whole_grid() -> None:
    """The wave stays in the first of four layers for most steps, and reaches the last one late."""
    shots = random_shots(shape=(161, 33), spacing=(8.0, 11.0), shots=1, samples=150)
    sources = np.array([[24.0, 120.0]])
    task = task_of(replace(shots, vp=shots.vp.float(), sources=sources), history=Snapshots(3))
    assert_same_bits(task, counts=(4,))


def divide(problem: Problem, count: int) -> list[Layer] | None:
    """Return the layers of a grid, None if it has too few planes."""
    with suppress(ValueError):
        return cut(problem, count)
    return None


@given(planes=st.integers(40, 400), count=st.integers(1, 8), flat=st.booleans())
@settings(max_examples=50)
def test_layers_cover_the_grid(planes: int, count: int, flat: bool) -> None:
    shape = (planes, 12) if flat else (planes, 12, 12)
    problem = task_of(random_shots(shape=shape, spacing=(9.0,) * len(shape), shots=1)).problem
    layers, n = divide(problem, count), planes + 14
    if layers is None:
        assert n < max(count, 2) * THINNEST + 2 * 14
        return
    ends = [layer.end for layer in layers]
    assert [layer.first for layer in layers] == [0, *ends[:-1]]
    assert ends[-1] == n
    assert all(layer.planes >= THINNEST for layer in layers)
    first, last = (edges[0] for edges in problem.interior)
    if count > 1:
        assert ends[0] >= first
        assert layers[-1].first <= last
    inner = {layer.planes for layer in layers[1:-1]} or {0}
    assert max(inner) - min(inner) <= 1
    assert max(inner) <= n // count + 2


def test_each_point_is_recorded_by_the_layer_with_the_plane_above() -> None:
    task = task_of(shots_of(FLAT))
    layers = cut(task.problem, 3)
    depths = np.arange(0.0, 8.0 * 56, 3.0)
    points = np.stack([depths, np.full(depths.size, 100.0)], axis=-1)[None]
    taps = replace(task.problem, receivers=points).receiver_taps
    owners = find_layers(taps, layers)[0]
    planes = np.floor(depths / 8.0).astype(int) + 7
    assert [
        layers[owner].first <= plane < layers[owner].end
        for owner, plane in zip(owners, planes, strict=True)
    ] == [True] * depths.size


def first_order_task(
    equation: str,
    shape: tuple[int, ...] = FLAT,
    *,
    count: int = 2,
    dtype: torch.dtype = torch.float64,
    gauge: float = 10.0,
    **options: Any,
) -> Task:
    """Return shots whose sources and receivers are of all kinds, at random and around the cuts.

    count: number of layers, around whose cuts the points are.
    """
    method = Method(
        equation=equation,
        engine="cpu",
        **{
            "boundary": 6,
            "boundary_frequency": 20.0,
            "max_velocity": 2600.0,
            "history": Snapshots(1),
            "order": 4,
            **options,
        },
    )
    model = {name: a.to(dtype) for name, a in random_medium(equation, shape, water=3).items()}
    rng, ndim, shots = np.random.default_rng(1), len(shape), 2
    h = np.array(SPACINGS[ndim])
    some = Acquisition(1e-3, torch.ones(2), np.full((1, ndim), 90.0), np.full((1, ndim), 90.0))
    problem = set_up(model, tuple(h), some, method).problem
    cuts = [layer.end - problem.padding[0][0] for layer in cut(problem, count)[:-1]]
    names = ["pressure", "vz", "vx", "strain", *(["vy"] if ndim == 3 else [])]

    def points(n: int) -> NDArray[np.float64]:
        margin = 1.0 + 0.5 * gauge / h.min()
        cells = rng.uniform(margin, np.array(shape) - 1.0 - margin, (shots, n, ndim))
        size = cells[:, ::2, 0].shape
        cells[:, ::2, 0] = rng.choice(cuts, size) + rng.uniform(-6.0, 6.0, size)
        cells[:, ::3] = np.rint(cells[:, ::3])
        return cells * h

    kinds: SourceKinds = {
        name: rng.normal(size=(shots, 3))
        for name in ("explosive", "force-z", "force-x", *MOMENTS.get(equation, ()))
    }
    receivers = points(20)
    directions = rng.normal(size=(*receivers.shape[:2], ndim))
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    components = Components(
        tuple(names), np.arange(20, dtype=np.int8) % len(names), gauge, directions
    )
    wavelet = torch.tensor(rng.normal(size=(shots, 3, 40))).to(dtype)
    acquisition = Acquisition(1e-3, wavelet, points(3), receivers, components, kinds)
    task = set_up(model, tuple(h), acquisition, method)
    return replace(task, problem=replace(task.problem, history=task.choose_history()))


MOMENTS = {"elastic": ("moment-zz", "moment-zx")}


@pytest.mark.parametrize("free_surface", [False, True])
@pytest.mark.parametrize("equation", FIRST_ORDER)
def test_layers_of_first_order_equations_have_the_bits_of_the_whole_grid(
    equation: str, free_surface: bool
) -> None:
    assert_same_bits(first_order_task(equation, free_surface=free_surface, count=3))


@pytest.mark.parametrize(
    ("equation", "order", "dtype", "free_surface"),
    [
        ("elastic", 8, torch.float32, True),
        ("elastic", 2, torch.float64, False),
        ("viscoelastic", 2, torch.float64, True),
        ("acoustic-vti", 6, torch.float64, False),
    ],
)
def test_layers_of_first_order_equations_have_the_bits_of_the_whole_grid_in_3d(
    equation: str, order: int, dtype: torch.dtype, free_surface: bool
) -> None:
    task = first_order_task(
        equation, SOLID, dtype=dtype, order=order, free_surface=free_surface, count=2
    )
    assert_same_bits(task)


@pytest.mark.parametrize(
    ("order", "history", "dtype"),
    [
        (2, Snapshots(1), torch.float64),
        (4, Recompute(2, states=2), torch.float64),
        (6, Snapshots(3, format="float16"), torch.float64),
        (8, Snapshots(2, format="int8"), torch.float32),
    ],
)
def test_elastic_layers_have_the_bits_of_the_whole_grid_at_every_order(
    order: int, history: History, dtype: torch.dtype
) -> None:
    task = first_order_task("elastic", order=order, history=history, dtype=dtype)
    assert_same_bits(task, counts=(2, 4))


def test_strain_along_a_fibre_across_cuts_has_the_bits_of_the_whole_grid() -> None:
    assert_same_bits(first_order_task("elastic", count=3, gauge=60.0), counts=(3,))


def test_elastic_layers_with_several_threads_have_the_bits_of_the_whole_grid() -> None:
    for shape in ((200, 33), (24, 40, 21)):
        task = first_order_task("elastic", shape, free_surface=True)
        assert_same_bits(task, counts=(2,), n_threads=2)


def test_elastic_windows_that_have_not_reached_a_layer_are_those_of_the_whole_grid() -> None:
    """The wave stays in the first of four layers for most steps, and reaches the last one late.

    In 2-D a window ends at a cut.
    """
    for shape in ((186, 33), (100, 12, 13)):
        task = first_order_task("elastic", shape, count=4, order=2, free_surface=True)
        sources = np.full_like(task.problem.sources[:1], 30.0)
        problem = task.problem.select(slice(1))
        wavelet = torch.cat([task.wavelet[:1]] * 3, dim=-1)
        near = replace(task, problem=replace(problem, sources=sources), wavelet=wavelet)
        assert_same_bits(near, counts=(4,))
