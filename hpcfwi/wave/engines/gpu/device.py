"""One GPU: its properties, compiled kernels on disk, the shape of tiles, and captured launches.

Kernels are compiled once for a card and kept where `hpcfwi.system` allows it. A few shapes of the
tiles in which the largest kernel works are timed on the first large problem, and the fastest is
remembered in a file beside the compiled kernels, by card, dimensions, order, precision, whether a
step is within the card's cache, and Triton's version.

On CUDA and ROCm devices the launches of a stretch of steps are captured in a graph and replayed;
the number of the step is in device memory, where kernels look for it. Elsewhere they are launched
one by one. The launches of a step are in `sweep`.
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
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from hpcfwi.errors import WriteFailure
from hpcfwi.system import Place, find_place, written_whole


def cache_of(device: torch.device) -> int | None:
    """Return the size of the device's second-level cache in bytes, None if no driver knows it."""
    if device.type != "cuda":
        return None
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


VARIABLE = "TRITON_CACHE_DIR"

log = logging.getLogger(__name__)


def find_disk() -> Place:
    """Return the directory of compiled kernels; raises `InputError` as `find_place` does."""
    return find_place(VARIABLE, "triton")


@cache
def keep_kernels() -> None:
    """Have the kernels kept, from now on; says so once where that cannot be.

    Triton compiles into a directory in any case, and knows it by the environment variable alone.
    """
    folder, problem = find_disk()
    if folder is None:
        log.warning(
            "The gpu engine is compiled for this process only, as %s; "
            "%s may name a directory that is yours alone",
            problem,
            VARIABLE,
        )
        temporary = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    os.environ[VARIABLE] = str(folder or temporary)


# Cells of all shots from which on a timing means something: a captured launch takes a microsecond.
LARGE = 1_000_000


@dataclass(frozen=True)
class Tile:
    """Cells of a program along each axis, and warps that share them."""

    z: int
    y: int
    x: int
    warps: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.z, self.y, self.x


# The first is taken where nothing has been timed. In two dimensions four cells a thread, or two:
# more take so many registers that too few warps are left to wait for the memory. In three the
# planes of a tile are gone through one by one, with two or four cells of each a thread.
CANDIDATES = {
    2: (
        Tile(8, 1, 128, 8),
        Tile(4, 1, 256, 8),
        Tile(16, 1, 64, 8),
        Tile(4, 1, 128, 4),
        Tile(4, 1, 128, 8),
    ),
    3: (
        Tile(32, 8, 64, 8),
        Tile(32, 16, 32, 4),
        Tile(32, 16, 64, 8),
        Tile(64, 16, 64, 16),
        Tile(16, 8, 64, 8),
    ),
}


def find_tile(key: str, ndim: int, cells: int, seconds: Callable[[Tile], float]) -> Tile:
    """The fastest tile for what `key` describes, timed now if it is not known yet.

    cells: of all shots; where they are few, nothing is timed; seconds: times a tile.
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
    except (OSError, ValueError):  # none yet, or one that cannot be read: it is made again
        return {}
    return known


def _remember(file: Path, key: str, tile: Tile) -> None:
    known = {**_read(file), key: asdict(tile)}
    # A file that cannot be written costs a second at the next start
    with suppress(WriteFailure), written_whole(file) as whole:
        whole.write(json.dumps(known, indent=2).encode())


# Steps of a captured stretch, at least: replaying a graph takes the host some microseconds.
STRETCH = 32

# step(n, at): makes the launches of step n; at = n less the clock's time.
Step = Callable[[int, int], None]


class Loop:
    """Runs one kind of step over and over; stretches that come again are captured and replayed.

    direction: of the steps, 1 or -1; period: steps after which launches repeat. The steps are given
    to `run`, as a loop that held them would hold the arrays, and be held by them.
    """

    def __init__(self, clock: Tensor, direction: int, period: int) -> None:
        self._clock, self._direction, self._period = clock, direction, period
        self._stretch = -(-STRETCH // period) * period
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph | None] = {}

    def run(self, step: Step, start: int, count: int) -> None:
        """`count` steps from step `start` on."""
        self._clock.fill_(start)
        for done in range(0, count, self._stretch):
            length = min(self._stretch, count - done)
            self._play(step, start + self._direction * done, length)

    def _play(self, step: Step, start: int, length: int) -> None:
        """The first time as plain launches, so that kernels are compiled; then captured."""
        key = (start % self._period, length)
        if key not in self._graphs or self._clock.device.type != "cuda":
            self._launch(step, start, length)
            self._graphs[key] = None
            return
        graph = self._graphs[key]
        if graph is None:
            graph = self._graphs[key] = self._capture(step, start, length)
        graph.replay()

    def _capture(self, step: Step, start: int, length: int) -> torch.cuda.CUDAGraph:
        """Capture steps in a stream of the clock's device, which torch's own need not be."""
        graph, device = torch.cuda.CUDAGraph(), self._clock.device
        stream, before = torch.cuda.Stream(device), torch.cuda.current_stream(device)  # type: ignore[no-untyped-call]
        try:
            # Other threads, such as NCCL's, may go on calling CUDA meanwhile.
            with (
                no_collection(),
                torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
            ):
                self._launch(step, start, length)
        finally:
            # Where a capture cannot be ended torch stays in its stream
            torch.cuda.set_stream(before)
        return graph

    def _launch(self, step: Step, start: int, length: int) -> None:
        for k in range(length):
            at = self._direction * k
            step(start + at, at)
        self._clock.add_(self._direction * length)


@contextmanager
def no_collection() -> Iterator[None]:
    """Without Python's garbage collector, which may destroy other graphs, or unload modules.

    Neither is allowed while a graph is captured.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
