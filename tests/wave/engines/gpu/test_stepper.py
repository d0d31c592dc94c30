"""Tests of the streams of frame and interior, without a GPU."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from hpcfwi.wave.engines.gpu import kernels
from hpcfwi.wave.engines.gpu import sweep as sweeps
from hpcfwi.wave.engines.gpu.device import CANDIDATES, STRETCH
from tests.wave.engines.gpu.test_engine import on_device, tiny_shots


class Stream:
    """A stand-in for a stream that records its waits."""

    def __init__(self, name, notes):
        self.name, self.notes = name, notes

    def wait_stream(self, other):
        self.notes.append(f"{self.name} waits for {other.name}")


def list_launches(monkeypatch, **options):
    """Return the launches of a step with their streams, and the waits between streams."""
    notes, used = [], ["main"]
    main, side = Stream("main", notes), Stream("side", notes)
    shots = on_device(tiny_shots(samples=2, **options))
    sweep = shots.simulate(engine="gpu")._state.sweep
    monkeypatch.setattr(sweep.stepper, "_side", side)
    monkeypatch.setattr("torch.cuda.current_stream", lambda _: main)

    @contextmanager
    def within(stream):
        used.append(stream.name)
        yield
        used.pop()

    class Kernel:
        def __init__(self, name):
            self.name = name

        def __getitem__(self, _):
            return lambda *_, **__: notes.append(f"{self.name} in {used[-1]}")

    monkeypatch.setattr("torch.cuda.stream", within)
    for name in ("relax", "advance_frame", "advance"):
        monkeypatch.setattr(kernels, name, Kernel(name))
    cur, new = sweep.arrays["fields"]
    psi, zeta = sweep.arrays["memory"][:2]
    sweep.stepper.advance(0, kernels.FORWARDS, cur, new, psi, zeta, zeta, keep=False)
    return notes


def test_frame_and_interior_run_in_two_streams_that_are_joined(monkeypatch):
    assert list_launches(monkeypatch) == [
        "side waits for main",
        "relax in side",
        "advance_frame in side",
        "advance in main",
        "main waits for side",
    ]


def test_step_without_a_frame_does_not_use_the_side_stream(monkeypatch):
    assert list_launches(monkeypatch, boundary=0) == ["advance in main"]


@pytest.mark.parametrize(("cache", "where"), [(10, "beyond"), (10**9, "within"), (None, "beyond")])
def test_tile_is_timed_by_stretches_of_steps_and_keyed_by_the_cache(monkeypatch, cache, where):
    shots = on_device(tiny_shots(samples=2))
    timed = shots.simulate(engine="gpu")._state.sweep.stepper
    launched, timings, keys = [], iter([9.0, 8.0, 5.0, 3.0, 4.0, 6.0, 7.0]), []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def elapsed_time(self, _):
            return next(timings)

        def record(self):
            pass

        synchronize = record

    def find_tile(key, ndim, cells, measure):
        keys.append(key)
        assert cells == shots.sources.shape[0] * timed.blueprint.layout.size
        assert measure(CANDIDATES[ndim][1]) == 3.0, "neither compiled nor captured"
        return CANDIDATES[ndim][1]

    card = SimpleNamespace(Event=Event, get_device_name=lambda _: "a card")
    monkeypatch.setattr(sweeps, "INTERPRETED", False)
    monkeypatch.setattr("torch.get_device_module", lambda _: card)
    monkeypatch.setattr(sweeps, "cache_of", lambda _: cache)
    monkeypatch.setattr(sweeps, "find_tile", find_tile)
    monkeypatch.setattr(timed, "advance_interior", lambda at, *_, **__: launched.append(at))
    assert timed.find_tile() == CANDIDATES[2][1]
    assert launched == 7 * [*range(STRETCH)]
    (key,) = keys
    assert f"{where} the cache" in key
