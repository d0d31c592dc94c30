"""The trace headers and the samples of SEG-Y and Seismic Unix files, of several files as of one.

Files come from any program, in either byte order and any format of samples, and are not trusted.
`geometry` and `choosing` say what the headers mean; `writing` writes SEG-Y files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hpcfwi.convert.layout import (
    FORMATS,
    HEADER,
    IBM,
    IEEE,
    Headers,
    Layout,
    open_binary,
    read_layout,
)
from hpcfwi.errors import InputError, refusing

AT_ONCE = 2**22  # bytes of headers, or of traces, that are read in one piece
LOOKED_AT = 256  # traces whose samples are compared with the format of the file header
LARGEST = 2**26  # bytes of a trace that is read to look at its samples
FEWEST = 40  # numbers by which a kind of floats can be told


def find_layout(path: Path, headers: Headers) -> Layout:
    """Read how a file is laid out, and compare its samples with the format that it says.

    Raises
    ------
    InputError
        With the bytes that were read, for what cannot be meant.
    """
    layout = read_layout(path, headers)
    if "format" not in headers.constants:
        _check_floats(layout)
    return layout


def _check_floats(layout: Layout) -> None:
    """Raise `InputError` where the samples are not the kind of floats that the header says."""
    if layout.code not in (IBM, IEEE) or layout.trace_size > LARGEST:
        return
    most = min(layout.n_traces, LOOKED_AT, max(1, AT_ONCE // layout.trace_size))
    chosen = np.unique(np.linspace(0, layout.n_traces - 1, most).astype(np.int64))
    with TraceReader(layout) as reader:
        words = np.concatenate([reader.read_bytes(int(trace), 1) for trace in chosen])
    told = tell_floats(words.view(f"{layout.endian}u4").astype(np.uint32))
    if told not in (None, layout.code):
        names = {IBM: "IBM", IEEE: "IEEE"}
        raise InputError(
            f"{layout.path}, bytes 3225-3226",
            f"found {layout.code} as format, {names[layout.code]} floats, but the samples are "
            f"{names[told]} floats, by their bits",
            f"Give --value format={told}, or --value format={layout.code} if that is right.",
        )


def tell_floats(words: NDArray[np.uint32]) -> int | None:
    """Tell IBM's floats from IEEE's by their bits.

    Both begin with a sign and an exponent, and grow with the other 31 bits. In IBM floats 24 bits
    are a fraction of 16 to the power of the exponent, of which the first hexadecimal digit is not
    0. In IEEE floats the first bit of that digit is the last of an exponent of 2, and the digit is
    0 in as many numbers as in the neighbours of these.

    Parameters
    ----------
    words
        The bits of samples.

    Returns
    -------
    int or None
        The format's code; None where too few numbers, or too few different ones, tell.

    Notes
    -----
    Different numbers are counted, by exponent and digit, so that a number that is frequent counts
    once. Only digits of 0 between others below and above count: numbers in a narrow range have
    none. A digit of 8 begins a power of 2 in IEEE floats, where it has twice the width of 7.
    """
    numbers = np.unique(words & 0x7FFFFFFF)
    counts = np.bincount(numbers >> 20, minlength=2048).astype(np.float64)
    below, zero, above = counts[15:-1:16], counts[16::16], counts[17::16]
    expected = np.minimum(2.0 * below, above).sum()
    found = zero[np.minimum(below, above) > 0.0].sum()
    seventh, eighth = counts[7::16].sum(), counts[8::16].sum()
    if expected < FEWEST or seventh < FEWEST / 4.0:
        return None
    if found <= 0.02 * expected and eighth < 1.35 * seventh:
        return IBM
    if found >= 0.5 * expected and eighth > 1.35 * seventh:
        return IEEE
    return None


def read_headers(layout: Layout, headers: Headers, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read fields of all trace headers, (trace,) each; raises `InputError` where it cannot."""
    parts: dict[str, list[NDArray]] = {name: [] for name in names}
    width = min(layout.header, 2 * HEADER)
    rows = AT_ONCE // width
    with open_binary(layout.path) as file:
        for start in range(0, layout.n_traces, rows):
            raw = np.empty((min(rows, layout.n_traces - start), width), dtype=np.uint8)
            for number, row in enumerate(raw, start):
                file.seek(layout.first + number * layout.trace_size)
                _fill(layout, file, row)
            for name, part in parts.items():
                part.append(headers.read(name, raw, layout.endian))
    return {name: np.concatenate(part) for name, part in parts.items()}


class TraceReader:
    """The samples of an open SEG-Y file; use it in a `with` statement."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self._file = layout, open_binary(layout.path)

    def read(self, traces: NDArray[np.int64]) -> NDArray[np.float32]:
        """The traces of these numbers, from 0, in the order asked, (trace, time).

        Consecutive traces are read at once. Raises `InputError`.
        """
        layout, done = self._layout, 0
        found = np.empty((len(traces), layout.n_samples), dtype=np.float32)
        for first, count in _runs(traces, max(1, AT_ONCE // layout.trace_size)):
            found[done : done + count] = _decode(self.read_bytes(first, count), layout)
            done += count
        return found

    def read_bytes(self, first: int, count: int) -> NDArray[np.uint8]:
        """The bytes of the samples of consecutive traces, (trace, byte)."""
        layout = self._layout
        raw = np.empty((count, layout.trace_size), dtype=np.uint8)
        self._file.seek(layout.first + first * layout.trace_size)
        _fill(layout, self._file, raw)
        return np.ascontiguousarray(raw[:, layout.header :])

    def __enter__(self) -> TraceReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _decode(raw: NDArray[np.uint8], layout: Layout) -> NDArray[np.float32]:
    values = raw.view(layout.endian + FORMATS[layout.code])
    # What is too large for a float is infinite then
    with np.errstate(over="ignore", invalid="ignore"):
        if layout.code == IBM:
            values = _from_ibm(values.astype(np.uint32))
        return values.astype(np.float32)


def _from_ibm(bits: NDArray[np.uint32]) -> NDArray[np.float64]:
    """IBM floats: a sign, 7 bits of an exponent of 16 with 64 added, and 24 of a fraction below 1.

    Not segyio's function, which takes the fraction's first digit to be other than 0.
    """
    fraction = (bits & 0xFFFFFF).astype(np.float64)
    exponent = ((bits >> 24) & 0x7F).astype(np.int32)
    return np.where(bits >> 31, -1.0, 1.0) * np.ldexp(fraction, 4 * (exponent - 64) - 24)


def _runs(traces: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """First and number of the traces of each run without a gap, of no more than so many."""
    ends = np.flatnonzero(np.diff(traces) != 1) + 1
    for run in np.split(traces, ends) if traces.size else []:
        for start in range(0, run.size, most):
            yield int(run[start]), min(most, run.size - start)


def _fill(layout: Layout, file: BinaryIO, buffer: NDArray[np.uint8]) -> None:
    """Fill an array from the file. Raises `InputError` where that has become shorter."""
    with refusing(str(layout.path), "it cannot be read", "See to its file system."):
        view, done = memoryview(buffer.data).cast("B"), 0
        while done < len(view):
            count = file.readinto(view[done:])  # type: ignore[attr-defined]
            if not count:
                raise InputError(
                    str(layout.path), "it has become shorter meanwhile", "Copy it again."
                )
            done += count


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
