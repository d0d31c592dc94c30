"""Requests to stop, as batch systems and terminals send them: noted now, obeyed together later.

The ranks agree between two steps, so that all stop at the same one. What becomes of a step that
takes too long for that is decided in `watch`.
"""

from __future__ import annotations

import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self

import torch

from hpcfwi.parallel.context import Context

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


@contextmanager
def handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Inside, requests to stop are this handler's; afterwards whose they were; main thread only."""
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


class StopRequest:
    """Notes the signals while it is open; use it in a `with` statement, in the main thread.

    deciding: held while the ranks agree, and for good after they have agreed to stop.
    """

    def __init__(self, context: Context) -> None:
        self.deciding = threading.Lock()
        self._context = context
        self._received = 0
        self._has_agreed = False
        self._handling = handling(self._note)
        self._before_bell = -1
        self._bell, self._button = socket.socketpair()
        self._bell.setblocking(False)
        self._button.setblocking(False)

    def agreed(self) -> str | None:
        """The signal's name if any rank has received one, on all ranks alike; collective."""
        # One that agrees for the second time holds the lock already.
        self.deciding.acquire(blocking=not self._has_agreed)
        received = torch.zeros(len(SIGNALS), dtype=torch.int64)
        if self._received:
            received[SIGNALS.index(signal.Signals(self._received))] = 1
        try:
            counts = self._context.sum(received)
        except RuntimeError:  # a rank has died, and the others are asked again
            if not self._has_agreed:
                self.deciding.release()
            raise
        self._has_agreed = bool(counts.any())
        if not self._has_agreed:
            self.deciding.release()
            return None
        return SIGNALS[int(counts.argmax())].name

    def wait(self, timeout: float) -> str | None:
        """The signal that this rank has received, if any; for any other thread, and at once.

        Waits up to `timeout` seconds, or until there is one, or `wake` is called. The main thread
        itself may be in a long computation, and learns of the signal only when it returns.
        """
        if select.select([self._bell], [], [], timeout)[0]:
            rung = [number for number in self._bell.recv(4096) if number in SIGNALS]
            self._received = rung[-1] if rung else self._received
        return signal.Signals(self._received).name if self._received else None

    def wake(self) -> None:
        """End a `wait` of another thread."""
        self._button.send(b"\0")

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._received = number

    def __enter__(self) -> Self:
        # Python runs handlers between two steps of the main thread, but writes here at once.
        self._before_bell = signal.set_wakeup_fd(self._button.fileno(), warn_on_full_buffer=False)
        self._handling.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._handling.__exit__(None, None, None)
        signal.set_wakeup_fd(self._before_bell)
        self._bell.close()
        self._button.close()
