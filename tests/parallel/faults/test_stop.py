"""Tests of requests to stop, which are noted at once and on which all ranks agree later."""

from __future__ import annotations

import os
import select
import signal
import threading

import pytest
import torch

from hpcfwi.parallel.context import Context
from hpcfwi.parallel.failure import SIGNALS
from hpcfwi.parallel.watch import StopRequest


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_signal_is_noted_without_interrupting(number):
    with StopRequest(Context.alone()) as stop:
        assert stop.agree_to_stop() is None
        send(number)
        assert stop.agree_to_stop() == number.name
        assert stop.agree_to_stop() == number.name, "the request stays"


def test_other_thread_sees_a_signal_while_the_main_thread_is_blocked():
    heard = []
    with StopRequest(Context.alone()) as stop:
        watcher = threading.Thread(target=lambda: heard.append(stop.wait(20.0)))
        watcher.start()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            send(signal.SIGUSR1)  # received by the other thread; only the main thread may handle it
            select.select([], [], [], 0.5)
            assert heard == ["SIGUSR1"]
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            stop.wake()
            watcher.join()
        assert stop.agree_to_stop() == "SIGUSR1"


def test_wait_for_a_signal_ends_at_its_timeout_or_when_woken():
    with StopRequest(Context.alone()) as stop:
        assert stop.wait(0.0) is None
        stop.wake()
        assert stop.wait(60.0) is None


def test_decision_stays_locked_after_the_ranks_agree_to_stop():
    with StopRequest(Context.alone()) as stop:
        assert stop.agree_to_stop() is None
        assert not stop.deciding.locked()
        send(signal.SIGTERM)
        assert stop.agree_to_stop() == stop.agree_to_stop() == "SIGTERM"
        assert stop.deciding.locked()


def test_signal_handlers_are_restored_after_an_exception():
    def handler(*_):
        received.append("before")

    def interrupted():
        with StopRequest(Context.alone()):
            send(signal.SIGUSR1)
            raise ArithmeticError

    received = []
    old = signal.signal(signal.SIGUSR1, handler)
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(ArithmeticError):
            interrupted()
        assert received == []
        send(signal.SIGUSR1)
        assert received == ["before"]
        assert signal.getsignal(signal.SIGINT) is interrupt
    finally:
        signal.signal(signal.SIGUSR1, old)


class OneOfThree(Context):
    """A rank of three; `others` is the signal that the other two have received."""

    others: signal.Signals | None = None

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.others is not None:
            tensor[SIGNALS.index(self.others)] += 2
        return tensor


@pytest.mark.parametrize("others", [None, signal.SIGTERM, signal.SIGUSR1])
def test_signal_received_by_other_ranks_stops_every_rank(others, monkeypatch):
    monkeypatch.setattr(OneOfThree, "others", others)
    context = OneOfThree(0, 3, 0, "host", torch.device("cpu"), 1)
    with StopRequest(context) as stop:
        assert stop.agree_to_stop() == (None if others is None else others.name)


def test_ranks_agree_on_the_signal_received_by_most(monkeypatch):
    monkeypatch.setattr(OneOfThree, "others", signal.SIGTERM)
    with StopRequest(OneOfThree(0, 3, 0, "host", torch.device("cpu"), 1)) as stop:
        send(signal.SIGUSR1)
        assert stop.agree_to_stop() == "SIGTERM", "most ranks have received it"
