"""A SEG-Y file as it is: how it is laid out, its trace headers and its samples.

Written by whom ever: of either byte order, any format of samples, and not to be trusted. What the
headers mean is in `geometry` and `shots`; SEG-Y files are written in `writing`.

Layout (SEG Technical Standards Committee, revisions 0 to 2): 3200 bytes of text, 400 bytes of
numbers, more text of 3200 bytes each, and traces of one length, each after a header of 240 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hpcfwi.convert.headers import HEADER, Headers
from hpcfwi.errors import InputError, refusing
from hpcfwi.files import open_regular

TEXT, FILE_HEADER = 3200, 3600
IBM = 1
# NumPy's types of the formats of samples, by their codes
FORMATS = {IBM: "u4", 2: "i4", 3: "i2", 5: "f4", 6: "f8", 8: "i1", 10: "u4", 11: "u2", 16: "u1"}
AT_ONCE = 2**22  # bytes of headers, or of traces, that are read in one piece


@dataclass(frozen=True)
class Layout:
    """Where everything is in a SEG-Y file.

    endian: ">" or "<"; code: format of the samples; n_samples: of each trace; first: byte, from 0,
    of the first trace; n_traces; interval: microseconds, 0 where the file header has none; in_feet:
    whether it says that lengths are.
    """

    path: Path
    size: int
    endian: str
    code: int
    n_samples: int
    first: int
    n_traces: int
    interval: int
    in_feet: bool

    @property
    def trace_size(self) -> int:
        return HEADER + self.n_samples * np.dtype(FORMATS[self.code]).itemsize


def find_layout(path: Path, headers: Headers) -> Layout:
    """Look into the file header. Raises `InputError`, with positions, for what cannot be meant."""
    with _open(path) as file:
        size = file.seek(0, 2)
        file.seek(0)
        start = file.read(FILE_HEADER)
    if len(start) < FILE_HEADER:
        raise InputError(
            str(path),
            f"it has {size} bytes, and a SEG-Y file {FILE_HEADER} before its first trace",
            "Give a SEG-Y file, and copy it again if this one is cut short.",
        )
    endian, code = _find_format(path, start, headers)

    def number(at: int, kind: str) -> int:
        return int(np.frombuffer(start, endian + kind, 1, at - 1)[0])

    samples = int(headers.constants.get("samples", number(3221, "u2")))
    if number(3501, "u1") >= 2 and number(3269, "u4") and "samples" not in headers.constants:
        samples = number(3269, "u4")
    texts = number(3505, "i2")
    if samples < 1:
        raise InputError(
            f"{path}, bytes 3221-3222",
            f"found {samples} samples a trace",
            "Give their number with --value samples=NUMBER.",
        )
    if texts < 0:
        raise InputError(
            f"{path}, bytes 3505-3506",
            f"found {texts} more text headers; expected their number, from 0",
            "Correct it: files that leave it open are not read.",
        )
    first = FILE_HEADER + TEXT * texts
    trace = HEADER + samples * np.dtype(FORMATS[code]).itemsize
    n_traces, rest = divmod(size - first, trace)
    if n_traces < 1 or rest:
        raise InputError(
            str(path),
            f"it ends within trace {max(n_traces, 0) + 1}: {max(size - first, 0)} bytes of traces, "
            f"of which each has {trace}, with {samples} samples (bytes 3221-3222) of format {code} "
            f"(bytes 3225-3226), after {texts} more text headers (bytes 3505-3506)",
            "Copy it again if it is cut short; if a header is wrong, --value samples=NUMBER or "
            "--value format=CODE tells better.",
        )
    in_feet = headers.constants.get("measurement", number(3255, "i2")) == 2
    interval = number(3217, "u2")
    return Layout(path, size, endian, code, samples, first, n_traces, interval, in_feet)


def _find_format(path: Path, start: bytes, headers: Headers) -> tuple[str, int]:
    """The byte order, and the code of the samples' format, by which it is known."""
    orders = [headers.endian] if headers.endian else [">", "<"]
    codes = {order: int(np.frombuffer(start, f"{order}u2", 1, 3224)[0]) for order in orders}
    given = headers.constants.get("format")
    if given is not None:
        # As it says nothing of itself, it is what most files are
        return orders[0], _check_code(path, int(given), "--value format")
    for order, code in codes.items():
        if code in FORMATS:
            return order, code
    return orders[0], _check_code(path, codes[orders[0]], f"{path}, bytes 3225-3226")


def _check_code(path: Path, code: int, where: str) -> int:
    if code not in FORMATS:
        raise InputError(
            where,
            f"found {code} as format of the samples of {path}, expected one of "
            f"{', '.join(map(str, FORMATS))} (1: IBM, 5: IEEE floats), in either byte order",
            "Give a SEG-Y file, or the format with --value format=CODE and --endian big or little.",
        )
    return code


def read_headers(layout: Layout, headers: Headers, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Fields of all trace headers, (trace,) each; raises `InputError` where it cannot be read."""
    parts: dict[str, list[NDArray]] = {name: [] for name in names}
    rows = AT_ONCE // HEADER
    with _open(layout.path) as file:
        for start in range(0, layout.n_traces, rows):
            raw = np.empty((min(rows, layout.n_traces - start), HEADER), dtype=np.uint8)
            for number, row in enumerate(raw, start):
                file.seek(layout.first + number * layout.trace_size)
                _fill(layout, file, row)
            for name, part in parts.items():
                part.append(headers.read(name, raw, layout.endian))
    return {name: np.concatenate(part) for name, part in parts.items()}


class TraceReader:
    """The samples of an open SEG-Y file; use it in a `with` statement."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self._file = layout, _open(layout.path)

    def read(self, traces: NDArray[np.int64]) -> NDArray[np.float32]:
        """The traces of these numbers, from 0, in the order asked, (trace, time).

        What comes after one another in the file is read at once. Raises `InputError`.
        """
        layout, done = self._layout, 0
        found = np.empty((len(traces), layout.n_samples), dtype=np.float32)
        for first, count in _runs(traces, max(1, AT_ONCE // layout.trace_size)):
            raw = np.empty((count, layout.trace_size), dtype=np.uint8)
            self._file.seek(layout.first + first * layout.trace_size)
            _fill(layout, self._file, raw)
            found[done : done + count] = _decode(np.ascontiguousarray(raw[:, HEADER:]), layout)
            done += count
        return found

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


def _open(path: Path) -> BinaryIO:
    with refusing(str(path), "it cannot be read", "Check the name and its permissions."):
        return open(path, "rb", buffering=0, opener=open_regular)


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
