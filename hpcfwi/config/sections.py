"""The sections [model], [survey], [wave] and [data] of an input file.

They describe the earth and where the inversion starts; who shoots, who listens, what is emitted and
for how long; the equation and how it is solved; which of the data count, and how much.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from hpcfwi.config.values import (
    Choice,
    Count,
    FileName,
    Hertz,
    Length,
    OneOrPair,
    Position,
    Seconds,
    Section,
    Time,
    Unit,
    check_size,
    exactly_one,
    find_own,
    name_of,
    tag_pair,
)
from hpcfwi.registry import (
    DATASETS,
    ENGINES,
    NETWORKS,
    HistoryFormat,
    HistoryKind,
    HistoryName,
    Order,
)


class NetworkSection(Choice):
    """A network in place of values on a grid: docs/networks.md.

    It is fitted to the initial model. Then the optimiser of `[inversion]` changes its weights, by
    the gradient of the misfit, and its `lr` or `step` is theirs. `kind` may be a class of your own,
    "module:Class", from `folder` or from where else Python finds it: a torch module as
    `hpcfwi/inversion/networks.py` says; its keyword-only parameters are keys here.
    """

    registry: ClassVar = NETWORKS
    naming: ClassVar[str] = "kind"

    kind: Annotated[str, AfterValidator(name_of(NETWORKS, "Class"))]
    fit: Count = 1000
    """Steps in which it is fitted to the initial model."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Of its first weights."""
    folder: FileName | None = None
    """Folder of the module of a class of your own; that of the input file where not given."""

    @property
    def place(self) -> str:
        """Where the network is; raises `InputError` where it cannot be imported."""
        find_own("model.network.kind", self.kind, NETWORKS, self.folder)
        return NETWORKS.get(self.kind, self.kind)


if TYPE_CHECKING:
    DatasetName = str
else:
    DatasetName = Literal[*DATASETS]

Speed = Annotated[float, Field(gt=0.0, le=1e5)]
Growth = Annotated[float, Field(ge=-1e3, le=1e3)]


class Initial(Section):
    """The starting model: one of `smooth`, `smooth_slowness`, `linear`, `file` and `run`."""

    smooth: Length | None = None
    """Smooth the model by a Gaussian of this standard deviation.

    Cells that the inversion keeps (`inversion.fixed_above`, `inversion.fixed`) stay as they are.
    """
    smooth_slowness: Length | None = None
    """As `smooth`, but of 1 / velocity, which keeps the times at which waves arrive.

    A mean of velocities is faster than its layers: echoes of deep ones would come too early.
    """
    linear: Annotated[tuple[Speed, Growth], Field(strict=False)] | None = None
    """Velocity at depth 0 (m/s), and by how much it grows (m/s a metre), where nothing is known.

    As `smooth`, it keeps the cells that the inversion keeps.
    """
    file: FileName | None = None
    """A model file; it covers the model, but for less than a cell of its own at the edges.

    Where its grid is another it is resampled, low-pass filtered first where that coarsens. What a
    run has begun with is kept in its directory: it goes on with that, whatever becomes of the file.
    """
    run: FileName | None = None
    """The directory of another run, whose result, `model.h5`, is the start; else as `file`.

    For its best model name `model_best.h5` as `file`.
    """

    _one_of_them = exactly_one("smooth", "smooth_slowness", "linear", "file", "run")

    @property
    def smoothing(self) -> tuple[str, float, float] | None:
        """The key that asks for a smooth model, its length (m), and of which power it is a mean."""
        if self.smooth is not None:
            return "smooth", self.smooth, 1.0
        if self.smooth_slowness is not None:
            return "smooth_slowness", self.smooth_slowness, -1.0
        return None


class ModelSection(Section):
    """The earth: either `dataset` or `file`.

    Positions count from the zero of the model's own coordinates, its `origin`. The window of
    Marmousi begins at z = x = 800 m: a source at its top has the depth 800.
    """

    dataset: DatasetName | None = None
    """A known model; `"dome"`, which is 3-D, and `"dome-section"` are computed: nothing is fetched.
    """
    file: FileName | None = None
    """A model file: the true model where observed data are simulated, else the grid to invert on.
    """
    true: FileName | None = None
    """A model file with the truth, where the survey has a file of data from elsewhere.

    For the model error in the metrics and the true model in the figures; `model_best.h5` is then
    the model that is nearest to it. Nothing else depends on it. It is resampled as
    `model.initial.file` is.
    """
    spacing: Length | None = None
    """Resample to this along all axes; low-pass filtered first where that coarsens.

    Where not given, the model keeps its own.
    """
    initial: Initial
    """Where the inversion starts."""
    network: NetworkSection | None = None
    """A network that the model is made by, whose weights are what is inverted for."""

    _one_of_both = exactly_one("dataset", "file")


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


