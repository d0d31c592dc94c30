"""The watch beside the computation: requests to stop, signals within a step, ranks that hang.

Batch systems and terminals request a stop by a signal. It is noted now and obeyed together: the
ranks agree between two steps, so that all stop at the same one.

`Watch` is a thread of each rank. It talks to the others through a connection of its own to the
store of the context, so that neither a long computation nor a collective that never ends keeps it
from doing so. `liveness` concludes from the reports of other ranks which is missing. Ranks that
raise are up to `failure`.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn, Self

import torch

from hpcfwi.errors import InversionFailure, Stopped
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.failure import abort, tell
from hpcfwi.parallel.liveness import MissingRank, Monitor, Report, Reporter

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


log = logging.getLogger("hpcfwi")

GRACE = 30.0  # s from a signal until the step that is in work is given up
HEARTBEAT_WAIT = 120.0  # s, at least, that ranks wait for a sign of life
TICK = 1.0  # s from one look of the thread to the next
REPORT = 5  # ticks from one report to the next
ABORT_WAIT = 5.0  # s for MPI to end the job

# What rank 0 may tell the others to leave with: not 0, as nobody has reached the end there.
_CODES = {"1": 1, "3": 3}
_NAMES = {number.name for number in SIGNALS}


class Watch:
    """Watches this rank and the others while it is open; use it in a `with` statement.

    A signal that was noted on any rank is known to all of them about a tick later. Rank 0
    then calls `save`. If the ranks have not agreed to stop `grace` seconds after it, rank 0 calls
    it again, and all leave with exit code 3. If a rank is not heard of for `wait` seconds (or
    longer, where pieces of work take long: see `liveness.Monitor`) while another waits, the job
    ends with exit code 1.

    save: writes what is done to disk, unless it is there, and returns the words for what the same
    command goes on from, "epoch 4"; called on rank 0 only, in the watching thread, while the main
    thread computes.
    tick: s from one look at all this to the next.
    """

    def __init__(
        self,
        context: Context,
        stop: StopRequest,
        save: Callable[[], str],
        *,
        grace: float = GRACE,
        wait: float = HEARTBEAT_WAIT,
        tick: float = TICK,
    ) -> None:
        self._context, self._stop, self._save = context, stop, save
        self._grace, self._wait, self._tick = grace, wait, tick
        tellings = context.all_gather((context.host, secrets.token_hex(8)))
        self._hosts = [host for host, _ in tellings]
        _, token = tellings[0]
        self._client = _StoreClient(context, f"watch-{token}") if context.size > 1 else None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        # Rank 0 may next be in a call that keeps Python to itself until all are there, such as
        # HDF5's collective ones: its store would not answer those that are still connecting.
        context.barrier()

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:
            tell(error, f"watch of rank {self._context.rank} on {self._context.host}")
            self._end(1)

    def _watch(self) -> None:
        """Look at everything once a tick, until the watch is closed or this process ends."""
        clock = _Clock(2 * self._tick)
        reporter = Reporter(self._context.heartbeat)
        monitor = self._make_monitor(clock.read())
        deadline: float | None = None
        for look in itertools.count():
            signal = self._stop.wait(self._tick)
            now = clock.read()
            if self._closed.is_set():
                return
            if self._client is not None:
                report = reporter.look(now)
                due = look % REPORT == 0
                signal = self._client.exchange(signal, report if due else None)
                monitor.note(self._context.rank, report, now)
                for rank, other in self._client.reports.items():
                    monitor.note(rank, other, now)
                missing = monitor.find_missing(now)
                if missing is not None:
                    self._end_for(missing)
            if self._client is not None and self._client.code is not None:
                _leave(self._client.code)
            if signal is None:
                continue
            if deadline is None:
                deadline = now + self._grace
                self._save_early(signal)
            if not self._context.is_root:
                if now > deadline + self._wait:
                    _leave(3)
            # Not while the main threads decide whether to stop by themselves.
            elif now >= deadline and self._stop.deciding.acquire(blocking=False):
                self._give_up(signal)

    def _make_monitor(self, now: float) -> Monitor:
        """Rank 0 looks after all ranks, the others after rank 0 alone, and let it go first."""
        context = self._context
        silence = 3 * REPORT * self._tick
        if context.is_root:
            return Monitor(range(context.size), self._wait, silence, now)
        # One after the other: the first that ends the job ends the others before they speak.
        later = (2 * REPORT + min(context.rank, 20)) * self._tick
        return Monitor({0, context.rank}, self._wait + later, silence, now)

    def _save_early(self, signal: str) -> None:
        """Save at once on rank 0, because not every sender of a signal waits for the grace."""
        if self._context.is_root:
            try:
                saved = self._save()
            except Exception as error:
                log.warning("The checkpoint cannot be written (%s)", error)
            else:
                if self._grace > 0.0:
                    work = self._context.heartbeat.work
                    log.info("%s: %s is saved; %s has %g s", signal, saved, work, self._grace)

    def _give_up(self, signal: str) -> NoReturn:
        """Save on rank 0, log it, and let all ranks leave together."""
        code = 3
        try:
            saved = self._save()
        except Exception as error:
            tell(error)
            code = 1
        else:
            work = self._context.heartbeat.work
            tell(
                Stopped(
                    f"stopped by {signal} in the middle of {work}, which is given up; "
                    f"the same command goes on from {saved}"
                )
            )
        self._dismiss(code)
        _leave(code)

    def _dismiss(self, code: int) -> None:
        """Let the other ranks leave with an exit code, and wait until they know it; on rank 0."""
        if self._client is not None:
            self._client.dismiss(code)
            time.sleep(3 * self._tick)  # the store ends with this process

    def _end_for(self, missing: MissingRank) -> NoReturn:
        host = self._hosts[missing.rank]
        tell(
            InversionFailure(
                f"rank {missing.rank} on {host} has not answered for {missing.seconds:.0f} s "
                f"(last seen in {missing.work}): ended"
            )
        )
        if self._context.is_root:
            self._dismiss(1)
        self._end(1)

    def _end(self, code: int) -> NoReturn:
        """End all ranks, those that hang as well, and even if MPI itself hangs."""
        threading.Thread(target=abort, args=(self._context.comm, code), daemon=True).start()
        time.sleep(ABORT_WAIT)
        os._exit(code)

    def __enter__(self) -> Self:
        if self._client is not None:
            self._client.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._stop.wake()
        self._thread.join()
        if self._client is not None:
            self._client.close()


class _StoreClient:
    """Carries messages to and from the store in a thread that may be held up there for ever.

    A store whose host has stopped lets its callers wait, whatever timeout it was given. What has
    come in so far is here: signal: one that some rank has received; reports: of the ranks that this
    one looks after, itself left out; code: with which all may leave now.
    """

    def __init__(self, context: Context, prefix: str) -> None:
        assert context.store is not None, "several ranks have a store"
        self.signal: str | None = None
        self.reports: dict[int, Report] = {}
        self.code: int | None = None
        self._rank = context.rank
        self._others = list(range(1, context.size)) if context.is_root else [0]
        # The context's connection is taken while the main thread waits in a call of its own.
        self._store = context.store.clone()
        self._prefix = prefix
        if context.is_root:
            for rank in range(context.size):
                self._store.set(self._key(rank), Report().encode())
        self._signal: str | None = None
        self._report: Report | None = None
        self._called = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="client", daemon=True)

    def exchange(self, signal: str | None, report: Report | None) -> str | None:
        """Hand in this rank's signal and report, without waiting; a signal known to the ranks."""
        self._signal = signal
        self._report = report or self._report
        self._called.set()
        return self.signal or signal

    def dismiss(self, code: int) -> None:
        """Tell all ranks to leave with an exit code."""
        self._store.set(self._key("word"), str(code))

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed = True
        self._called.set()
        self._thread.join(TICK)
        self._store.close()  # rank 0 has room for one such connection of each rank

    def _run(self) -> None:
        while True:
            self._called.wait()
            self._called.clear()
            if self._closed:
                return
            try:
                self._carry()
            except RuntimeError:  # the rank that kept the store has gone
                return

    def _carry(self) -> None:
        word = self._key("word")
        if self._signal is not None and self.signal is None:
            self._store.compare_set(word, "", self._signal)
        said = (self._store.look([word])[0] or b"").decode()
        if said in _CODES:
            self.code = _CODES[said]
        elif said in _NAMES:
            self.signal = said
        report, self._report = self._report, None
        if report is None:
            return
        self._store.set(self._key(self._rank), report.encode())
        found = self._store.look(map(self._key, self._others))
        self.reports = {
            rank: Report.decode(text)
            for rank, text in zip(self._others, found, strict=True)
            if text is not None
        }

    def _key(self, name: int | str) -> str:
        return f"{self._prefix}/{name}"


class _Clock:
    """Seconds that this thread has been awake for.

    A machine that sleeps, or is too busy to let the thread look at the clock, is not late: a step
    between two readings counts up to `longest` seconds.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._read, self._seconds = time.monotonic(), 0.0

    def read(self) -> float:
        now = time.monotonic()
        self._seconds += min(now - self._read, self._longest)
        self._read = now
        return self._seconds


def _leave(code: int) -> NoReturn:
    """End this process alone and at once, the main thread in whatever it does."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
