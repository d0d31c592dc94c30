"""The shape of the tiles that the `gpu` engine's largest kernel works in, tuned once for a card.

A few candidates are timed on the first large problem, and the fastest is remembered in a file
beside the compiled kernels, by card, dimensions, order, precision, whether a step is within the
card's cache, and Triton's version.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from hpcfwi.errors import WriteFailure
from hpcfwi.files import written_whole
from hpcfwi.wave.engines.gpu.disk import find_disk

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