if TYPE_CHECKING:
    EngineName = str
else:
    EngineName = Literal["auto", *ENGINES]


def _tag_spacing(value: object) -> str:
    return "a name" if isinstance(value, str) else "a number"


Spacing = Annotated[
    Annotated[Literal["auto"], Tag("a name")] | Annotated[Length, Tag("a number")],
    Discriminator(_tag_spacing),
]


class HistorySection(Section):
    """A history told exactly.

    The choice is made when an inversion starts, for the largest window of the survey, and is the
    same on all ranks; a reproducible inversion keeps it when it goes on. The log names it:
    `History: snapshots, every 14 steps, float16, 84.7 MB a shot; 1 shot at a time`.
    docs/decisions/014-memory.md has the rules, and what happens when memory runs out.
    """

    kind: HistoryKind = "snapshots"
    """Keep the sampled steps, rebuild them from the model's perimeter, or compute them again."""
    interval: Count | None = None
    """Steps from one sampled step to the next; 1 gives the exact gradient of the discrete scheme.

    By default the Nyquist rate of the wavelet, which changes the gradient by some tenths of a per
    cent.
    """
    format: HistoryFormat | None = None
    """How numbers are kept, by default in full; not for `recompute`."""
    states: Count | None = None
    """How many whole states recomputation starts from, by default 8; only for `recompute`."""

    @model_validator(mode="after")
    def _keys_of_its_own(self) -> Self:
        foreign = "format" if self.kind == "recompute" else "states"
        if getattr(self, foreign) is not None:
            raise ValueError(f"{self.kind} has no {foreign}")
        return self


def _tag_history(value: object) -> str:
    return "a table" if isinstance(value, Mapping | HistorySection) else "a name"


class WaveSection(Section):
    """The equation and how it is solved."""

    equation: Literal["acoustic"] = "acoustic"
    """The constant-density acoustic equation, the only one so far."""
    order: Order = 8
    """Order of the differences in space."""
    spacing: Spacing | None = None
    """Simulate the inversion's waves on a coarser grid than the model's: points this far apart.

    `"auto"`: as far as the highest frequency of the wavelet, after `data.band`, allows. What is
    inverted for, written and drawn is still the model on its own grid, of which waves then see what
    the coarser one carries. Observed data are simulated on the model's own.
    """
    boundary: Annotated[int, Field(ge=0, le=1000), Unit("cells")] = 20
    """Absorbing boundary (CPML) outside the model."""
    aperture: Length | None = None
    """Simulate each shot only in the part of the model around its source and its receivers.

    All depths, and along each horizontal axis from the first of them to the last, with this much
    more on both sides, in whole cells, as far as the model goes. The part has an absorbing boundary
    of its own. Where not given, every shot has the whole model. docs/physics.md says what is lost.
    It concerns the inversion; observed data are always simulated in the whole model.
    """
    free_surface: bool = False
    """Whether p = 0 at the top of the model, in place of the boundary there."""
    engine: EngineName = "auto"
    """What computes the waves.

    `"cpu"` is compiled, for CPUs, `"gpu"` made with Triton, for GPUs, `"eager"` the reference, for
    any device, and `"deepwave"` needs that package. `"auto"` takes `"cpu"` on CPUs and `"gpu"` on
    GPUs, where Triton is not installed `"eager"`.
    """
    history: Annotated[
        Annotated[HistoryName, Tag("a name")] | Annotated[HistorySection, Tag("a table")],
        Discriminator(_tag_history),
    ] = "auto"
    """What the backward pass keeps of the forward one.

    `"auto"`: the fastest that fits into the memory, of those the engine has. Where there is plenty
    that is snapshots as float16, which changes the gradient by 0.02 % beside what the sampling
    does. `"snapshots"`, `"boundary"`, `"recompute"`: the same among those of one kind. A table:
    exactly this one.
    """
    memory: Annotated[str, BeforeValidator(check_size)] | None = None
    """What the simulations of one rank may take, about, with its unit.

    `"12 GB"` (10^9 bytes each) or `"12 GiB"` (2^30). It is the limit by which `history` and the
    number of shots at a time are chosen; where not given, what is free and not needed otherwise.
    """


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
