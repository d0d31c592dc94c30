"""The watch of a computation: requests to stop, signals within a step, and ranks that hang.

Batch systems and terminals request a stop by a signal. The signal is noted, and the ranks agree to
stop between two steps, so that all stop at the same one.

`Watch` is a thread of each rank. It communicates with the others through a separate connection to
the store of the context, so that it works during a long computation or a collective that never
ends. A rank sends reports of its `Heartbeat` to others, whose `Monitor` determines from them which
rank is missing. `failure` handles ranks that raise an exception.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import secrets
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Self

import torch

from hpcfwi.errors import InversionFailure, Stopped
from hpcfwi.parallel.context import BEGINNING, Context, Heartbeat
from hpcfwi.parallel.failure import SIGNALS, abort, handling, tell

if TYPE_CHECKING:
    from mpi4py import MPI

log = logging.getLogger("hpcfwi")


class StopRequest:
    """Notes signals that request a stop; for a `with` statement in the main thread.

    deciding: a lock that is held while the ranks agree, and for good after they agreed to stop.
    """

    def __init__(self, context: Context) -> None:
        self.deciding = threading.Lock()
        self._context = context
        self._received = 0
        self._has_agreed = False
        self._handling = handling(self._note)
        self._former_wakeup = -1
        self._wakeup_reader, self._wakeup_writer = socket.socketpair()
        self._wakeup_reader.setblocking(False)
        self._wakeup_writer.setblocking(False)

    def agree_to_stop(self) -> str | None:
        """Return the name of a signal that any rank has received, the same on all; collective."""
        # After an earlier agreement this thread already holds the lock.
        self.deciding.acquire(blocking=not self._has_agreed)
        received = torch.zeros(len(SIGNALS), dtype=torch.int64)
        if self._received:
            received[SIGNALS.index(signal.Signals(self._received))] = 1
        try:
            counts = self._context.sum(received)
        except RuntimeError:  # a rank has died, and the remaining ranks will call this again
            if not self._has_agreed:
                self.deciding.release()
            raise
        self._has_agreed = bool(counts.any())
        if not self._has_agreed:
            self.deciding.release()
            return None
        return SIGNALS[int(counts.argmax())].name

    def wait(self, timeout: float) -> str | None:
        """Wait in another thread for a signal of this rank, and return it; None if there is none.

        It waits up to `timeout` seconds, or until `wake` is called. It is faster than the main
        thread, which notices a signal only after a long computation.
        """
        if select.select([self._wakeup_reader], [], [], timeout)[0]:
            rung = [number for number in self._wakeup_reader.recv(4096) if number in SIGNALS]
            self._received = rung[-1] if rung else self._received
        return signal.Signals(self._received).name if self._received else None

    def wake(self) -> None:
        """End a `wait` of another thread."""
        self._wakeup_writer.send(b"\0")

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._received = number

    def __enter__(self) -> Self:
        # Python runs handlers between two instructions of the main thread, but writes to this
        # socket at once.
        writer = self._wakeup_writer.fileno()
        self._former_wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._handling.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._handling.__exit__(None, None, None)
        signal.set_wakeup_fd(self._former_wakeup)
        self._wakeup_reader.close()
        self._wakeup_writer.close()


LENIENCE = 10  # factor of the longest piece of work of any rank


class Report(NamedTuple):
    """The state of a rank as it reports it.

    number: increases with each report; work: description of the current work; waiting: True if the
    rank waits for others; since: time since the last sign of life, s; longest: duration of its
    longest piece of work, s, None before the first one is done.
    """

    number: int = 0
    work: str = BEGINNING
    waiting: bool = False
    since: float = 0.0
    longest: float | None = None


class Reporter:
    """Reads a heartbeat from time to time and makes reports of it.

    The duration of a piece of work is measured between readings. If it begins and ends between two
    readings, it is at most the time between them.
    """

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        self._signs, self._pieces, self._number = -1, heartbeat.pieces, 0
        self._since = self._began = 0.0
        self._longest: float | None = None

    def look(self, now: float) -> Report:
        """Return the report at a time in seconds."""
        signs, pieces, waiting = (
            self._heartbeat.signs,
            self._heartbeat.pieces,
            self._heartbeat.waits > 0,
        )
        if pieces != self._pieces:
            self._longest = max(self._longest or 0.0, now - self._began)
        if signs != self._signs:
            self._since = self._began = now
        self._signs, self._pieces = signs, pieces
        self._number += 1
        return Report(self._number, self._heartbeat.work, waiting, now - self._since, self._longest)


@dataclass(frozen=True)
class MissingRank:
    """A rank for which the others wait in vain, the time since its last sign of life, its work."""

    rank: int
    seconds: float
    work: str


class Monitor:
    """The last reports of some ranks, with their times.

    wait: s without a sign of life after which a rank is missing, or `LENIENCE` times the longest
    piece of work if that is more; silence: s without a report after which the last report of a
    rank (for example, that it is waiting) is no longer valid.
    """

    def __init__(self, ranks: Iterable[int], wait: float, silence: float, now: float) -> None:
        self._wait, self._silence = wait, silence
        self._heard = {rank: (Report(), now) for rank in ranks}

    def note(self, rank: int, report: Report, now: float) -> None:
        """Store a report; one that was stored before has no effect."""
        if report.number != self._heard[rank][0].number:
            self._heard[rank] = (report, now)

    def is_silent(self, rank: int, now: float) -> bool:
        """Return True if the last report of a rank is no longer valid."""
        return now - self._heard[rank][1] > self._silence

    def find_missing(self, now: float) -> MissingRank | None:
        """Return the rank that is late for longest, if another has waited as long; None if none is.

        The duration of a piece of work is not known before the first one is done. Until then a rank
        is missing only if it also stops sending reports.
        """
        pieces = [r.longest for r, _ in self._heard.values() if r.longest is not None]
        wait = max(self._wait, LENIENCE * max(pieces, default=0.0))
        late: list[MissingRank] = []
        waits = False
        for rank, (report, heard) in self._heard.items():
            silent = now - heard
            if self.is_silent(rank, now):
                seconds = silent + (0.0 if report.waiting else report.since)
            elif report.waiting:
                waits |= report.since + silent > wait
                continue
            else:
                seconds = report.since + silent if pieces else 0.0
            if seconds > wait:
                late.append(MissingRank(rank, seconds, report.work))
        return max(late, key=lambda rank: rank.seconds) if late and waits else None


GRACE = 30.0  # s from a signal until the current step is given up
HEARTBEAT_WAIT = 120.0  # least time that ranks wait for a sign of life, s
TICK = 1.0  # s between two checks of the thread
REPORT = 5  # ticks between two reports
ABORT_WAIT = 5.0  # s for MPI to end the job

# Exit codes that rank 0 may send to the others; 0 is not included, because no rank has finished.
_CODES = {"1": 1, "3": 3}
_NAMES = {number.name for number in SIGNALS}


class Watch:
    """A thread that watches this rank and the others while it is open; for a `with` statement.

    All ranks learn of a signal on any rank about a tick later. Rank 0 then calls `save`. If the
    ranks have not agreed to stop `grace` seconds after the signal, rank 0 calls `save` again, and
    all exit with code 3. Ranks that cannot reach rank 0 exit with 1 after `wait` more seconds. If a
    rank gives no sign of life for `wait` seconds (or longer if pieces of work take long, see
    `Monitor`) while another rank waits, the job ends with exit code 1. With `wait=inf`,
    ranks that hang are not detected.

    save: a function that writes the finished work to disk if this has not been done, and returns a
    name for the point from which the same command continues, such as "epoch 4" (slurm/job.sh looks
    for these names in the log); it is called on rank 0 only, in the watching thread, while the main
    thread computes; tick: s between two checks.
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
        token = context.broadcast(secrets.token_hex(8))
        self._client = _StoreClient(context, f"watch-{token}") if context.size > 1 else None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        # The next call of rank 0, such as a collective call of HDF5, may hold Python's lock until
        # all ranks have joined it. Its store would then not answer ranks that are still connecting.
        context.barrier()

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:
            tell(error, f"watch of rank {self._context.rank} on {self._context.host}")
            end_ranks(self._context.comm, 1)

    def _watch(self) -> None:
        """Check everything once a tick, until the watch is closed or this process ends."""
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
                _exit_now(self._client.code)
            if signal is None:
                continue
            if deadline is None:
                deadline = now + self._grace
                self._save_early(signal)
            if not self._context.is_root:
                # Rank 0, which would end the job, is dead or cannot be reached.
                if now > deadline + self._wait and monitor.is_silent(0, now):
                    tell(
                        InversionFailure(
                            f"rank 0 has not answered since {signal}: the job is ended"
                        )
                    )
                    _exit_now(1)
            # Until the deadline, the main threads may agree to stop by themselves.
            elif now >= deadline and self._stop.deciding.acquire(blocking=False):
                self._give_up(signal)

    def _make_monitor(self, now: float) -> Monitor:
        """Return a monitor of all ranks on rank 0, and of rank 0 only on the others.

        The others wait longer, so that rank 0 reports a missing rank first.
        """
        context = self._context
        silence = 3 * REPORT * self._tick
        if context.is_root:
            return Monitor(range(context.size), self._wait, silence, now)
        # The ranks report it at different times, as the first exit ends the job for the others.
        later = (2 * REPORT + min(context.rank, 20)) * self._tick
        return Monitor({0, context.rank}, self._wait + later, silence, now)

    def _save_early(self, signal: str) -> None:
        """Save at once on rank 0, as the sender of a signal may not wait for `grace` seconds."""
        if self._context.is_root:
            try:
                saved = self._save()
            except Exception as error:
                log.warning("The checkpoint cannot be written (%s)", error)
            else:
                if self._grace > 0.0:
                    work = self._context.heartbeat.work
                    log.info("%s: %s is saved; %s may take %g s", signal, saved, work, self._grace)

    def _give_up(self, signal: str) -> NoReturn:
        """Save on rank 0, log it, and let all ranks exit together."""
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
                    f"stopped by {signal} during {work}; the same command continues from {saved}"
                )
            )
        self._dismiss(code)
        _exit_now(code)

    def _dismiss(self, code: int) -> None:
        """Tell the other ranks to exit with a code, and wait until they read this; on rank 0."""
        if self._client is not None:
            self._client.dismiss(code)
            time.sleep(3 * self._tick)  # the store ends with this process

    def _end_for(self, missing: MissingRank) -> NoReturn:
        host = self._context.hosts[missing.rank]
        tell(
            InversionFailure(
                f"rank {missing.rank} on {host} has not answered for {missing.seconds:.0f} s "
                f"(last seen in {missing.work}): the job is ended"
            )
        )
        if self._context.is_root:
            self._dismiss(1)
        end_ranks(self._context.comm, 1)

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
    """A thread that exchanges messages with the store.

    It is separate from the watch, because a call to a store whose process has stopped waits for
    minutes. job_signal: a signal that some rank has received; reports: the
    reports of the other ranks that this one monitors; code: exit code with which all ranks must
    exit now.
    """

    def __init__(self, context: Context, prefix: str) -> None:
        assert context.store is not None, "several ranks have a store"
        self.job_signal: str | None = None
        self.reports: dict[int, Report] = {}
        self.code: int | None = None
        self._rank = context.rank
        self._others = list(range(1, context.size)) if context.is_root else [0]
        # The main thread may wait in a call through the context's connection.
        self._store = context.store.clone()
        self._prefix = prefix
        if context.is_root:
            for rank in range(context.size):
                self._store.set(self._key(rank), json.dumps(Report()))
        self._own_signal: str | None = None
        self._report: Report | None = None
        self._called = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="client", daemon=True)

    def exchange(self, signal: str | None, report: Report | None) -> str | None:
        """Queue this rank's signal and report for sending; return a signal of any rank."""
        self._own_signal = signal
        self._report = report or self._report
        self._called.set()
        return self.job_signal or signal

    def dismiss(self, code: int) -> None:
        self._store.set(self._key("order"), str(code))

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed = True
        self._called.set()
        self._thread.join(TICK)
        self._store.close()  # rank 0 has file descriptors for one such connection of each rank

    def _run(self) -> None:
        while True:
            self._called.wait()
            self._called.clear()
            if self._closed:
                return
            try:
                self._carry()
            except RuntimeError:  # the rank with the store has ended
                return

    def _carry(self) -> None:
        # One entry has either the name of a signal or an exit code, so that a signal that comes
        # late does not replace the code.
        order = self._key("order")
        if self._own_signal is not None and self.job_signal is None:
            self._store.compare_set(order, "", self._own_signal)
        found = (self._store.look([order])[0] or b"").decode()
        if found in _CODES:
            self.code = _CODES[found]
        elif found in _NAMES:
            self.job_signal = found
        report, self._report = self._report, None
        if report is None:
            return
        self._store.set(self._key(self._rank), json.dumps(report))
        others = self._store.look(map(self._key, self._others))
        self.reports = {
            rank: Report(*json.loads(text))
            for rank, text in zip(self._others, others, strict=True)
            if text is not None
        }

    def _key(self, name: int | str) -> str:
        return f"{self._prefix}/{name}"


class _Clock:
    """A clock that counts the seconds during which this thread was awake.

    The time between two readings counts as at most `longest` seconds, so that a machine that sleeps
    or is too busy to run the thread does not appear to be late.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._read, self._seconds = time.monotonic(), 0.0

    def read(self) -> float:
        now = time.monotonic()
        self._seconds += min(now - self._read, self._longest)
        self._read = now
        return self._seconds


def end_ranks(comm: MPI.Comm | None, code: int) -> NoReturn:
    """End the ranks as `abort` does, and this one even if MPI hangs."""
    threading.Thread(target=abort, args=(comm, code), daemon=True).start()
    time.sleep(ABORT_WAIT)
    os._exit(code)


def _exit_now(code: int) -> NoReturn:
    """End this process at once, but no other, whatever the main thread does."""
    with suppress(OSError):  # the disk of the output is full
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
