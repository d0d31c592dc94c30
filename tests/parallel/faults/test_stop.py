"""Requests to stop: noted at once, agreed upon by all ranks later."""

from __future__ import annotations

import os
import select
import signal
import threading

import pytest
import torch

from hpcfwi.parallel.context import Context
from hpcfwi.parallel.watch import SIGNALS, StopRequest


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_is_noted_and_does_not_interrupt(number):
    with StopRequest(Context.alone()) as stop:
        assert stop.agreed() is None
        send(number)
        assert stop.agreed() == number.name
        assert stop.agreed() == number.name, "it stays requested"


def test_another_thread_learns_of_it_while_the_main_thread_does_not_come_back():
    heard = []
    with StopRequest(Context.alone()) as stop:
        watcher = threading.Thread(target=lambda: heard.append(stop.wait(20.0)))
        watcher.start()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            send(signal.SIGUSR1)  # which the other thread takes, and only the main one may handle
            select.select([], [], [], 0.5)
            assert heard == ["SIGUSR1"]
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            stop.wake()
            watcher.join()
        assert stop.agreed() == "SIGUSR1"


def test_a_wait_for_a_signal_ends_after_its_time_or_when_it_is_called_off():
    with StopRequest(Context.alone()) as stop:
        assert stop.wait(0.0) is None
        stop.wake()
        assert stop.wait(60.0) is None


def test_while_the_ranks_decide_and_after_they_have_agreed_nobody_else_may():
    with StopRequest(Context.alone()) as stop:
        assert stop.agreed() is None
        assert not stop.deciding.locked()
        send(signal.SIGTERM)
        assert stop.agreed() == stop.agreed() == "SIGTERM"
        assert stop.deciding.locked()


def test_afterwards_signals_do_what_they_did_before_even_after_an_exception():
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
    """A rank whose two fellows have received this signal, if any."""

    others: signal.Signals | None = None

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.others is not None:
            tensor[SIGNALS.index(self.others)] += 2
        return tensor


@pytest.mark.parametrize("others", [None, signal.SIGTERM, signal.SIGUSR1])
def test_what_any_rank_has_received_all_ranks_obey(others, monkeypatch):
    monkeypatch.setattr(OneOfThree, "others", others)
    context = OneOfThree(0, 3, 0, "host", torch.device("cpu"), 1)
    with StopRequest(context) as stop:
        assert stop.agreed() == (None if others is None else others.name)


def test_ranks_with_different_signals_agree_on_one(monkeypatch):
    monkeypatch.setattr(OneOfThree, "others", signal.SIGTERM)
    with StopRequest(OneOfThree(0, 3, 0, "host", torch.device("cpu"), 1)) as stop:
        send(signal.SIGUSR1)
        assert stop.agreed() == "SIGTERM", "which most have received"
