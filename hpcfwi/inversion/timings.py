"""Where the time of an epoch went, and how much memory it took: measured, added up over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from time import perf_counter

from hpcfwi.parallel.context import Context
from hpcfwi.system import peak_resident_bytes


@dataclass
class Times:
    """Seconds of a rank: its shots, waiting for their data, for other ranks, and sums."""

    compute: float = 0.0
    read: float = 0.0
    wait: float = 0.0
    reduce: float = 0.0

    @contextmanager
    def spent_on(self, what: str) -> Iterator[None]:
        """What is done within counts for this, and for nothing that contains it."""
        others = self._sum() - getattr(self, what)
        started = perf_counter()
        try:
            yield
        finally:
            within = self._sum() - getattr(self, what) - others
            spent = perf_counter() - started - within
            setattr(self, what, getattr(self, what) + spent)

    def add(self, other: Times) -> None:
        """Add what was measured of something else."""
        for what, part in asdict(other).items():
            setattr(self, what, getattr(self, what) + part)

    def _sum(self) -> float:
        return sum(asdict(self).values())


@dataclass(frozen=True)
class Timings:
    """Of an epoch.

    times: means over ranks; simulations: shots simulated, by all ranks together; seconds: the whole
    of it; memory: peak of any rank so far, MB.
    """

    times: Times
    simulations: int
    seconds: float
    memory: float

    def describe(self) -> str:
        """The parts of the time in percent."""
        parts = asdict(self.times)
        whole = sum(parts.values()) or 1.0
        return ", ".join(f"{what} {100.0 * part / whole:.0f} %" for what, part in parts.items())


def measure_timings(times: Times, simulations: int, seconds: float, context: Context) -> Timings:
    """The timings of an epoch that took this rank so long; collective."""
    ranks = context.all_gather((asdict(times), peak_resident_bytes()))
    means = {
        part.name: sum(rank[part.name] for rank, _ in ranks) / context.size
        for part in fields(times)
    }
    return Timings(Times(**means), simulations, seconds, max(peak for _, peak in ranks) / 2**20)
