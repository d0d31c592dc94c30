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

    The network is fitted to the initial model. Then the optimizer of `[inversion]` changes its
    weights by the gradient of the misfit; `lr` and `step` are those of the weights. `kind` may be a
    class of your own, "module:Class", from `folder` or from the path of Python: a torch module as
    `hpcfwi/inversion/networks.py` describes. Its keyword-only parameters are keys of this table.
    """

    registry: ClassVar = NETWORKS
    naming: ClassVar[str] = "kind"

    kind: Annotated[str, AfterValidator(name_of(NETWORKS, "Class"))]
    fit: Count = 1000
    """Number of steps in which the network is fitted to the initial model."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the first weights."""
    folder: FileName | None = None
    """Folder of the module of a class of your own; by default that of the input file."""

    @property
    def place(self) -> str:
        """The place of the network; raises `InputError` if it cannot be imported."""
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
    """Smooth 1 / velocity instead, which preserves travel times.

    A mean of velocities is faster than its layers, so that deep reflections would come too early.
    """
    linear: Annotated[tuple[Speed, Growth], Field(strict=False)] | None = None
    """Velocity at depth 0 (m/s) and its growth with depth (m/s a metre).

    Cells that the inversion keeps stay as they are, as with `smooth`.
    """
    file: FileName | None = None
    """A model file that covers the model, except for less than one of its cells at the edges.

    It is resampled to the grid of the model, and low-pass filtered first if that grid is coarser. A
    run stores the starting model in its directory and continues with that, whatever happens to the
    file.
    """
    run: FileName | None = None
    """The directory of another run, whose result, `model.h5`, is taken as `file`.

    To start from the best model of a run, give its `model_best.h5` as `file`.
    """

    _one_of_them = exactly_one("smooth", "smooth_slowness", "linear", "file", "run")

    @property
    def smoothing(self) -> tuple[str, float, float] | None:
        """Key of the smoothing, its length (m) and the power of the velocity that is averaged."""
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
    """A known model. `"dome"`, which is 3-D, and `"dome-section"` are computed, not downloaded."""
    file: FileName | None = None
    """A model file: the true model if observed data are simulated, else the grid of the inversion.
    """
    true: FileName | None = None
    """A model file with the true model, if the survey has a file of data from elsewhere.

    It serves the model error in the metrics and the figures; `model_best.h5` is then the model that
    is nearest to it. Nothing else depends on it. It is resampled as `model.initial.file` is.
    """
    spacing: Length | None = None
    """Spacing to which the model is resampled along all axes; by default its own.

    The model is low-pass filtered first if that is coarser.
    """
    initial: Initial
    """The starting model."""
    network: NetworkSection | None = None
    """A network that computes the model; the inversion is for its weights."""

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
    """Number of points; a single one is placed in the middle."""
    depth: Position
    """Depth of all points."""
    first: OneOrPair[Position] | None = None
    """Position of the first point along each axis; by default the model's first."""
    last: OneOrPair[Position] | None = None
    """Position of the last point along each axis; by default the model's last."""

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
    """Points that are the same for all shots or, with `offset` and `spacing`, a moving spread.

    A spread moves with the source, along x, in a 3-D model at the source's y:
    `{ count = 120, spacing = 25.0, offset = 100.0, depth = 8.0 }` are receivers from 100 to 3075 m
    beyond each source. Both lengths are negative for a streamer that is towed behind a source that
    moves towards larger x. Receivers beyond an end of the model are left out.
    """

    offset: Position | None = None
    """Distance along x from the source to the first receiver, negative towards smaller x."""
    spacing: Position | None = None
    """Distance along x from a receiver to the next, negative towards smaller x."""

    @property
    def moves(self) -> bool:
        """True if the receivers move with the source."""
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
    """The wavelet that each source emits."""

    kind: Literal["ricker"]
    """`"ricker"`: the second derivative of a Gaussian."""
    frequency: Hertz
    """Peak frequency."""
    delay: Time
    """Time of the peak."""


