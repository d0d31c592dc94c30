"""A thread that draws figures in the background, so that the computation does not wait for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

# So many figures of one kind may wait for the painter.
WAITING = 4


class Painter(AbstractContextManager["Painter"]):
    """A thread that draws the figures submitted to it, in order.

    If figures come faster than they can be drawn, a figure that waits gives way to a newer one
    for the same file, and the oldest of more than `WAITING` of the same kind is dropped, with a
    note in the log: memory stays bounded, the computation never waits, and the last figure of
    each kind is always drawn. A figure that cannot be drawn is a warning, not an error.

    Only this thread may use matplotlib while the painter is open. Close it, or use it in a `with`
    statement.
    """

    def __init__(self) -> None:
        self._waiting: dict[Path, tuple[Callable, Callable[[], None]]] = {}
        self._changed = threading.Condition()
        self._closing = False
        # A daemon: an error elsewhere must end the program even if nobody closes the painter.
        self._thread = threading.Thread(target=self._work, name="painter", daemon=True)
        self._thread.start()

    def submit(self, figure: Callable[..., Figure], path: Path, *args: Any) -> None:
        """Have `figure(*args)` written to `path` soon; the arguments must not change meanwhile.

        Raises RuntimeError where the painter is closed.
        """
        with self._changed:
            if self._closing:
                raise RuntimeError("the painter is closed")
            self._waiting[path] = (figure, lambda: _draw(figure, path, args))
            alike = [other for other, (kind, _) in self._waiting.items() if kind == figure]
            if len(alike) > WAITING:
                del self._waiting[alike[0]]
                logger.info("%s is not drawn: figures come too fast", alike[0].name)
            self._changed.notify()

    def close(self) -> None:
        """Wait until all that was submitted is drawn; a second call does nothing."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                path = next(iter(self._waiting))
                _, draw = self._waiting.pop(path)
            try:
                draw()
            except Exception as error:
                logger.warning("%s is not drawn: %s: %s", path, type(error).__name__, error)


def _draw(figure: Callable[..., Figure], path: Path, args: tuple[Any, ...]) -> None:
    from hpcfwi.report import style

    style.save(figure(*args), path)
