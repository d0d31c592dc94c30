"""SEG-Y files of tests, packed byte by byte after the standard, without segyio or hpcfwi.

The example is a line of six shots with irregular spreads of 3 to 8 traces.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hpcfwi.convert import to_gathers
from hpcfwi.convert.layout import FIELDS, Headers
from hpcfwi.convert.request import parse_value
from hpcfwi.convert.segy import Files
from hpcfwi.parallel.context import Context
from hpcfwi.storage.gathers import GatherReader

N_SAMPLES, DT = 50, 0.004
COUNTS = (5, 8, 3, 8, 6, 4)
N_TRACES = sum(COUNTS)
# First byte, from 1, and type
PLACES = {
    "record": (9, "i4"),
    "channel": (13, "i4"),
    "shot_point": (17, "i4"),
    "code": (29, "i2"),
    "offset": (37, "i4"),
    "receiver_elevation": (41, "i4"),
    "source_elevation": (45, "i4"),
    "source_depth": (49, "i4"),
    "elevation_scalar": (69, "i2"),
    "coordinate_scalar": (71, "i2"),
    "source_x": (73, "i4"),
    "source_y": (77, "i4"),
    "receiver_x": (81, "i4"),
    "receiver_y": (85, "i4"),
    "unit": (89, "i2"),
    "delay": (109, "i2"),
    "samples": (115, "u2"),
    "interval": (117, "u2"),
    "time_scalar": (215, "i2"),
    "cdp_x": (181, "i4"),
    "cdp_y": (185, "i4"),
    "inline": (189, "i4"),
    "crossline": (193, "i4"),
}
DTYPES = {1: "u4", 2: "i4", 3: "i2", 5: "f4", 6: "f8", 8: "i1", 10: "u4", 11: "u2", 16: "u1"}

Fields = dict[str, Any]


def rules(*values: str) -> Headers:
    """Return the rules by which headers are read; values: as in --value, such as "samples=50"."""
    return Headers(FIELDS, dict(map(parse_value, values)))


def line_fields() -> Fields:
    """Return headers of a line along x, in decimetres; sources are at 8 m, receivers at 12.5 m."""
    shot = np.repeat(np.arange(len(COUNTS)), COUNTS)
    channel = np.concatenate([np.arange(n) for n in COUNTS])
    source_x = 1000 + 1000 * shot
    receiver_x = source_x + 500 + 125 * channel
    return {
        "record": 101 + shot,
        "channel": 1 + channel,
        "code": 1,
        "offset": (receiver_x - source_x) // 10,
        "receiver_elevation": -125,
        "source_depth": 80,
        "elevation_scalar": -10,
        "coordinate_scalar": -10,
        "source_x": source_x,
        "receiver_x": receiver_x,
        "unit": 1,
        "samples": N_SAMPLES,
        "interval": round(1e6 * DT),
    }


def line_traces(n_traces: int = N_TRACES, n_samples: int = N_SAMPLES) -> np.ndarray:
    """Return whole numbers that every sample format represents exactly."""
    return np.random.default_rng(1).integers(0, 100, (n_traces, n_samples)).astype(np.float32)


def to_ibm(values: np.ndarray) -> np.ndarray:
    """Return IBM floats of whole numbers below 2**24: sign, exponent of 16 plus 64, fraction."""
    whole = np.abs(values).astype(np.uint32)
    # The number is fraction * 16**(70 - 64); the radix point is before the 24 bits of the fraction
    return ((values < 0).astype(np.uint32) << 31) | (np.uint32(70) << 24) | whole


def write_segy(
    path: Path,
    fields: Fields | None = None,
    traces: np.ndarray | None = None,
    *,
    endian: str = ">",
    code: int = 5,
    texts: int = 0,
    header: dict[int, tuple[str, float]] | None = None,
    extra: int = 0,
    tail: bytes = b"",
) -> Path:
    """Write a SEG-Y file.

    header: further numbers of the file header, (type, number) by byte; extra: additional headers of
    each trace; tail: what follows the last trace.
    """
    fields = line_fields() if fields is None else fields
    traces = line_traces() if traces is None else traces
    n_traces, n_samples = traces.shape
    rows = np.zeros((n_traces, 240), dtype=np.uint8)
    for name, values in fields.items():
        at, kind = PLACES[name]
        column = np.broadcast_to(np.asarray(values), n_traces).astype(endian + kind)
        rows[:, at - 1 : at - 1 + int(kind[1])] = column[:, None].view(np.uint8)
    samples = to_ibm(traces) if code == 1 else traces
    samples = np.ascontiguousarray(samples.astype(endian + DTYPES[code]))
    start = bytearray(b"C 1 A TEST".ljust(3200) + bytes(400))
    numbers = {3217: ("u2", round(1e6 * DT)), 3221: ("u2", n_samples), 3225: ("i2", code)}
    for at, (kind, number) in {**numbers, 3505: ("i2", texts), **(header or {})}.items():
        value = np.array([number]).astype(endian + kind).tobytes()
        start[at - 1 : at - 1 + len(value)] = value
    rows = np.pad(rows, ((0, 0), (0, 240 * extra)))
    body = np.concatenate([rows, samples.view(np.uint8).reshape(n_traces, -1)], axis=1)
    path.write_bytes(bytes(start) + texts * 3200 * b" " + body.tobytes() + tail)
    return path


def write_parts(folder: Path, parts: np.ndarray, **changes: Any) -> list[Path]:
    """Write the line to several files; parts: the number of the file for each trace.

    changes: fields with other values.
    """
    fields, paths = {**line_fields(), **changes}, []
    for part in np.unique(parts):
        these = parts == part
        some = {name: np.broadcast_to(v, these.size)[these] for name, v in fields.items()}
        paths.append(write_segy(folder / f"part{part}.sgy", some, line_traces()[these]))
    return paths


def read_gathers(path):
    """Return the survey and the traces of all shots of a gathers file."""
    with GatherReader(path, Context.alone()) as reader:
        return reader.survey, reader.read(np.arange(reader.survey.n_shots))


def interrupt_fourth_read(monkeypatch):
    """Interrupt a conversion in its fourth shot; return a list that grows with each shot."""
    read_traces, calls = Files.read, []

    def read_some(self, traces):
        calls.append(traces)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return read_traces(self, traces)

    monkeypatch.setattr(to_gathers, "PART", 1)
    monkeypatch.setattr(Files, "read", read_some)
    return calls
