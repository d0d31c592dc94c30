"""Liveness: which ranks work, which wait for others, and which are not heard of any more.

`Heartbeat` is what the main thread of a rank notes of itself, `Report` what is passed on of it, and
`Monitor` concludes from the reports which rank is missing. There are no threads, clocks or messages
here: `watch` has them, and passes the time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

LENIENCE = 10  # times the longest piece of work that any rank has had
BEGINNING = "its start"  # what a rank is in that has not said more


class Heartbeat:
    """The signs of life of a rank's main thread; other threads may read them at any time.

    work: in which it is, in words; signs: counts all signs of life; pieces: counts the pieces of it
    that are done; waits: how many waits the thread is in, one within the other.
    """

    def __init__(self) -> None:
        self.work = BEGINNING
        self.signs, self.pieces, self.waits = 0, 0, 0

    def begin(self, work: str) -> None:
        """Some work begins, such as "epoch 7"."""
        self.work = work
        self.signs += 1

    def beat(self) -> None:
        """A piece of work is done, such as a portion of shots."""
        self.pieces += 1
        self.signs += 1

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside, the thread waits for others, or for a disk, and cannot be late itself."""
        self.waits += 1
        self.signs += 1
        try:
            yield
        finally:
            self.waits -= 1
            self.signs += 1


@dataclass(frozen=True)
class Report:
    """A rank as it sees itself.

    number: grows from report to report; work: in which it is; waiting: for others; since: s from
    the last sign of life until now; longest: s that its longest piece of work took, None before the
    first is done.
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
    """Makes reports of a heartbeat that it looks at from time to time.

    A piece of work that comes and goes between two looks counts as no longer than the time from one
    to the next.
    """

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        self._signs, self._pieces, self._number = -1, heartbeat.pieces, 0
        self._since = self._began = 0.0
        self._longest: float | None = None

    def look(self, now: float) -> Report:
        """The report at a time in seconds."""
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
    """A rank that the others wait for in vain: for how many seconds, last seen in which work."""

    rank: int
    seconds: float
    work: str


class Monitor:
    """The reports of some ranks, and when each was heard last.

    wait: s without a sign of life after which a rank is missed, or `LENIENCE` times the
    longest piece of work if that is more; silence: s without a report after which what a rank said
    last, that it waits for instance, does not hold any more.
    """

    def __init__(self, ranks: Iterable[int], wait: float, silence: float, now: float) -> None:
        self._wait, self._silence = wait, silence
        self._heard = {rank: (Report(), now) for rank in ranks}

    def note(self, rank: int, report: Report, now: float) -> None:
        """Take down a report, which may be the one that is known already."""
        if report.number != self._heard[rank][0].number:
            self._heard[rank] = (report, now)

    def find_missing(self, now: float) -> MissingRank | None:
        """The rank that has been late for longest, if another has waited too long for it.

        Before a first piece of work is done nobody knows how long one takes. Until then a rank
        is only missed if it does not report either.
        """
        pieces = [r.longest for r, _ in self._heard.values() if r.longest is not None]
        wait = max(self._wait, LENIENCE * max(pieces, default=0.0))
        late: list[MissingRank] = []
        waits = False
        for rank, (report, heard) in self._heard.items():
            silent = now - heard
            if silent > self._silence:
                seconds = silent + (0.0 if report.waiting else report.since)
            elif report.waiting:
                waits |= report.since + silent > wait
                continue
            else:
                seconds = report.since + silent if pieces else 0.0
            if seconds > wait:
                late.append(MissingRank(rank, seconds, report.work))
        return max(late, key=lambda rank: rank.seconds) if late and waits else None
