"""Picks of first breaks from a text file, and the line through a shot's traces that they make.

A file has a header, which names its columns, and a row for each pick, with commas or blanks between
the numbers. Columns are `shot`, `receiver`, `time`, the first two counted from 0 as in the gathers
file; or `source_x`, `receiver_x`, `time`, in a 3-D model with `source_y`, `receiver_y`. Positions
are in m, times in s after the shot. Empty lines and what follows a # are not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcfwi.errors import InputError, quote, refusing
from hpcfwi.operators.window import find_offsets
from hpcfwi.survey import Survey
from hpcfwi.system import check_regular, check_room

# m, from a position in the file to that of the survey which it means
NEAREST = 1.0
NUMBERS = ("shot", "receiver", "time")


def sign_offsets(
    source: NDArray[np.float64], receivers: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Offsets (m) of receivers (receiver, ndim), negative on the side of smaller x."""
    offsets = find_offsets(source, receivers)
    return np.where(receivers[:, -1] < source[-1], -offsets, offsets)


@dataclass(frozen=True)
class Picks:
    """Picks of some traces of a survey, sorted by shots.

    sources: (shot, ndim), of the shots that have any, m; ends: (shot + 1,), where the picks of each
    begin and end; receivers: (pick, ndim), m; times: (pick,), s after the shot.
    """

    sources: NDArray[np.float64]
    ends: NDArray[np.int64]
    receivers: NDArray[np.float64]
    times: NDArray[np.float64]

    @cached_property
    def _places(self) -> dict[bytes, int]:
        return {source.tobytes(): shot for shot, source in enumerate(self.sources)}

    def find_line(
        self, source: NDArray[np.float64], offsets: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Times (s) at signed offsets (m) from a source, linear between those of its picks.

        NaN beyond its nearest and its furthest pick, and for a source without any.
        """
        shot = self._places.get(source.tobytes())
        if shot is None:
            return np.full(offsets.shape, np.nan)
        mine = slice(*self.ends[shot : shot + 2])
        at, where = np.unique(sign_offsets(source, self.receivers[mine]), return_inverse=True)
        times = np.bincount(where, self.times[mine]) / np.bincount(where)
        return np.asarray(np.interp(offsets, at, times, left=np.nan, right=np.nan))

    def find_times(
        self, source: NDArray[np.float64], receivers: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """A trace's own pick (s) or, for one that has none, the line between those of others."""
        times = self.find_line(source, sign_offsets(source, receivers))
        shot = self._places.get(source.tobytes())
        if shot is not None:
            mine = slice(*self.ends[shot : shot + 2])
            pairs = zip(self.receivers[mine], self.times[mine], strict=True)
            own = {receiver.tobytes(): time for receiver, time in pairs}
            for trace, receiver in enumerate(receivers):
                times[trace] = own.get(receiver.tobytes(), times[trace])
        return times


def read_picks(path: Path, survey: Survey) -> Picks:
    """Read the picks of a survey's traces, in one process.

    Raises `InputError`, naming the line, for what is no pick of this survey.
    """
    lines, columns, values = _read_rows(path, survey.sources.shape[1])
    times = values[:, columns.index("time")]
    end = survey.start + survey.dt * survey.n_samples
    # Some may be: records are cut
    late = np.flatnonzero(times > end)
    if 2 * late.size > times.size:
        raise InputError(
            f"{path}, line {lines[late[0]]}",
            f"its time is {times[late[0]]:g} s, as {late.size - 1} others beyond the end of the "
            f"record, {end:g} s; expected s after the shot",
            "They seem to be in milliseconds: divide the times by 1000."
            if float(np.median(times)) > 10.0 * end >= 1e-3 * float(times.max())
            else "Give picks of this survey.",
        )
    if "shot" in columns:
        traces = values[:, [columns.index("shot"), columns.index("receiver")]]
        _check_numbers(path, lines, traces, survey)
        shots, receivers = traces.astype(np.int64).T
    else:
        shots, receivers = _find_traces(path, lines, columns, values, survey)
    _, first = np.unique(shots * survey.n_receivers + receivers, return_index=True)
    if first.size < shots.size:
        again = int(np.setdiff1d(np.arange(shots.size), first)[0])
        raise InputError(
            f"{path}, line {lines[again]}",
            f"shot {shots[again]}, receiver {receivers[again]} has a pick already",
            "Leave one of the two out.",
        )
    order = np.lexsort((receivers, shots))
    shots, receivers, times = shots[order], receivers[order], times[order]
    picked, begins = np.unique(shots, return_index=True)
    places = (receivers,) if survey.receivers.ndim == 2 else (shots, receivers)
    return Picks(
        survey.sources[picked],
        np.append(begins, shots.size).astype(np.int64),
        survey.receivers[places],
        times,
    )


def _read_rows(path: Path, ndim: int) -> tuple[list[int], list[str], NDArray[np.float64]]:
    """The numbers of the lines that have picks, the names of the columns, and all values."""
    with refusing(str(path), "it cannot be read", "Check the name and its permissions."):
        check_regular(path)
        check_room(str(path), "the picks", 40.0 * path.stat().st_size, "Give fewer rows.")
        texts = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    across = ("x",) if ndim == 2 else ("x", "y")
    places = tuple(f"{what}_{axis}" for what in ("source", "receiver") for axis in across)
    header, lines, rows = None, [], []
    for number, line in enumerate(texts, start=1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        if header is None:
            header = [word.lower() for word in words]
            if sorted(header) not in (sorted(NUMBERS), sorted((*places, "time"))):
                raise InputError(
                    f"{path}, line {number}",
                    f"found {quote(line.strip())}, expected the names of the columns: "
                    f"{' '.join(NUMBERS)}, or {' '.join(places)} time",
                    "Write such a header above the picks; numbers count from 0, positions are in "
                    "m, times in s.",
                )
            continue
        try:
            row = [float(word) for word in words]
        except ValueError:
            row = []
        if len(row) != len(header) or not np.isfinite(row).all():
            raise InputError(
                f"{path}, line {number}",
                f"found {quote(line.strip())}, expected {len(header)} numbers: {' '.join(header)}",
                "Give a row for each pick, and none for a trace without one.",
            )
        lines.append(number)
        rows.append(row)
    if header is None or not rows:
        raise InputError(
            str(path), "it has no pick", f"Write a header, {' '.join(NUMBERS)}, and a row a pick."
        )
    return lines, header, np.array(rows)


def _check_numbers(
    path: Path, lines: list[int], traces: NDArray[np.float64], survey: Survey
) -> None:
    n_shots, n_receivers, _ = survey.shape
    most = (n_shots, n_receivers)
    wrong = ((traces != np.rint(traces)) | (traces < 0) | (traces >= most)).any(axis=1)
    if wrong.any():
        first = int(wrong.argmax())
        raise InputError(
            f"{path}, line {lines[first]}",
            f"found shot {traces[first, 0]:g}, receiver {traces[first, 1]:g}; expected 0 to "
            f"{n_shots - 1} and 0 to {n_receivers - 1}, as in the gathers file",
            "Count both from 0, or give positions: source_x receiver_x time.",
        )


def _find_traces(
    path: Path,
    lines: list[int],
    columns: list[str],
    values: NDArray[np.float64],
    survey: Survey,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers of the shot and the receiver of each row, by their positions."""
    axes = ("y", "x")[-(survey.sources.shape[1] - 1) :]
    sources, receivers = (
        values[:, [columns.index(f"{what}_{axis}") for axis in axes]]
        for what in ("source", "receiver")
    )
    shots, heard = np.empty((2, len(values)), dtype=np.int64)
    for source, rows in _group(sources):
        away = np.linalg.norm(survey.sources[:, 1:] - source, axis=1)
        shot = int(away.argmin())
        _check_near(path, lines[rows[0]], "source", away[shot])
        one = survey.select(np.array([shot]))
        away = np.linalg.norm(one.receivers[0, None, :, 1:] - receivers[rows, None], axis=2)
        if one.mask is not None:
            away[:, ~one.mask[0]] = np.inf
        found = away.argmin(axis=1)
        least = away[np.arange(rows.size), found]
        worst = int(least.argmax())
        _check_near(path, lines[rows[worst]], "receiver of this shot", least[worst])
        shots[rows], heard[rows] = shot, found
    return shots, heard


def _group(
    points: NDArray[np.float64],
) -> list[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """Points that come more than once, each with the rows in which it does."""
    each, which = np.unique(points, axis=0, return_inverse=True)
    order = np.argsort(which.reshape(-1), kind="stable")
    ends = np.cumsum(np.bincount(which.reshape(-1)))[:-1]
    return list(zip(each, np.split(order, ends), strict=True))


def _check_near(path: Path, line: int, what: str, away: float) -> None:
    if away > NEAREST:
        raise InputError(
            f"{path}, line {line}",
            f"the nearest {what} of the survey is {away:.6g} m away, expected {NEAREST:g} m at "
            "most",
            "Give positions in m, in the coordinates of the gathers file, or numbers: shot "
            "receiver time.",
        )
