"""Requests to stop, as batch systems and terminals send them: noted now, obeyed together later.

The ranks agree between two steps, so that all stop at the same one.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self

import torch

from hpcfwi.parallel.context import Context

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopRequest:
    """Notes the signals while it is open; use it in a `with` statement, in the main thread."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._received = 0
        self._before: dict[int, Any] = {}

    def agreed(self) -> str | None:
        """The signal's name if any rank has received one, on all ranks alike; collective."""
        received = torch.zeros(len(SIGNALS), dtype=torch.int64)
        if self._received:
            received[SIGNALS.index(signal.Signals(self._received))] = 1
        counts = self._context.sum(received)
        return SIGNALS[int(counts.argmax())].name if counts.any() else None

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._received = number

    def __enter__(self) -> Self:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