class SurveySection(Section):
    """Sources, receivers, the wavelet, sampling and duration.

    Give either all keys but `file`, for data that hpcfwi simulates itself, or `file`. A `wavelet`
    beside `file` replaces that of the file.
    """

    file: FileName | None = None
    """A gathers file of observed data; `hpcfwi convert` makes one from SEG-Y."""
    sources: Points | None = None
    """Points along a line or in an area; each is one shot."""
    receivers: Receivers | None = None
    """Points, the same for all shots, or a spread that moves with the source."""
    wavelet: Wavelet | None = None
    """The wavelet that each source emits."""
    dt: Seconds | None = None
    """Sampling interval of wavelet and traces.

    If it is too long for a stable scheme, each step is divided into substeps. Beside `file`, `dt`
    and `duration` belong to a `wavelet`, for `hpcfwi forward --to` alone.
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
        """The place of the sampling interval, for messages."""
        return f"{self.file}, attribute dt" if self.file and self.dt is None else "survey.dt"


def check_times(dt: float, duration: float, frequency: float) -> None:
    """Raise ValueError if a Ricker wavelet (Hz) and a record (s) do not fit each other."""
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
    """A history in full detail.

    A history is chosen when an inversion starts, for the largest window of the survey, and is the
    same on all ranks; a reproducible inversion keeps it when it continues. The log names it:
    `History: snapshots, every 14 steps, float16, 84.7 MB a shot; 1 shot at a time`.
    docs/decisions/014-memory.md has the rules, and what happens when memory runs out.
    """

    kind: HistoryKind = "snapshots"
    """Store the sampled steps, rebuild them from the model's perimeter, or simulate them again."""
    interval: Count | None = None
    """Steps from one sampled step to the next; 1 gives the exact gradient of the discrete scheme.

    The default is the Nyquist rate of the wavelet, which changes the gradient by some tenths of a
    per cent.
    """
    format: HistoryFormat | None = None
    """Format of the stored numbers, by default full precision; not for `recompute`."""
    states: Count | None = None
    """Number of states from which steps are simulated again, by default 8; for `recompute`."""

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
    """Spacing of a coarser grid on which the inversion simulates its waves.

    `"auto"`: the coarsest that the highest frequency of the wavelet, after `data.band`, allows. The
    model that is inverted for, written and drawn stays on its own grid, on which observed data are
    simulated as well.
    """
    boundary: Annotated[int, Field(ge=0, le=1000), Unit("cells")] = 20
    """Width of the absorbing boundary (CPML) outside the model."""
    aperture: Length | None = None
    """Simulate each shot only in the part of the model around its source and its receivers.

    The part has all depths and reaches, along each horizontal axis, this much further than source
    and receivers on both sides, in whole cells, within the model. It has an absorbing boundary of
    its own. By default every shot has the whole model, as observed data always have.
    docs/physics.md says what is lost.
    """
    free_surface: bool = False
    """If true, p = 0 at the top of the model, in place of the absorbing boundary there."""
    engine: EngineName = "auto"
    """The engine that computes the waves.

    `"cpu"` is compiled, for CPUs; `"gpu"` is made with Triton, for GPUs; `"eager"` is the
    reference, for any device; `"deepwave"` needs that package. `"auto"` is `"cpu"` on CPUs and
    `"gpu"` on GPUs, or `"eager"` if Triton is not installed.
    """
    history: Annotated[
        Annotated[HistoryName, Tag("a name")] | Annotated[HistorySection, Tag("a table")],
        Discriminator(_tag_history),
    ] = "auto"
    """The data of the forward simulation that are stored for the backward one.

    `"auto"`: the fastest history of the engine that fits into the memory. If there is plenty, these
    are snapshots as float16, which change the gradient by 0.02 %, in addition to the sampling.
    `"snapshots"`, `"boundary"`, `"recompute"`: the fastest of this kind. A table: exactly this one.
    """
    memory: Annotated[str, BeforeValidator(check_size)] | None = None
    """Approximate limit of the memory for the simulations of one rank, with its unit.

    `"12 GB"` (10^9 bytes each) or `"12 GiB"` (2^30). The `history` and the number of shots at a
    time are chosen by it. The default is the memory that is free and not needed otherwise.
    """


Corner = Annotated[float, Field(ge=0.0, le=1e12), Unit("Hz")]
Offset = Annotated[float, Field(ge=0.0, le=1e9), Unit("m")]
Power = Annotated[float, Field(ge=-10.0, le=10.0)]
Factor = Annotated[float, Field(gt=0.0, le=1e9)]


