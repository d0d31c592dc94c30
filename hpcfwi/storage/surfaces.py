"""Surfaces in text files: the depth below places, such as that of the sea floor.

A row a place, of numbers with blanks between them: `x depth` for a 2-D model, `y x depth` for a 3-D
one, in m. Empty lines and what follows a # are not looked at.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcfwi.errors import InputError, quote, refusing
from hpcfwi.host import check_regular, check_room

COLUMNS = {2: ("x", "depth"), 3: ("y", "x", "depth")}
# What is further away is a slip of the pen, and would overflow, m
_FURTHEST = 1e9


def read_surface(path: Path, ndim: int) -> NDArray[np.float64]:
    """The rows (row, ndim) of a surface for a model of so many axes, in the file's order.

    Raises `InputError`, naming the line, for what is no such row, and for a place that comes twice.
    """
    with refusing(str(path), "it cannot be read", "Check the name and its permissions."):
        check_regular(path)
        # Each number takes some characters there, and more bytes as an object here
        check_room(str(path), "the surface", 40.0 * path.stat().st_size, "Give fewer rows.")
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    expected = f"{ndim} numbers, {' '.join(COLUMNS[ndim])}, in m"
    seen: dict[tuple[float, ...], int] = {}
    rows = []
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        row = _read_numbers(words)
        if len(row) != ndim or not all(abs(value) <= _FURTHEST for value in row):
            raise InputError(
                f"{path}, line {number}",
                f"found {quote(line.strip())}, expected {expected}",
                "Give a row for each place, with blanks between the numbers.",
            )
        before = seen.setdefault(tuple(row[:-1]), number)
        if before != number:
            raise InputError(
                f"{path}, line {number}",
                f"found {quote(line.strip())}, but line {before} has the depth of this place",
                "Leave one of the two out.",
            )
        rows.append(row)
    if not rows:
        raise InputError(str(path), f"it has no row, expected {expected}", "Write at least one.")
    return np.array(rows)


def _read_numbers(words: list[str]) -> list[float]:
    """Nothing where one of them is not a number."""
    try:
        return [float(word) for word in words]
    except ValueError:
        return []
