"""Liveness: ranks that work, ranks that wait for others, and ranks that have stopped reporting.

The main thread of a rank updates its `Heartbeat`. A `Report` of it is sent to other ranks, and
their `Monitor` determines from the reports which rank is missing. `watch` has the threads, clocks
and messages; the functions here take the time as an argument.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

LENIENCE = 10  # factor of the longest piece of work of any rank
BEGINNING = "its start"  # the work of a rank that has not reported any


class Heartbeat:
    """The signs of life of a rank's main thread; other threads may read them at any time.

    work: description of the current work; signs: number of signs of life; pieces: number of
    completed pieces of work; waits: number of nested waits that the thread is in.
    """

    def __init__(self) -> None:
        self.work = BEGINNING
        self.signs, self.pieces, self.waits = 0, 0, 0

    def begin(self, work: str) -> None:
        """Begin some work, such as "epoch 7"."""
        self.work = work
        self.signs += 1

    def beat(self) -> None:
        """Note that a piece of work is done, such as a chunk of shots."""
        self.pieces += 1
        self.signs += 1

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark a wait for other ranks or for a disk, during which this rank is not late."""
        self.waits += 1
        self.signs += 1
        try:
            yield
        finally:
            self.waits -= 1
            self.signs += 1


@dataclass(frozen=True)
class Report:
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

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: bytes) -> Report:
        return cls(**json.loads(text))


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
