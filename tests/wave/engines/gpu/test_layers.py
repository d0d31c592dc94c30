"""Tests of layers in the gpu engine: grids that ranks share give the bits of undivided ones.

Threads stand for the ranks of a crew. One of them runs at a time, because Triton's interpreter has
a common state.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hpcfwi.wave import Boundary, Recompute, Snapshots
from hpcfwi.wave.engines.gpu import engine
from hpcfwi.wave.engines.gpu.layout import KEPT, Sizes, layout_of
from hpcfwi.wave.history import History, describe
from hpcfwi.wave.layers import ALONE, HALO, Crew, Halo, Layer, cut
from hpcfwi.wave.problem import Problem
from hpcfwi.wave.simulation import Task
from tests.ranks import long_form
from tests.wave.engines.gpu.test_engine import tiny_shots
from tests.wave.examples import Shots, by_name, white_residual
from tests.wave.test_layers import Board, Thread, task_of, white_direction_of

pytestmark = [
    pytest.mark.usefixtures("quick_interpreter"),
    pytest.mark.skipif(
        torch.cuda.is_available(), reason="the threads would be ranks with the same GPU"
    ),
]


class Turns(Board):
    """A board whose threads run one at a time."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.turn = threading.Lock()
        self.sent: list[Halo] = [((), ())] * size

    @contextmanager
    def away(self) -> Iterator[None]:
        """Let the other threads run until all have come here, and until all have left."""
        for wait in (True, False):
            self.turn.release()
            self.barrier.wait()
            self.turn.acquire()
            if wait:
                yield


class Layered(Thread):
    """A thread that swaps tensors, too."""

    def __init__(self, number: int, size: int, board: Turns) -> None:
        super().__init__(number, size, board)
        self.turns, self.swaps = board, 0

    def gather(self, value: Any) -> list[Any] | None:
        self.turns.values[self.number] = value
        with self.turns.away():
            found = list(self.turns.values)
        return found if self.number == 0 else None

    def swap(self, sent: Halo, received: Halo) -> None:
        assert all(each.is_contiguous() for half in (*sent, *received) for each in half)
        self.swaps += 1
        self.turns.sent[self.number] = (
            [each.clone() for each in sent[0]],
            [each.clone() for each in sent[1]],
        )
        with self.turns.away():
            for side, other in ((0, self.number - 1), (1, self.number + 1)):
                if 0 <= other < self.size:
                    found = self.turns.sent[other][1 - side]
                    for target, tensor in zip(received[side], found, strict=True):
                        target.copy_(tensor)


def results(task: Task, crew: Crew = ALONE) -> dict[str, NDArray]:
    """Return the traces, gradients, illuminations and scattered traces of a task, by name."""
    problem = task.problem
    data, state = engine.forward(problem, task.wavelet, keep=True, crew=crew)
    assert state is not None
    scattered = engine.scatter(problem, state, white_direction_of(task))
    gradients = engine.backward(problem, state, white_residual(data))
    found = {"data": data, "scattered": scattered, **by_name(gradients)}
    return {name: array.numpy() for name, array in found.items()}


def in_layers(task: Task, count: int) -> dict[str, NDArray]:
    """Return `results` of so many layers, each computed by a thread."""
    board = Turns(count)

    def run(crew: Layered) -> dict[str, NDArray]:
        with board.turn:
            return results(task, crew)

    with ThreadPoolExecutor(count) as threads:
        crews = [Layered(number, count, board) for number in range(count)]
        return next(iter(threads.map(run, crews)))


def assert_same_bits(shots: Shots, history: History, counts: Sequence[int] = (2,)) -> None:
    task = task_of(replace(shots, vp=shots.vp.float()), history=history)
    expected = results(task)
    assert all(array.any() for array in expected.values())
    for count in counts:
        found = in_layers(task, count)
        for name, array in expected.items():
            assert found[name].tobytes() == array.tobytes(), (count, name)


def flat(**options: Any) -> Shots:
    return tiny_shots(**{"shape": (25, 13), "sources": 2, "samples": 4, **options})


def solid(**options: Any) -> Shots:
    volume = {"shape": (13, 8, 9), "spacing": (9.0, 8.0, 10.0), "samples": 4, "dt": 1.5e-3}
    return tiny_shots(**{**volume, **options})


