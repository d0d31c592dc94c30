"""Functions for one GPU: compiled kernels on disk, the choice of tiles, and captured launches.

Kernels are compiled once for a card, and stored on disk if `hpcfwi.system` finds a directory for
them. The largest kernel works in tiles. A few shapes of tiles are timed on the first large problem,
and the fastest one is stored in a file in the directory of the compiled kernels. Its key is the
card, the dimensions, the order, the precision, whether the data of a step fit into the card's
cache, and the version of Triton.

On CUDA and ROCm devices, the launches of a stretch of steps are captured in a graph and replayed;
kernels read the number of the step from device memory. On other devices, and where layers swap
planes, the kernels are launched one by one. The launches of a step are in `sweep`.
"""

from __future__ import annotations

import atexit
import gc
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from hpcfwi.errors import WriteFailure
from hpcfwi.system import Place, find_place, written_whole


def cache_of(device: torch.device) -> int | None:
    """Return the size of the device's second-level cache in bytes, or None if it is unknown."""
    if device.type != "cuda":
        return None
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


def on_device(device: torch.device) -> AbstractContextManager:
    """Return a context in which kernels are launched on this device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


VARIABLE = "TRITON_CACHE_DIR"

log = logging.getLogger(__name__)


def find_disk() -> Place:
    """Return the directory of compiled kernels; raise `InputError` like `find_place`."""
    return find_place(VARIABLE, "triton")


@cache
def keep_kernels() -> None:
    """Set the directory in which Triton stores compiled kernels; warn once if none can be kept.

    Triton always compiles into a directory, which can be set by an environment variable only. If
    none can be kept, a temporary directory is used.
    """
    folder, problem = find_disk()
    if folder is None:
        log.warning(
            "The gpu engine is compiled for this process only, because %s; "
            "%s may name a directory that only you can access",
            problem,
            VARIABLE,
        )
        temporary = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    os.environ[VARIABLE] = str(folder or temporary)


# Smallest number of cells, of all shots, on which tiles are timed: with fewer, the timing is
# dominated by the launch, which takes a microsecond even if captured.
LARGE = 1_000_000


@dataclass(frozen=True)
class Tile:
    """The number of cells of a program along each axis, and the number of its warps."""

    z: int
    y: int
    x: int
    warps: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.z, self.y, self.x


# The first tile of each list is the default where nothing has been timed. A program computes the
# planes (in 2-D, the rows) of a tile one after the other, with one or two cells of each plane per
# thread: more cells take so many registers that too few warps remain to hide the memory's latency.
CANDIDATES = {
    2: (Tile(8, 1, 128, 4), Tile(8, 1, 64, 2), Tile(8, 1, 256, 8), Tile(32, 1, 128, 4)),
    3: (Tile(32, 8, 32, 8), Tile(16, 8, 32, 8), Tile(32, 16, 64, 16), Tile(32, 8, 32, 4)),
}


def find_tile(key: str, ndim: int, cells: int, seconds: Callable[[Tile], float]) -> Tile:
    """Return the fastest tile for a key, from the file of tiles or by timing the candidates.

    cells: number of cells of all shots; if it is below `LARGE`, nothing is timed, and the first
    candidate is the default; seconds: returns the time that a tile takes.
    """
    folder = find_disk().path
    file = folder / "tiles.json" if folder else None
    known = _read(file).get(key) if file else None
    for tile in CANDIDATES[ndim]:
        if asdict(tile) == known:
            return tile
    if cells < LARGE:
        return CANDIDATES[ndim][0]
    fastest = min(CANDIDATES[ndim], key=seconds)
    if file:
        _remember(file, key, fastest)
    return fastest


def _read(file: Path) -> dict[str, dict[str, int]]:
    try:
        known: dict[str, dict[str, int]] = json.loads(file.read_text())
    except (OSError, ValueError):  # missing or unreadable: it will be written again
        return {}
    return known


def _remember(file: Path, key: str, tile: Tile) -> None:
    known = {**_read(file), key: asdict(tile)}
    # If the file cannot be written, the next start takes a second longer.
    with suppress(WriteFailure), written_whole(file) as whole:
        whole.write(json.dumps(known, indent=2).encode())


# Smallest number of steps in a graph, as each replay takes the host some microseconds.
STRETCH = 32

# step(n, at) launches the kernels of step n; at is n minus the time of the clock.
Step = Callable[[int, int], None]


class Loop:
    """A loop over steps of one kind, in which repeated stretches are captured and replayed.

    clock: the number of the step on the device; direction: 1 or -1; period: number of steps after
    which the launches repeat; captures: False if they cannot be captured. The function that
    launches a step is an argument of `run`, because a loop that stored it would be in a reference
    cycle with the arrays.
    """

    def __init__(self, clock: Tensor, direction: int, period: int, captures: bool = True) -> None:
        self._clock, self._direction, self._period = clock, direction, period
        self._captures = captures and clock.device.type == "cuda"
        self._stretch = -(-STRETCH // period) * period
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph | None] = {}

    def run(self, step: Step, start: int, count: int) -> None:
        """Run `count` steps, from step `start` on."""
        self._clock.fill_(start)
        for done in range(0, count, self._stretch):
            length = min(self._stretch, count - done)
            self._play(step, start + self._direction * done, length)

    def _play(self, step: Step, start: int, length: int) -> None:
        """Run a stretch of steps.

        The first time, the kernels are launched one by one, which compiles them; the second time,
        the launches are captured; from then on the graph is replayed.
        """
        key = (start % self._period, length)
        if key not in self._graphs or not self._captures:
            self._launch(step, start, length)
            self._graphs[key] = None
            return
        graph = self._graphs[key]
        if graph is None:
            graph = self._graphs[key] = self._capture(step, start, length)
        graph.replay()

    def _capture(self, step: Step, start: int, length: int) -> torch.cuda.CUDAGraph:
        """Capture steps in a graph.

        The stream belongs to the clock's device, as torch's default stream for captures may belong
        to another one.
        """
        graph, device = torch.cuda.CUDAGraph(), self._clock.device
        stream, before = torch.cuda.Stream(device), torch.cuda.current_stream(device)  # type: ignore[no-untyped-call]
        try:
            # This mode lets other threads, such as NCCL's, call CUDA during the capture.
            with (
                no_collection(),
                torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
            ):
                self._launch(step, start, length)
        finally:
            # If a capture fails to end, torch does not leave its stream.
            torch.cuda.set_stream(before)
        return graph

    def _launch(self, step: Step, start: int, length: int) -> None:
        for k in range(length):
            at = self._direction * k
            step(start + at, at)
        self._clock.add_(self._direction * length)


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable Python's garbage collector while a graph is captured.

    It may destroy other graphs or unload modules, which is not allowed during a capture.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