class Mute(Section):
    """Silence on one side of a line through the traces, as a function of offset and time.

    The line is one of these: `velocity`, with `delay` (time = delay + offset / velocity); `curve`,
    the same for all shots, through points [offset, time]; `picks`, one for each shot, from a file;
    `after`, one time for all offsets.
    """

    velocity: Annotated[float, Field(gt=0.0, le=1e6), Unit("m/s")] | None = None
    """Velocity of a straight line, such as that of the direct wave."""
    delay: Time = 0.0
    """Delay of the line after `offset / velocity`, the `curve` or the `picks`; may be negative."""
    curve: (
        Annotated[
            tuple[Annotated[tuple[Offset, Time], Field(strict=False)], ...],
            Field(strict=False, min_length=2),
        ]
        | None
    ) = None
    """Points [offset in m, time in s] of a line, straight in between, level beyond the ends.
    """
    picks: FileName | None = None
    """A text file of first breaks: a header that names the columns, and a row for each pick.

    Columns are `shot receiver time`, numbers from 0, or `source_x receiver_x time` (and `source_y`,
    `receiver_y` in a 3-D model), in m; times in s after the shot. For a trace without a pick, the
    line is interpolated between the picks of its shot that are next in offset, on its side of the
    source. Beyond them a trace is silent, and so is a shot without picks.
    """
    after: Time | None = None
    """Silence after this time, at all offsets."""
    keep: Literal["below", "above", "outside"] = "below"
    """The side that is kept, `"below"` (after) the line, `"above"` (before) it, or `"outside"`.

    `"outside"` silences a strip that begins at the line and has the duration `width`.
    """
    width: Seconds | None = None
    """Duration of the strip that `"outside"` silences."""
    taper: Annotated[float, Field(ge=0.0, le=1e9), Unit("s")] = 0.1
    """Duration from silence to full amplitude, by a cosine on the side that is kept."""

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
    """Power of the offset over 1 km; positive powers strengthen far traces.

    Offsets under 10 m count as 10 m.
    """
    amplitude: Power = 0.0
    """Power of the root mean square of the observed trace over the median of its shot.

    -1 gives all traces of a shot the same strength, so that no strong one dominates.
    """


class Edit(Section):
    """Leave out traces whose observed amplitude differs from that of others at similar offsets.

    The amplitude is the root mean square, compared with the median of the 11 nearest traces of the
    shot in offset. Traces that are not finite are left out as well.
    """

    above: Factor = 10.0
    """Factor of the median above which a trace is left out."""
    below: Factor = 0.01
    """Factor of the median below which a trace is left out."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.below >= min(self.above, 1.0):
            raise ValueError("expected below less than above, and less than 1")
        return self


def _listed(value: object) -> object:
    return [value] if isinstance(value, Mapping | Mute) else value


class DataSection(Section):
    """Selection and weighting of the data; by default nothing is changed.

    All keys but `correct` treat observed and simulated traces alike. docs/data.md has the formulas
    and says when to use which key.
    """

    band: Annotated[tuple[Corner, Corner], Field(strict=False)] | None = None
    """Lowest and highest frequency: `[0.0, 3.0]` is a low-pass, `[2.0, 12.0]` a band-pass.

    The filter has zero phase and leaves half of the amplitude at each. Traces and wavelet are
    sampled no more often than the band needs. By default all frequencies count.
    """
    offsets: Annotated[tuple[Offset, Offset], Field(strict=False)] | None = None
    """Smallest and largest offset that count; `inversion.max_offset` is another largest one."""
    mute: Annotated[
        tuple[Mute, ...], BeforeValidator(_listed), Field(strict=False, max_length=20)
    ] = ()
    """Parts of the traces that are silenced: a table, or a list of tables."""
    weight: Weight | None = None
    """Factors of whole traces, by offset or by amplitude."""
    gain: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    """Power of the time (s) by which samples are multiplied; 1 or 2 strengthens late arrivals."""
    edit: Edit | None = None
    """Leave out traces that are dead, loud or not finite; `{}` for the default limits."""
    correct: Literal["line-source"] | None = None
    """Convert observed data of point sources to those of line sources, for a 2-D model."""

    @property
    def picks(self) -> list[str]:
        """The files of picks, each once."""
        return list(dict.fromkeys(mute.picks for mute in self.mute if mute.picks is not None))

    @property
    def shapes_traces(self) -> bool:
        """True if observed and simulated traces are multiplied by factors."""
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