HISTORIES = [
    Snapshots(2, format="float16"),
    Boundary(1, format="int8"),
    Recompute(1, states=1),
    long_form(Snapshots(1)),
    long_form(Snapshots(1, format="bfloat16")),
    long_form(Snapshots(1, format="int8")),
    long_form(Boundary(1)),
    long_form(Boundary(2, format="float16")),
]


@pytest.mark.parametrize("history", HISTORIES, ids=describe)
def test_layers_have_the_bits_of_the_whole_grid(
    history: History,
) -> None:
    assert_same_bits(flat(order=8), history)


def test_layers_of_several_shots_have_the_bits_of_the_whole_grid_under_a_free_surface() -> None:
    shots = flat(order=2, shots=2, free_surface=True, samples=3)
    assert_same_bits(shots, Snapshots(1), counts=(3,))


@pytest.mark.parametrize("order", [4, *map(long_form, (2, 6, 8))])
def test_layers_have_the_bits_of_the_whole_grid_in_three_dimensions(order: int) -> None:
    assert_same_bits(solid(order=order, free_surface=True), Boundary(1, format="float16"))


@pytest.mark.parametrize("order", [2, long_form(8)])
def test_points_at_every_distance_from_a_cut_have_the_bits_of_the_whole_grid(order: int) -> None:
    shots, n = flat(order=order, samples=3), 17
    (first, _) = cut(task_of(shots).problem, 2)
    depths = 8.0 * (first.end - 2.6 + np.linspace(-2 * HALO, 2 * HALO, n))
    points = np.stack([depths, np.linspace(10.0, 120.0, n)], axis=-1)
    points[::4] = np.rint(points[::4] / shots.spacing) * shots.spacing
    wavelet = shots.wavelet[:, :1].expand(1, n, -1).contiguous()
    near = replace(shots, sources=points[None], receivers=points[None], wavelet=wavelet)
    assert_same_bits(near, Snapshots(1))


@pytest.mark.parametrize("shots", [flat(), flat(boundary=0), solid(order=8)], ids=["2", "0", "3"])
@pytest.mark.parametrize("kind", [Snapshots, Boundary])
def test_scales_of_layers_are_those_of_the_whole_grid(shots: Shots, kind: Any) -> None:
    """Each stored cell has the same neighbours in its scale, in whichever layer it is."""
    problem = task_of(shots, history=kind(1, format="int8")).problem
    for name in ("samples", "edges"):
        whole, *parts = (
            scales_of(problem, cut(problem, count), number, name)
            for count, number in ((1, 0), (2, 0), (2, 1))
        )
        assert sorted(parts[0] + parts[1]) == sorted(whole)
        assert all(len(cells) <= KEPT for cells in whole)


def scales_of(
    problem: Problem, layers: list[Layer], number: int, name: str
) -> list[tuple[int, ...]]:
    """Return the cells of the grid that share each scale of a layer, as numbers in the whole."""
    place = layout_of(problem, layers, number)
    blueprint = engine._blueprint(problem, place, 5, Sizes(1, 1, 1, 1), Sizes(1, 1, 1, 1))
    starts = blueprint.find_starts(name)
    cells = np.arange(place.size)
    if blueprint.rebuilds:
        boxes = place.frame if name == "samples" else place.perimeter
        cells = place.offsets(boxes, torch.device("cpu")).numpy()
    elif name == "edges":
        cells = cells[:0]
    assert starts[-1] == len(cells)
    plane = place.strides[0]
    inside = (cells >= place.origin) & (cells < place.origin + place.shape[0] * plane)
    moved = cells - place.origin + place.first * plane
    pairs = [slice(*pair) for pair in pairwise(starts)]
    found = [tuple(map(int, moved[pair][inside[pair]])) for pair in pairs]
    return [each for each in found if each]


def test_layers_take_less_memory_than_the_whole_grid_and_capture_nothing() -> None:
    problem = task_of(flat(shape=(120, 40)), history=Snapshots(1)).problem
    whole, half = (engine.footprint(problem, 100, count) for count in (1, 2))
    assert 0.5 * whole < half < 0.7 * whole
    for count, captures in ((1, True), (2, False)):
        place = layout_of(problem, cut(problem, count))
        blueprint = engine._blueprint(problem, place, 5, Sizes(1, 1, 1, 1), Sizes(1, 1, 1, 1))
        on_card = replace(blueprint, device=torch.device("cuda"))
        assert (on_card.captured > 0) == captures
