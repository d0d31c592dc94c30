"""The frame's launches beside the interior's, in streams that are no card's."""

from __future__ import annotations

from contextlib import contextmanager

from hpcfwi.wave.engines.gpu import stepper
from hpcfwi.wave.engines.gpu.kernels.frame import FORWARDS
from tests.wave.engines.gpu.test_engine import on_device, tiny_shots


class Stream:
    """Notes who waits for whom."""

    def __init__(self, name, notes):
        self.name, self.notes = name, notes

    def wait_stream(self, other):
        self.notes.append(f"{self.name} waits for {other.name}")


def list_launches(monkeypatch, **options):
    """What one step launches, in which stream, and what waits for what."""
    notes, used = [], ["main"]
    main, side = Stream("main", notes), Stream("side", notes)
    shots = on_device(tiny_shots(samples=2, **options))
    sweep = shots.simulate(engine="gpu")._state.groups.sweeps[0]
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
        monkeypatch.setattr(stepper, name, Kernel(name))
    cur, new = sweep.arrays["fields"]
    psi, zeta = sweep.arrays["memory"][:2]
    sweep.stepper.advance(0, FORWARDS, cur, new, psi, zeta, zeta, keep=False)
    return notes


def test_the_frame_runs_beside_the_interior_and_both_are_there_for_what_follows(monkeypatch):
    assert list_launches(monkeypatch) == [
        "side waits for main",
        "relax in side",
        "advance_frame in side",
        "advance in main",
        "main waits for side",
    ]


def test_where_nothing_absorbs_no_stream_is_waited_for_in_which_nothing_was_begun(monkeypatch):
    assert list_launches(monkeypatch, boundary=0) == ["advance in main"]
