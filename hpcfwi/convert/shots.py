"""From traces in any order to shots: which are of one shot, and whom its receivers are.

Where they are is in `geometry`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfwi.convert.files import Files
from hpcfwi.convert.geometry import Columns, Places
from hpcfwi.convert.headers import Headers
from hpcfwi.errors import InputError

NAMES = ("record", "channel", "shot_point")


@dataclass(frozen=True)
class Gathering:
    """Which traces make which shots.

    traces: their numbers, shot after shot; starts: (shot + 1,), where in `traces` each
    shot begins, and all of them end.
    """

    traces: NDArray[np.int64]
    starts: NDArray[np.int64]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Traces of each shot."""
        return np.diff(self.starts)

    @property
    def mask(self) -> NDArray[np.bool_] | None:
        """(shot, receiver): which places of a rectangle the shots fill; None where all."""
        counts = self.counts
        if (counts == counts.max()).all():
            return None
        return np.asarray(np.arange(counts.max()) < counts[:, None])

    def pad(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values of the traces (trace, ...) as (shot, receiver, ...), the last repeated."""
        places = np.minimum(np.arange(self.counts.max()), self.counts[:, None] - 1)
        return np.asarray(values[self.traces[self.starts[:-1, None] + places]])

    def select(self, shots: slice) -> Gathering:
        """Some of the shots; none where the slice has none."""
        chosen = np.arange(self.counts.size)[shots]
        parts = [self.traces[self.starts[shot] : self.starts[shot + 1]] for shot in chosen]
        starts = np.concatenate([[0], np.cumsum(self.counts[chosen])])
        return Gathering(np.concatenate([self.traces[:0], *parts]), starts.astype(np.int64))


def gather(columns: Columns, places: Places, files: Files, headers: Headers) -> Gathering:
    """Sort traces into shots, by their fields and places.

    Those that have the same field record and the same source position are of one shot. Shots are in
    the order of their records, then of their positions; traces of a shot in that of their channels,
    then of their receivers' positions: the order in the file does not matter.

    Raises `InputError` where the headers cannot be meant.
    """
    record, channel = columns["record"], columns["channel"]
    order = np.lexsort((*places.receivers.T, channel, *places.sources.T, record))
    same = (record[order][1:] == record[order][:-1]) & (
        places.sources[order][1:] == places.sources[order][:-1]
    ).all(axis=1)
    starts = np.concatenate([[0], np.flatnonzero(~same) + 1, [order.size]])
    alone = starts.size - 1 == order.size
    if alone and len(np.unique(places.sources, axis=0)) <= order.size // 2:
        raise InputError(
            f"{files.path}, {headers.where('record')}",
            "every trace would be a shot of its own: no two have the same record, though many "
            "have the same source position",
            "Give --value record=0 to tell shots by their positions, or --bytes record=POSITION.",
        )
    return Gathering(order.astype(np.int64), starts.astype(np.int64))


def count_repeats(columns: Columns, places: Places) -> NDArray[np.int64]:
    """Count the traces before each one, of the same shot and at the same receiver position.

    They are in the order of their channels, then in the file's.
    """
    keys = np.column_stack([places.receivers, places.sources, columns["record"]])
    order = np.lexsort((columns["channel"], *keys.T))
    number = np.arange(order.size)
    new = np.append(True, (np.diff(keys[order], axis=0) != 0.0).any(axis=1))
    repeats = np.empty_like(number)
    repeats[order] = number - np.maximum.accumulate(np.where(new, number, 0))
    return repeats


def check_repeats(
    gathering: Gathering,
    numbers: NDArray[np.int64],
    columns: Columns,
    places: Places,
    files: Files,
    headers: Headers,
) -> None:
    """Raise `InputError` where two traces of a shot are at one receiver position.

    numbers: of the traces, in the files.
    """
    repeats = count_repeats(columns, places)
    many = gathering.traces[repeats[gathering.traces] > 0]
    if not many.size:
        return
    one = many[numbers[many].argmin()]
    same = (places.receivers == places.receivers[one]).all(axis=1)
    same &= (places.sources == places.sources[one]).all(axis=1)
    same &= columns["record"] == columns["record"][one]
    same &= columns["file"] == columns["file"][one]
    same = numbers[same][:8] - files.starts[columns["file"][one]] + 1
    x, y, z = places.receivers[one]
    raise InputError(
        f"{files.name(columns['file'][many])}, {headers.where('receiver_x', 'receiver_y')}",
        f"{many.size} of {gathering.traces.size} traces are of a shot and at a receiver position "
        f"that another trace has as well: traces {', '.join(map(str, same))} of "
        f"record {columns['record'][one]:g}, at x = {x:g}, y = {y:g}, z = {z:g} m",
        "If they are components or records of the same, choose one, by channel and then as they "
        f"are in the file: --keep repeat=0, up to {repeats[many].max()}; if not, say where "
        "receivers are, in depth with --bytes receiver_depth=POSITION.",
    )


def check_empty(columns: Columns, places: Places, files: Files, headers: Headers) -> None:
    """Raise `InputError` for positions that are missing."""
    records = np.unique(columns["record"]).size
    for of, points, needed in (
        ("source", places.sources, records > 1),
        ("receiver", places.receivers, len(places.receivers) > records),
    ):
        names = [f"{of}_x", f"{of}_y"]
        if headers.constants.keys() & set(names):
            continue
        empty = ~points[:, :2].any(axis=1)
        if needed and empty.all() and not np.ptp(points[:, 2]):
            raise InputError(
                f"{files.path}, {headers.where(*names)}",
                f"the {of} coordinates are 0 in all traces",
                f"{headers.remedy(*names)}.",
            )
        if empty.any() and not empty.all() and is_far(points[~empty, :2]):
            far = ceil(places.offsets[~empty].max())
            remedy = "Correct them, or say where they are with --bytes."
            if far < places.offsets[empty].min():
                remedy = f"Correct them, or leave these traces out with --keep offset=0:{far}."
            raise InputError(
                f"{files.name(columns['file'][empty])}, {headers.where(*names)}",
                f"the {of} coordinates are 0 in {empty.sum()} of {empty.size} traces, and far from "
                "there in the others",
                remedy,
            )


def is_far(points: NDArray[np.float64]) -> bool:
    """Whether 0 is further from points (n, 2) than they reach."""
    low, high = points.min(axis=0), points.max(axis=0)
    return bool(np.maximum(low, -high).max() > (high - low).max())
