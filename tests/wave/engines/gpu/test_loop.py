"""Tests of stretches of steps, launched or captured; real captures need a GPU."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from hpcfwi.wave.engines.gpu.device import STRETCH, Loop


class Clock:
    """A stand-in for a tensor on a GPU; only its device is used."""

    device = SimpleNamespace(type="cuda", index=3)

    def fill_(self, _):
        pass

    add_ = fill_


@pytest.fixture(autouse=True)
def streams(monkeypatch):
    """The list of streams that were restored."""
    entered: list[str] = []
    monkeypatch.setattr("torch.cuda.Stream", lambda device: f"a stream of card {device.index}")
    monkeypatch.setattr("torch.cuda.current_stream", lambda device: f"that of {device.index}")
    monkeypatch.setattr("torch.cuda.set_stream", entered.append)
    return entered


def test_garbage_collector_is_disabled_only_during_a_capture(monkeypatch):
    seen: dict[str, list[bool]] = {"launch": [], "capture": []}
    capturing = []

    @contextmanager
    def capture(graph, stream, capture_error_mode):
        assert capture_error_mode == "thread_local"
        assert stream == "a stream of card 3"
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
def test_failed_capture_restores_the_garbage_collector_and_the_stream(
    monkeypatch, streams, enabled
):
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
        assert streams == ["that of 3"]
    finally:
        gc.enable()


def test_stretch_after_an_interrupted_one_is_not_captured(monkeypatch):
    monkeypatch.setattr("torch.cuda.graph", lambda *_, **__: pytest.fail("captured"))

    def interrupted(*_):
        raise KeyboardInterrupt

    launched = []
    loop = Loop(Clock(), 1, 2)
    with pytest.raises(KeyboardInterrupt):
        loop.run(interrupted, 0, STRETCH)
    loop.run(lambda n, _: launched.append(n), 0, STRETCH)
    assert launched == [*range(STRETCH)]
