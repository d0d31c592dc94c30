"""Which shots are simulated together: as many as stay in the card's cache and keep it busy."""

from __future__ import annotations

import gc

import pytest
import torch

from hpcfwi.wave import Boundary, Snapshots
from hpcfwi.wave.engines.gpu import engine as gpu
from hpcfwi.wave.engines.gpu import groups
from hpcfwi.wave.engines.gpu.device import Card
from hpcfwi.wave.engines.gpu.groups import group_shots, load_of
from hpcfwi.wave.engines.gpu.layout import Blueprint, Layout, Sizes
from hpcfwi.wave.history import History
from tests.wave.engines.gpu.test_engine import NAMES, on_device, tiny_shots
from tests.wave.examples import by_name, white_direction, white_residual

MIB = 2**20
A100, H100 = Card(40 * MIB, 108), Card(50 * MIB, 132)
# Its driver tells the cache of one of its eight dies; the last level, which all share, has 256 MiB
MI300X, MI300X_WHOLE = Card(4 * MIB, 304), Card(256 * MIB, 304)
MARMOUSI, FINER, VOLUME = (141, 681), (281, 1361), (96, 96, 96)


def blueprint_of(shape: tuple[int, ...], shots: int, history: History, keeps: bool) -> Blueprint:
    """With 20 absorbing cells, of order 8, in single precision."""
    grid = [n + 40 for n in shape]
    if len(shape) == 2:
        layout = Layout((grid[0], 1, grid[1]), (20, 0, 20), (20, 0, 20), 4, 2)
    else:
        layout = Layout((grid[0], grid[1], grid[2]), (20, 20, 20), (20, 20, 20), 4, 3)
    point, steps, card = Sizes(1, 1, 1, 1), 2500, torch.device("cuda")
    return Blueprint(
        layout, card, torch.float32, False, shots, steps, point, point, history, keeps, False
    )


@pytest.mark.parametrize(
    ("shape", "shots", "card", "expected"),
    [
        (MARMOUSI, 8, H100, [8]),
        (MARMOUSI, 40, H100, [14, 13, 13]),
        (MARMOUSI, 40, A100, [14, 13, 13]),
        (MARMOUSI, 40, MI300X, [40]),
        (MARMOUSI, 40, MI300X_WHOLE, [40]),
        (FINER, 8, H100, [4, 4]),
        (FINER, 8, A100, [4, 4]),
        (FINER, 40, MI300X_WHOLE, [20, 20]),
        (VOLUME, 4, H100, [4]),
    ],
)
def test_groups_are_the_fewest_that_stay_in_the_cache(shape, shots, card, expected):
    load = load_of(blueprint_of(shape, shots, Snapshots(10), keeps=True))
    assert group_shots(shots, load, card) == expected
    if len(expected) > 1:
        assert load.common + max(expected) * load.own <= card.cache
        assert min(expected) * load.tiles >= groups.FILLING * card.processors


def test_a_group_that_would_leave_multiprocessors_idle_is_not_made():
    load = load_of(blueprint_of(MARMOUSI, 8, Snapshots(10), keeps=True))
    two_fit = load.common + 2 * load.own
    assert group_shots(8, load, Card(two_fit, 132)) == [8]
    assert group_shots(8, load, Card(two_fit, 40)) == [2, 2, 2, 2]


def test_a_step_goes_through_more_on_the_way_back_and_where_the_field_is_rebuilt():
    ways = [(Snapshots(10), False), (Snapshots(10), True), (Boundary(10), True)]
    loads = [load_of(blueprint_of(MARMOUSI, 8, *way)) for way in ways]
    field = blueprint_of(MARMOUSI, 1, Snapshots(10), False).layout.size * 4
    assert [load.common for load in loads] == [field] * 3
    assert 2 * field < loads[0].own < loads[1].own < loads[2].own < 8 * field


def results(shots, history):
    """Traces, gradients, and what scatters; the sizes of the groups that gave them."""
    simulation = shots.simulate(engine="gpu", history=history, illuminate=True)
    gradients = simulation.backpropagate(white_residual(simulation.data))
    lit = [gradients.source_illumination, gradients.receiver_illumination]
    scattered = simulation.scatter(white_direction(shots))
    sizes = [sweep.blueprint.shots for sweep in simulation._state.groups.sweeps]
    found = [by_name(gradients)[name] for name in NAMES]
    return [simulation.data, *found, *lit, scattered], sizes


@pytest.mark.usefixtures("quick_interpreter")
def test_bits_do_not_depend_on_the_groups(monkeypatch):
    shots, history = (
        on_device(tiny_shots(shots=3, samples=3), torch.float32),
        Boundary(1, format="int8"),
    )
    together, sizes = results(shots, history)
    assert sizes == [3]
    monkeypatch.setattr(groups, "card_of", lambda _: Card(0, 0))
    monkeypatch.setattr(groups, "group_shots", lambda *_: [1, 2])
    gc.collect()
    gpu.clear()
    found, sizes = results(shots, history)
    assert sizes == [1, 2]
    assert all(map(torch.equal, found, together))


@pytest.mark.usefixtures("quick_interpreter")
def test_all_groups_of_a_batch_are_kept_for_the_next_and_counted(monkeypatch):
    gc.collect()
    gpu.clear()
    monkeypatch.setattr(groups, "card_of", lambda _: Card(0, 0))
    monkeypatch.setattr(groups, "group_shots", lambda shots, *_: [1] * shots)
    shots = on_device(tiny_shots(shots=3, samples=2), torch.float32)
    simulation = shots.simulate(engine="gpu")
    used = simulation._state.groups
    taken = sum(a.nbytes for sweep in used.sweeps for a in sweep.arrays.values())
    assert taken <= used.count_bytes() < gpu.footprint(simulation._problem, 2)
    del simulation
    gc.collect()
    assert gpu.idle() == used.count_bytes()
    assert shots.simulate(engine="gpu")._state.groups is used
