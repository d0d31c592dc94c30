"""How things are timed, and where: repetitions in turns, peaks of memory, the machine's name."""

from __future__ import annotations

import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hpcfwi.parallel.rendezvous import usable_cores
from hpcfwi.system import peak_resident_bytes, resident_bytes

PACKAGES = ("hpcfwi", "torch", "numba", "numpy", "h5py", "mpi4py", "deepwave")


def time_in_turns(
    works: Mapping[str, Callable[[], object]], repetitions: int
) -> dict[str, list[float]]:
    """Seconds of each work, by its name, `repetitions` times in turn (A B A B).

    What else the machine does meets all of them alike. Each is run once before, not counted.
    """
    for work in works.values():
        work()
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repetitions):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def median_ratio(numerator: list[float], denominator: list[float]) -> float:
    """The median of the ratios within each turn."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))


def measure_growth_of_memory(work: Callable[[], object]) -> int:
    """Bytes that a work adds to the resident size of this process at its peak.

    Linux forgets the peak so far on request; elsewhere what came before hides smaller works.
    """
    gc.collect()  # or what is freed meanwhile would be taken off
    forget = Path("/proc/self/clear_refs")
    if forget.exists():
        forget.write_text("5")
    before = resident_bytes()
    work()
    return max(0, peak_resident_bytes() - before)


def describe_machine(threads: int) -> dict[str, Any]:
    """Where and when numbers were taken, and with what."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "machine": platform.node(),
        "cpu": models[0] if models else platform.processor(),
        "cores": len(usable_cores()),
        "threads": threads,
        "load": [round(load, 2) for load in os.getloadavg()],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
