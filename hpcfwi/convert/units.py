"""Slips of units: lengths and times that are numbers, and cannot be meant, with what they may be.

Velocities of models are looked at where models are read, in `storage.models`.
"""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from hpcfwi.convert.geometry import Columns, Places
from hpcfwi.convert.headers import Headers
from hpcfwi.convert.layout import Layout
from hpcfwi.errors import InputError

# s: no record of waves in the ground has longer samples, and few of those in a model shorter ones
LONGEST, SHORTEST = 0.1, 2e-5
# m/s: what waves in rock are within, generously
SLOWEST, FASTEST = 1.5e3, 1e4
# Of the way that the slowest wave goes in a record, what the furthest receiver is away at least
NEAREST = 1e-3
# Of a sample, how far samples may be off the times of others
ON_SAMPLE = 0.01
# Times that a distance may differ from the one that the header tells
ASTRAY = 5.0

log = logging.getLogger("hpcfwi")


def find_interval(given: float | None, columns: Columns, layout: Layout, headers: Headers) -> float:
    """The time between samples, s: what is given, or what the headers say, in microseconds.

    Raises `InputError` where they say nothing, or different things, or what cannot be meant.
    """
    if given is not None:
        if not 0.0 < given <= LONGEST:
            likely = f"; it looks like milliseconds: --dt {given / 1000:g}" * (given > LONGEST)
            expected = f"expected a number above 0, up to {LONGEST:g} s{likely}"
            raise InputError("--dt", f"found {given:g} s, {expected}", "Correct it.")
        return given
    told = columns["interval"].astype(np.float64)
    places = filter(None, (layout.interval_at, headers.where("interval")))
    where = f"{layout.path}, {' and '.join(places)}"
    if not 0.0 <= layout.interval <= 1e6 * LONGEST:
        raise InputError(
            where,
            f"found {layout.interval:g} microseconds between samples, expected up to "
            f"{1e6 * LONGEST:g}",
            "Give the interval with --dt, in s.",
        )
    if layout.interval % 1.0:  # which the headers of traces have to whole microseconds
        told = told[np.abs(told - layout.interval) >= 1.0]
    said = np.unique(np.append(told, layout.interval))
    said = said[said > 0]
    if said.size != 1:
        many = ", ".join(f"{1e-6 * us:g} s" for us in said[:4]) + ", ..." * (said.size > 4)
        raise InputError(
            where,
            f"they say {many} between samples" if said.size else "they hold no sample interval",
            "Give it with --dt, in s.",
        )
    dt = float(said[0]) / 1e6
    if dt < SHORTEST:
        raise InputError(
            where,
            f"found {dt:g} s between samples; it looks as if {1e6 * dt:g} were milliseconds, where "
            "the standard has microseconds",
            f"Give --dt {1000 * dt:g}, or --dt {dt:g} if that is right.",
        )
    return dt


def check_distances(
    places: Places, offsets: NDArray, duration: float, layout: Layout, headers: Headers
) -> None:
    """Compare distances from sources to receivers with what waves go in a record.

    offsets: from the headers, m; duration: s. Raises `InputError` where no wave could be seen to
    travel, unless the user has said what the scalar is, and warns where headers tell other
    distances.
    """
    distances = np.linalg.norm(places.receivers - places.sources, axis=1)
    furthest, middle = float(distances.max()), float(np.median(distances))
    if furthest == 0.0 or "coordinate_scalar" in headers.constants:
        return
    where = f"{layout.path}, {headers.where('source_x', 'receiver_x', 'coordinate_scalar')}"
    record = f"the record is {duration:.4g} s long"
    remedy = (
        "Give --value coordinate_scalar=NUMBER, a factor if above 0, a divisor if below; or --dt, "
        "where the record's time is wrong."
    )
    if furthest < NEAREST * SLOWEST * duration:
        raise InputError(
            where,
            f"no receiver is further than {furthest:.4g} m from its source, and {record}: the "
            "coordinates look like km",
            f"{remedy} Of km it is 1000.",
        )
    if middle > FASTEST * duration:
        raise InputError(
            where,
            f"most receivers are {middle:.4g} m or further from their source, where no wave comes "
            f"in time: {record}; the coordinates look like cm or mm, or the record's time is wrong",
            f"{remedy} Of cm it is -100.",
        )
    told = np.abs(offsets.astype(np.float64))
    both = (told > 0.0) & (distances > 0.0)
    if both.any():
        ratio = float(np.median(distances[both] / told[both]))
        if not 1.0 / ASTRAY < ratio < ASTRAY:
            log.warning(
                "%s: positions are %.3g times as far apart as %s say: see whether the scalar of "
                "the coordinates is right",
                layout.path,
                ratio,
                headers.where("offset"),
            )
