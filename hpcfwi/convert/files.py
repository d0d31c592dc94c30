"""Several SEG-Y files that are read as one: their traces, one file after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hpcfwi.convert.layout import Layout
from hpcfwi.convert.segy import TraceReader
from hpcfwi.errors import InputError


@dataclass(frozen=True)
class Files:
    """SEG-Y files with traces of one length. Trace numbers go on from one file to the next."""

    layouts: tuple[Layout, ...]

    @property
    def path(self) -> str:
        """The name of all files together, for a message."""
        return self.name(range(len(self.layouts)))

    @property
    def size(self) -> int:
        """The size of all files, bytes."""
        return sum(layout.size for layout in self.layouts)

    @property
    def n_samples(self) -> int:
        return self.layouts[0].n_samples

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The number of the first trace of each file, and of all traces, (file + 1,)."""
        counts = [layout.n_traces for layout in self.layouts]
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    def name(self, which: Sequence[int] | NDArray[np.int64]) -> str:
        """The files of these numbers, for a message: the first one, and how many more."""
        numbers = np.unique(which)
        first = str(self.layouts[numbers[0]].path)
        return first if numbers.size == 1 else f"{first} and {numbers.size - 1} more of the files"

    def read(self, traces: NDArray[np.int64]) -> NDArray[np.float32]:
        """Read the traces (trace, time) of these numbers, in the order asked.

        Files are opened for each call, as there may be more of them than a process may have open.
        Raises `InputError`.
        """
        found = np.empty((traces.size, self.n_samples), dtype=np.float32)
        files = np.searchsorted(self.starts, traces, side="right") - 1
        for file in np.unique(files):
            these = files == file
            with TraceReader(self.layouts[file]) as reader:
                found[these] = reader.read(traces[these] - self.starts[file])
        return found


def check_alike(layouts: Sequence[Layout], intervals: Sequence[float]) -> None:
    """Raise `InputError` where files differ in length or unit from the first one.

    intervals: of each file, s.
    """
    first = layouts[0]
    for layout, dt in zip(layouts, intervals, strict=True):
        for what, found, expected, remedy in (
            (
                "the time between samples, s",
                f"{dt:g}",
                f"{intervals[0]:g}",
                "Give --dt if it is the same in all of them, or leave the file out",
            ),
            (
                "the number of samples",
                layout.n_samples,
                first.n_samples,
                "Leave the file out, or make its traces as long as those of the others",
            ),
            (
                "the unit of lengths (bytes 3255-3256)",
                *("feet" if one.in_feet else "metres" for one in (layout, first)),
                "Give --value measurement=1 (metres) or 2 (feet) if it is the same in all of them",
            ),
        ):
            if found != expected:
                raise InputError(
                    str(layout.path),
                    f"found {found} for {what}, expected {expected} as in {first.path}",
                    f"{remedy}.",
                )
