"""The section [survey]: who shoots, who listens, what is emitted and for how long."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from hpcfwi.config.values import (
    Count,
    FileName,
    Hertz,
    OneOrPair,
    Position,
    Seconds,
    Section,
    Time,
    tag_pair,
)

# Samples of a trace, which no recorder has
MOST_SAMPLES = 10**6
# s; from here on a time that is too long to sample the wavelet with may be meant in ms
LIKELY_MILLISECONDS = 0.1


class Points(Section):
    """Points at one depth, evenly spaced along x, or along y and x for a 3-D model.

    For a 3-D model `count`, `first` and `last` are pairs, along y and along x:
    `{ count = [4, 6], depth = 25.0, first = [200.0, 0.0], last = [800.0, 1500.0] }` are four lines
    along x of six points each, numbered line by line, and `count = [1, 40]` is a single line in the
    middle of y. A number where the model asks for a pair is an error, and so is a pair where it
    asks for a number.
    """

    count: OneOrPair[Count]
    """How many points; a single one is placed in the middle."""
    depth: Position
    """Of all points."""
    first: OneOrPair[Position] | None = None
    """Where the first point is along each axis; the model's first where not given."""
    last: OneOrPair[Position] | None = None
    """Where the last point is along each axis; the model's last where not given."""

    @model_validator(mode="after")
    def _all_of_one_dimension(self) -> Self:
        for key in ("first", "last"):
            value = getattr(self, key)
            if value is not None and tag_pair(value) != tag_pair(self.count):
                raise ValueError(
                    f"count is {tag_pair(self.count)} and {key} {tag_pair(value)}; expected "
                    "numbers for a 2-D model, pairs [y, x] for a 3-D one"
                )
        return self


class Receivers(Points):
    """Points as sources are, the same for all shots; or, with `offset` and `spacing`, a spread.

    A spread moves with the source, along x, in a 3-D model at the source's y:
    `{ count = 120, spacing = 25.0, offset = 100.0, depth = 8.0 }` are receivers from 100 to 3075 m
    beyond each source. Both lengths are negative for a streamer that is towed behind it, towards
    larger x. Receivers beyond an end of the model are not there, and do not count.
    """

    offset: Position | None = None
    """Of a spread: along x from the source to the first receiver, negative towards smaller x."""
    spacing: Position | None = None
    """Of a spread: along x from a receiver to the next, negative towards smaller x."""

    @property
    def moves(self) -> bool:
        """Whether they are a spread."""
        return self.offset is not None

    @model_validator(mode="after")
    def _points_or_spread(self) -> Self:
        if self.offset is None and self.spacing is None:
            return self
        for key in ("first", "last"):
            if getattr(self, key) is not None:
                raise ValueError(
                    f"{key} is where points are that are the same for all shots, offset and "
                    "spacing are for those that move with the source; expected one of both"
                )
        if self.offset is None or self.spacing is None:
            missing = "offset" if self.offset is None else "spacing"
            raise ValueError(f"{missing} missing, of receivers that move with the source")
        if self.spacing == 0.0:
            raise ValueError("spacing is 0; expected another number, negative towards smaller x")
        if isinstance(self.count, tuple):
            raise ValueError(
                "count is a pair; expected a number of receivers that move with the source: they "
                "are along x, in a 3-D model too"
            )
        return self


class Wavelet(Section):
    """What each source emits."""

    kind: Literal["ricker"]
    """The second derivative of a Gaussian."""
    frequency: Hertz
    """Peak frequency."""
    delay: Time
    """Time of the peak."""


class SurveySection(Section):
    """Who shoots, who listens, what is emitted and for how long.

    Either all keys but `file`, for data that hpcfwi simulates itself, or `file`. A `wavelet` beside
    `file` takes the place of the file's.
    """

    file: FileName | None = None
    """A gathers file of observed data; `hpcfwi convert` makes one of SEG-Y."""
    sources: Points | None = None
    """Points along a line or in an area; each is one shot."""
    receivers: Receivers | None = None
    """Points, the same for all shots, or a spread that moves with the source."""
    wavelet: Wavelet | None = None
    """What each source emits."""
    dt: Seconds | None = None
    """Sampling of wavelet and traces.

    Where it is too long for a stable scheme, each step is divided into substeps. Beside `file`, dt
    and `duration` are for `hpcfwi forward --to` alone, with a `wavelet`.
    """
    duration: Seconds | None = None
    """Length of the record: duration / dt samples, rounded, and two at least."""

    @model_validator(mode="after")
    def _file_or_all_others(self) -> Self:
        keys = ("sources", "receivers", "wavelet", "dt", "duration")
        given = [key for key in keys if getattr(self, key) is not None]
        if self.file is not None and given:
            if given[0] in ("sources", "receivers"):
                raise ValueError(f"file and {given[0]} exclude each other")
            if self.wavelet is None:
                raise ValueError(f"{given[0]} beside file is that of a wavelet: give one, too")
        if self.file is None and len(given) < len(keys):
            missing = [key for key in keys if key not in given]
            raise ValueError(f"{', '.join(missing)} missing, or else file")
        if self.dt and self.duration and self.wavelet:
            check_times(self.dt, self.duration, self.wavelet.frequency)
        return self

    @property
    def dt_place(self) -> str:
        """Where the sampling is given, as a message names it."""
        return f"{self.file}, attribute dt" if self.file and self.dt is None else "survey.dt"


def check_times(dt: float, duration: float, frequency: float) -> None:
    """Raise ValueError where a Ricker wavelet (Hz) and a record (s) do not fit each other."""
    if frequency * dt > 0.5 and frequency * dt * 1e-3 <= 0.5 and dt >= LIKELY_MILLISECONDS:
        raise ValueError(
            f"dt is {dt:g} s, which is {1.0 / (frequency * dt):.2g} samples in a period of "
            f"wavelet.frequency = {frequency:g} Hz; expected {0.5 / frequency:.2g} s or less. It "
            f"seems to be in milliseconds: {dt * 1e-3:g} s"
        )
    samples = duration / dt
    if samples < 2.0:
        raise ValueError("duration is shorter than two samples")
    if samples > MOST_SAMPLES:
        seconds, likely = 1e-3 * duration, ""
        if seconds * frequency >= 1.0 and seconds / dt <= MOST_SAMPLES:
            likely = f". It seems to be in milliseconds: {seconds:g} s"
        raise ValueError(
            f"duration holds {samples:.3g} samples of dt; expected at most {MOST_SAMPLES}{likely}"
        )
    if not 1.0 / duration <= frequency <= 0.5 / dt:
        raise ValueError(
            f"wavelet.frequency is {frequency:g} Hz; expected {1.0 / duration:.3g} Hz or more, one "
            f"period in duration, and {0.5 / dt:.3g} Hz or less, two samples of dt in a period"
        )
