"""How many shots a rank simulates at a time, and what it does when memory runs out.

Which number to begin with is found in `resources`.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from hpcfwi.errors import InversionFailure
from hpcfwi.parallel.context import Context
from hpcfwi.wave.engines import let_go
from hpcfwi.wave.history import is_out_of_memory

log = logging.getLogger("hpcfwi")
T = TypeVar("T")


class Chunks:
    """Cuts a rank's shots into chunks that memory allows.

    size: shots of a chunk; halved whenever memory runs out, for the rest of the run.
    """

    def __init__(self, size: int, context: Context) -> None:
        self.size, self._context = size, context
        self._exhausted: str | None = None

    @property
    def exhausted(self) -> bool:
        """Whether a single shot was too much for this rank."""
        return self._exhausted is not None

    def each(self, shots: int, work: Callable[[slice], T]) -> Iterator[T]:
        """What `work` returns for the chunks of so many shots, one after the other.

        A chunk that runs out of memory is tried again without what engines hold from earlier ones,
        and then in halves. Where it is a single shot, the iteration ends early: call `check` after
        it.
        """
        first, has_let_go = 0, False
        while first < shots:
            part = slice(first, min(first + self.size, shots))
            try:
                result = work(part)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                complaint = str(error)
            else:
                self._context.heartbeat.beat()
                yield result
                first, has_let_go = part.stop, False
                continue
            # Here the error is gone, and with it what the frames of its traceback have held.
            gc.collect()
            held = let_go() and not has_let_go
            self._free()
            if held:
                has_let_go = True
                continue
            if not self._halve(part.stop - part.start):
                self._exhausted = complaint
                return

    def check(self) -> None:
        """Raise `InversionFailure` on all ranks where a single shot was too much; collective."""
        complaints = self._context.all_gather((self._exhausted, self._context.host))
        for rank, (complaint, host) in enumerate(complaints):
            if complaint is not None:
                raise InversionFailure(
                    f"rank {rank} on {host} ran out of memory with one shot at a time "
                    f"({complaint.splitlines()[0] if complaint else 'no details'}): give it more, "
                    "start fewer ranks on a node, or set a smaller wave.memory, for which a more "
                    "frugal history is chosen; then give the same command again"
                )

    def _halve(self, tried: int) -> bool:
        if tried == 1:
            return False
        self.size = tried // 2
        log.warning(
            "Rank %d on %s ran out of memory with %d shots at a time: going on with %d",
            self._context.rank,
            self._context.host,
            tried,
            self.size,
        )
        return True

    def _free(self) -> None:
        if self._context.device.type == "cuda":
            torch.cuda.empty_cache()
