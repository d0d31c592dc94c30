"""Stretches of steps, launched or captured. A capture itself needs a card."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from hpcfwi.wave.engines.gpu.loop import STRETCH, Loop


class Clock:
    """As a tensor on a card, of which only the device is looked at."""

    device = SimpleNamespace(type="cuda")

    def fill_(self, _):
        pass

    add_ = fill_


def test_pythons_collector_rests_during_a_capture_and_no_longer(monkeypatch):
    seen: dict[str, list[bool]] = {"launch": [], "capture": []}
    capturing = []

    @contextmanager
    def capture(graph, capture_error_mode):
        assert capture_error_mode == "thread_local"
        capturing.append(graph)
        yield
        capturing.pop()

    monkeypatch.setattr("torch.cuda.CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr("torch.cuda.graph", capture)

    def step(*_):
        seen["capture" if capturing else "launch"].append(gc.isenabled())

    loop = Loop(Clock(), 1, 2)
    assert gc.isenabled()
    loop.run(step, 0, STRETCH)
    loop.run(step, 0, STRETCH)
    assert seen == {"launch": [True] * STRETCH, "capture": [False] * STRETCH}
    assert gc.isenabled()


@pytest.mark.parametrize("enabled", [True, False])
def test_after_a_capture_that_fails_the_collector_is_as_it_was(monkeypatch, enabled):
    @contextmanager
    def capture(*_, **__):
        yield
        raise RuntimeError("not here")

    monkeypatch.setattr("torch.cuda.CUDAGraph", SimpleNamespace)
    monkeypatch.setattr("torch.cuda.graph", capture)
    loop = Loop(Clock(), 1, 2)
    loop.run(lambda *_: None, 0, STRETCH)
    if not enabled:
        gc.disable()
    try:
        with pytest.raises(RuntimeError, match="not here"):
            loop.run(lambda *_: None, 0, STRETCH)
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
