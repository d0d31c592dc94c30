"""The section [data]: which of the data count, how much, and what is put right before."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from hpcfwi.config.values import FileName, Seconds, Section, Time, Unit

Corner = Annotated[float, Field(ge=0.0, le=1e12), Unit("Hz")]
Offset = Annotated[float, Field(ge=0.0, le=1e9), Unit("m")]
Power = Annotated[float, Field(ge=-10.0, le=10.0)]
Factor = Annotated[float, Field(gt=0.0, le=1e9)]


class Mute(Section):
    """Silence on one side of a line through the traces, drawn over offset and time.

    The line is one of these: `velocity`, with `delay` (time = delay + offset / velocity); `curve`,
    the same for all shots, through points [offset, time]; `picks`, of each shot another, from a
    file; `after`, at one time for all offsets.
    """

    velocity: Annotated[float, Field(gt=0.0, le=1e6), Unit("m/s")] | None = None
    """Of a straight line, such as the direct wave's."""
    delay: Time = 0.0
    """Of the line, later than `offset / velocity`, the `curve` or the `picks`; may be negative."""
    curve: (
        Annotated[
            tuple[Annotated[tuple[Offset, Time], Field(strict=False)], ...],
            Field(strict=False, min_length=2),
        ]
        | None
    ) = None
    """Points [offset in m, time in s] of a line, straight in between, level beyond the ends.

    Before the first arrival: its picks.
    """
    picks: FileName | None = None
    """A text file of first breaks: a header that names the columns, and a row for each pick.

    Columns are `shot receiver time`, numbers from 0, or `source_x receiver_x time` (and `source_y`,
    `receiver_y` in a 3-D model), in m; times in s after the shot. A trace without a pick has the
    line between those of its shot that are next in offset, on its side of the source; beyond them
    it is silent, and so is a shot without picks.
    """
    after: Time | None = None
    """Silence after this time, at all offsets."""
    keep: Literal["below", "above", "outside"] = "below"
    """What is kept: `"below"` the line, which is later; `"above"` it; `"outside"` a strip.

    `"outside"` silences from the line on for `width`.
    """
    width: Seconds | None = None
    """Of the strip that `"outside"` silences."""
    taper: Annotated[float, Field(ge=0.0, le=1e9), Unit("s")] = 0.1
    """From silence to full amplitude, a cosine on the side that is kept."""

    @model_validator(mode="after")
    def _one_line(self) -> Self:
        keys = ("velocity", "curve", "picks", "after")
        if sum(getattr(self, key) is not None for key in keys) != 1:
            raise ValueError("expected exactly one of velocity, curve, picks and after")
        if self.after is not None and (self.keep != "below" or self.delay or self.width):
            raise ValueError("after stands alone, with taper: what is before it is kept")
        if (self.width is not None) != (self.keep == "outside"):
            raise ValueError('keep = "outside" and width belong together')
        offsets = [offset for offset, _ in self.curve or ()]
        if any(far <= near for near, far in pairwise(offsets)):
            raise ValueError(f"the offsets of curve are {offsets}; expected each above the last")
        return self


class Weight(Section):
    """Factors of whole traces: powers, 0 for none."""

    offset: Power = 0.0
    """Of the offset over 1 km; positive ones strengthen far traces.

    Offsets under 10 m count as 10 m.
    """
    amplitude: Power = 0.0
    """Of the observed trace's root mean square over the median of its shot's.

    -1 gives all traces of a shot the same strength, which a strong one then cannot outvote.
    """


class Edit(Section):
    """Leave out traces whose observed amplitude is not like that of others at such offsets.

    The amplitude is the root mean square, compared with the median of the 11 nearest traces of the
    shot in offset. Traces that are not finite are left out as well.
    """

    above: Factor = 10.0
    """Times the median, above which a trace is left out."""
    below: Factor = 0.01
    """Times the median, below which a trace is left out."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.below >= min(self.above, 1.0):
            raise ValueError("expected below less than above, and less than 1")
        return self


def _listed(value: object) -> object:
    return [value] if isinstance(value, Mapping | Mute) else value


class DataSection(Section):
    """Which of the data count, and how much; nothing is changed where nothing is given.

    All but `correct` act alike on observed and simulated traces. docs/data.md has the formulas,
    and says when to use which.
    """

    band: Annotated[tuple[Corner, Corner], Field(strict=False)] | None = None
    """Lowest and highest frequency: `[0.0, 3.0]` is a low-pass, `[2.0, 12.0]` a band-pass.

    Zero phase; half of the amplitude is left at each. Traces and wavelet are sampled no more often
    than the band needs. Where not given, everything counts.
    """
    offsets: Annotated[tuple[Offset, Offset], Field(strict=False)] | None = None
    """Nearest and furthest offset that count; `inversion.max_offset` is another furthest."""
    mute: Annotated[
        tuple[Mute, ...], BeforeValidator(_listed), Field(strict=False, max_length=20)
    ] = ()
    """Parts of the traces that are silenced: a table, or a list of tables."""
    weight: Weight | None = None
    """Factors of whole traces, by offset or by amplitude."""
    gain: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    """Power of the time (s) that samples are multiplied by; 1 or 2 strengthens late arrivals."""
    edit: Edit | None = None
    """Leave out traces that are dead, loud or not finite; `{}` for the usual limits."""
    correct: Literal["line-source"] | None = None
    """Observed data of point sources, as a line source of a 2-D model would have given them."""

    @property
    def picks(self) -> list[str]:
        """The files of picks, each once."""
        return list(dict.fromkeys(mute.picks for mute in self.mute if mute.picks is not None))

    @property
    def shapes_traces(self) -> bool:
        """Whether observed and simulated traces are multiplied by anything."""
        return bool(self.mute or self.weight or self.gain)

    @model_validator(mode="after")
    def _low_before_high(self) -> Self:
        if self.band is not None and self.band[0] >= self.band[1]:
            raise ValueError(f"band is {list(self.band)}; expected the lower frequency first")
        return self

    @model_validator(mode="after")
    def _near_before_far(self) -> Self:
        if self.offsets is not None and self.offsets[0] >= self.offsets[1]:
            raise ValueError(
                f"offsets are {list(self.offsets)}; expected the nearer one first, in m"
            )
        return self
