"""The sections [model], [survey] and [data] of an input file.

They describe the model and the starting model; the sources, receivers, wavelet and time axis; and
the selection and weighting of the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from hpcfwi.config.values import (
    Choice,
    Count,
    FileName,
    Hertz,
    Length,
    Names,
    OneOf,
    OneOrPair,
    Pair,
    Position,
    Seconds,
    Section,
    Several,
    Time,
    Unit,
    exactly_one,
    find_plugin,
    name_of,
    tag_pair,
)
from hpcfwi.registry import DATASETS, NETWORKS
from hpcfwi.survey import COMPONENTS, SOURCE_KINDS, STRAIN


class NetworkSection(Choice):
    """A network that computes the model, in place of values on a grid; see docs/networks.md.

    The network is first fitted to the initial model. Then the optimizer of `[inversion]` updates
    its weights with the gradient of the misfit; `lr` and `step` apply to the weights. `kind` may
    also be your own class, `"module:Class"`, whose module is in `folder` or on Python's path. It is
    a torch module as described in `hpcfwi/inversion/networks.py`, and its keyword-only parameters
    are keys of this table.
    """

    registry: ClassVar = NETWORKS
    naming: ClassVar[str] = "kind"

    kind: Annotated[str, AfterValidator(name_of(NETWORKS, "Class"))]
    fit: Count = 1000
    """Number of steps that fit the network to the initial model."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Random seed of the initial weights."""
    folder: FileName | None = None
    """Folder of the module of your own class; by default the folder of the input file."""

    @property
    def place(self) -> str:
        """The place of the network's class; raises `InputError` if it cannot be imported."""
        find_plugin("model.network.kind", self.kind, NETWORKS, self.folder)
        return NETWORKS.get(self.kind, self.kind)


Speed = Annotated[float, Field(gt=0.0, le=1e5)]
Growth = Annotated[float, Field(ge=-1e3, le=1e3)]


class InitialShear(Section):
    """Starting S velocities that do not come from the starting model; give one key.

    Fluids, where the model has `vs = 0`, and fixed cells keep their values. If the model has no
    `vs`, fixed cells with P velocities below 1600 m/s are fluids.
    """

    ratio: Annotated[float, Field(ge=2.0**0.5, le=100.0)] | None = None
    """Ratio of P to S velocity: 1.8 is typical of rock, and 3 and more of soft sediments."""
    file: FileName | None = None
    """A model file with `vs`, see `model.initial.file`."""

    _one_of_them = exactly_one("ratio", "file")


class InitialDensity(Section):
    """Starting densities that do not come from the starting model; give one key.

    Fluids and fixed cells keep their values, as for `vs`. If the model has no `rho`, fluids have
    1000 kg/m3.
    """

    gardner: Literal[True] | None = None
    """If true, the density is 310 times the fourth root of the P velocity (Gardner et al. 1974)."""
    constant: Annotated[float, Field(gt=0.0, le=1e5), Unit("kg/m3")] | None = None
    """The same density in all cells."""
    file: FileName | None = None
    """A model file with `rho`, see `model.initial.file`."""

    _one_of_them = exactly_one("gardner", "constant", "file")


class InitialQuality(Section):
    """Starting quality factors that do not come from the starting model; give one key.

    Fluids and fixed cells keep their values, as for `vs`. If the model has none, fluids have 10000.
    """

    constant: Annotated[float, Field(ge=5.0, le=1e5)] | None = None
    """The same quality factor in all cells."""
    file: FileName | None = None
    """A model file with the quality factor, see `model.initial.file`."""

    _one_of_them = exactly_one("constant", "file")


class Initial(Section):
    """The starting model; give one of `smooth`, `smooth_slowness`, `linear`, `file` and `run`.

    All parameters of the equation come from it, except those with a key of their own.
    """

    smooth: Length | None = None
    """Smooth the model with a Gaussian of this standard deviation.

    Fixed cells (`inversion.fixed_above`, `inversion.fixed`) are not changed.
    """
    smooth_slowness: Length | None = None
    """Smooth 1 / velocity instead of the velocity, which preserves travel times.

    An average of velocities is too fast for the layers that it replaces, so that deep reflections
    would arrive too early.
    """
    linear: Annotated[tuple[Speed, Growth], Field(strict=False)] | None = None
    """P velocity at depth 0 (m/s) and its increase with depth (m/s per m).

    Fixed cells are not changed, as with `smooth`, and neither are other parameters.
    """
    file: FileName | None = None
    """A model file that covers the model, except for less than one of its cells at the edges.

    It is resampled to the grid of the model, after a low-pass filter if that grid is coarser. A run
    stores the starting model in its directory and continues with this copy, even if the file is
    changed or removed.
    """
    run: FileName | None = None
    """The directory of another run, whose result `model.h5` is used as `file`.

    To start from the best model of a run, give its `model_best.h5` as `file`.
    """
    vs: InitialShear | None = None
    """Starting S velocities, if they do not come from the starting model."""
    rho: InitialDensity | None = None
    """Starting densities, if they do not come from the starting model."""
    qp: InitialQuality | None = None
    """Starting quality factors of P waves, if they do not come from the starting model."""
    qs: InitialQuality | None = None
    """Starting quality factors of S waves, if they do not come from the starting model."""

    _one_of_them = exactly_one("smooth", "smooth_slowness", "linear", "file", "run")

    @property
    def own(self) -> Mapping[str, InitialShear | InitialDensity | InitialQuality]:
        """The starting values that do not come from the starting model, by parameter."""
        given = {"vs": self.vs, "rho": self.rho, "qp": self.qp, "qs": self.qs}
        return {name: start for name, start in given.items() if start is not None}

    @property
    def smoothing(self) -> tuple[str, float, float] | None:
        """The key of the smoothing, its length (m), and the power of the velocity it averages.

        None if the starting model is not smoothed.
        """
        if self.smooth is not None:
            return "smooth", self.smooth, 1.0
        if self.smooth_slowness is not None:
            return "smooth_slowness", self.smooth_slowness, -1.0
        return None


class ModelSection(Section):
    """The model of the earth; give either `dataset` or `file`.

    All positions are in the coordinates of the model, whose first point is at its `origin`. The
    window of Marmousi, for example, begins at z = x = 800 m: a source at its top has a depth of
    800 m.
    """

    dataset: Annotated[str, OneOf(DATASETS)] | None = None
    """A known model; `"dome"` (3-D) and `"dome-section"` are computed, not downloaded."""
    file: FileName | None = None
    """A model file: the true model if data are simulated, else the grid of the inversion."""
    true: FileName | None = None
    """A model file with the true model, for a survey with a file of data.

    It is used for the model error in the metrics and figures, and `model_best.h5` is then the model
    that is closest to it; nothing else depends on it. It is resampled in the same way as
    `model.initial.file`.
    """
    spacing: Length | None = None
    """Spacing to which the model is resampled along all axes; by default it is not resampled.

    If this spacing is coarser, the model is low-pass filtered first.
    """
    initial: Initial
    """The starting model."""
    network: NetworkSection | None = None
    """A network that computes the model; the inversion updates its weights."""

    _one_of_both = exactly_one("dataset", "file")


ComponentName = Annotated[str, OneOf(COMPONENTS)]

# Largest number of samples in a trace; no recorder has as many
MOST_SAMPLES = 10**6
# s; a `dt` that is too long for the wavelet may have been given in ms if it is at least this long
LIKELY_MILLISECONDS = 0.1


class Points(Section):
    """Points at one depth, evenly spaced along x, or along y and x for a 3-D model."""

    count: OneOrPair[Count]
    """Number of points; a single one is placed in the middle."""
    depth: Position
    """Depth of all points."""
    first: OneOrPair[Position] | None = None
    """Position of the first point along each axis; by default the first point of the model."""
    last: OneOrPair[Position] | None = None
    """Position of the last point along each axis; by default the last point of the model."""

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


Moment = Annotated[float, Field(allow_inf_nan=False)]


class Sources(Points):
    """Points at one depth, which are one shot each, and the kind of their sources.

    They are evenly spaced along x, or along y and x for a 3-D model. In a 3-D model `count`,
    `first` and `last` are pairs, for y and x:
    `{ count = [4, 6], depth = 25.0, first = [200.0, 0.0], last = [800.0, 1500.0] }` defines four
    lines along x of six points each, numbered line by line. `count = [1, 40]` is a single line in
    the middle of the y axis. Pairs are an error in a 2-D model, and single numbers in a 3-D model.

    `{ count = 20, depth = 5.0, kind = "force-z" }` are vertical forces. With a `moment`, the
    wavelet is the rate of the moment.
    """

    kind: Annotated[str, OneOf(SOURCE_KINDS)] = "explosive"
    """The kind of the sources.

    `"force-z"`, `"force-y"` and `"force-x"` are forces, which the equations except `"acoustic"`
    have. The wavelet is then in N (N/m in 2-D), positive downwards and towards larger y and x.
    """
    moment: Several[Several[Moment]] | None = None
    """A symmetric moment tensor, in place of `kind`, in the order z, x or z, y, x of the axes.

    `[[1.0, 0.0], [0.0, -1.0]]` is an example for a 2-D model. The elastic equations
    and `"viscoelastic"` have these sources.
    """

    @model_validator(mode="after")
    def _kind_or_moment(self) -> Self:
        if self.moment is None:
            return self
        if self.kind != "explosive":
            raise ValueError("kind and moment exclude each other")
        rows, ndim = self.moment, 3 if isinstance(self.count, tuple) else 2
        if len(rows) != ndim or any(len(row) != ndim for row in rows):
            raise ValueError(f"moment is {rows}; expected {ndim} rows of {ndim} numbers")
        symmetric = all(rows[i][j] == rows[j][i] for i in range(ndim) for j in range(i))
        if not symmetric or not any(map(any, rows)):
            raise ValueError(f"moment is {rows}; expected a symmetric tensor that is not 0")
        return self


class Receivers(Points):
    """Points that are the same for all shots or, with `offset` and `spacing`, a moving spread.

    A spread is a line of receivers along x that moves with the source; in a 3-D model it has the y
    of the source. `{ count = 120, spacing = 25.0, offset = 100.0, depth = 8.0 }` are receivers at
    x from 100 to 3075 m beyond each source. `offset` and `spacing` are negative for a streamer
    towed by a ship that moves towards larger x. Receivers outside the model are left out.
    """

    offset: Position | None = None
    """Distance along x from the source to the first receiver; negative towards smaller x."""
    spacing: Position | None = None
    """Distance along x from one receiver to the next; negative towards smaller x."""
    components: Names[ComponentName] = ("pressure",)
    """The components of the waves that each receiver records, as one trace each.

    `"vz"`, `"vy"` and `"vx"` are particle velocities, positive downwards and towards larger y and
    x. `"strain"` is the strain along a fibre (DAS), averaged over `gauge`. The equation
    `"acoustic"` has only `"pressure"`.
    """
    direction: Several[Moment] | None = None
    """Direction of the fibre, with depth first; `[0.0, 1.0]` is horizontal in a 2-D model."""
    gauge: Length | None = None
    """Length of fibre over which the strain is averaged."""

    @model_validator(mode="after")
    def _fibre_for_strain(self) -> Self:
        records = STRAIN in self.components
        for key in ("direction", "gauge"):
            if (getattr(self, key) is not None) != records:
                raise ValueError(
                    f'{key} is {"missing" if records else "given"}: the component "strain", '
                    "direction and gauge belong together"
                )
        if self.direction is not None:
            ndim = 3 if isinstance(self.count, tuple) else 2
            if len(self.direction) not in {ndim, ndim + self.moves} or not any(self.direction):
                raise ValueError(
                    f"direction is {list(self.direction)}; expected a number for each axis, not "
                    "all of them 0"
                )
        return self

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
                    f"{key} is for receivers that are the same for all shots, offset and spacing "
                    "are for receivers that move with the source; expected one of the two"
                )
        if self.offset is None or self.spacing is None:
            missing = "offset" if self.offset is None else "spacing"
            raise ValueError(f"{missing} missing for receivers that move with the source")
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
    """Time of the peak, from the start of the record."""


class SurveySection(Section):
    """Sources, receivers, wavelet, sampling interval and duration.

    Give either `file`, or all other keys for data that hpcfwi simulates. A `wavelet` given together
    with `file` replaces the wavelet of the file.
    """

    file: FileName | None = None
    """A gathers file with observed data; `hpcfwi convert` creates one from SEG-Y files."""
    sources: Sources | None = None
    """Points along a line or in an area; each point is one shot."""
    receivers: Receivers | None = None
    """Points that are the same for all shots, or a spread that moves with the source."""
    wavelet: Wavelet | None = None
    """The wavelet that each source emits."""
    dt: Seconds | None = None
    """Sampling interval of wavelet and traces.

    If it is too long for a stable scheme, each step is divided into substeps. If `file` is given,
    `dt` and `duration` need a `wavelet`, and only `hpcfwi forward --to` uses them.
    """
    duration: Seconds | None = None
    """Length of the record, which has duration / dt samples, rounded; at least two."""

    @model_validator(mode="after")
    def _file_or_all_others(self) -> Self:
        keys = ("sources", "receivers", "wavelet", "dt", "duration")
        given = [key for key in keys if getattr(self, key) is not None]
        if self.file is not None and given:
            if given[0] in ("sources", "receivers"):
                raise ValueError(f"file and {given[0]} exclude each other")
            if self.wavelet is None:
                raise ValueError(f"with file, {given[0]} belongs to a wavelet: give wavelet too")
        if self.file is None and len(given) < len(keys):
            missing = [key for key in keys if key not in given]
            raise ValueError(f"{', '.join(missing)} missing; expected all of them, or file")
        if self.dt and self.duration and self.wavelet:
            check_times(self.dt, self.duration, self.wavelet.frequency)
        return self

    @property
    def dt_place(self) -> str:
        """The file or key that defines the sampling interval, for messages."""
        return f"{self.file}, attribute dt" if self.file and self.dt is None else "survey.dt"


def check_times(dt: float, duration: float, frequency: float) -> None:
    """Raise ValueError if a record (s) is too short or too coarse for a Ricker wavelet (Hz)."""
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


Corner = Annotated[float, Field(ge=0.0, le=1e12), Unit("Hz")]
Offset = Annotated[float, Field(ge=0.0, le=1e9), Unit("m")]
Point = Annotated[tuple[Offset, Time], Field(strict=False)]
Power = Annotated[float, Field(ge=-10.0, le=10.0)]
Factor = Annotated[float, Field(gt=0.0, le=1e9)]


class Mute(Section):
    """A mute, which silences traces on one side of a line in offset and time.

    Exactly one key defines the line: `velocity` (time = delay + offset / velocity); `curve`, a line
    through points [offset, time], which is the same for all shots; `picks`, a line for each shot,
    from a file; or `after`, one time for all offsets.
    """

    velocity: Annotated[float, Field(gt=0.0, le=1e6), Unit("m/s")] | None = None
    """Velocity of a straight line, such as that of the direct wave."""
    delay: Time = 0.0
    """Delay of the line after `offset / velocity`, the `curve` or the `picks`; may be negative."""
    curve: Annotated[Several[Point], Field(min_length=2)] | None = None
    """Points [offset in m, time in s] of a line: linear between them, constant beyond the ends."""
    picks: FileName | None = None
    """A text file of first breaks: a header that names the columns, and a row for each pick.

    The columns are either `shot receiver time`, with indices from 0, or `source_x receiver_x time`
    (and `source_y`, `receiver_y` in a 3-D model), in m. Times are in s after the shot. For a trace
    without a pick, the line is interpolated in offset between the nearest picks of its shot.
    Offsets are negative on the side of smaller x, so that the line is straight between the
    innermost picks of both sides: pick traces near the source. Traces beyond the outermost picks
    are silenced, and so are all traces of a shot without picks.
    """
    after: Time | None = None
    """Silence all traces after this time."""
    keep: Literal["below", "above", "outside"] = "below"
    """The side that is kept: `"below"` (after) the line, `"above"` (before) it, or `"outside"`.

    `"outside"` silences a strip that begins at the line and has the duration `width`.
    """
    width: Seconds | None = None
    """Duration of the strip that `"outside"` silences."""
    taper: Annotated[float, Field(ge=0.0, le=1e9), Unit("s")] = 0.1
    """Duration of the cosine taper from silence to full amplitude, on the side that is kept."""

    _one_of_them = exactly_one("velocity", "curve", "picks", "after")

    @model_validator(mode="after")
    def _keys_agree(self) -> Self:
        if self.after is not None and (self.keep != "below" or self.delay or self.width):
            raise ValueError("after can be combined with taper only: samples before it are kept")
        if (self.width is not None) != (self.keep == "outside"):
            raise ValueError('keep = "outside" and width belong together')
        offsets = [offset for offset, _ in self.curve or ()]
        if any(far <= near for near, far in pairwise(offsets)):
            raise ValueError(f"the offsets of curve are {offsets}; expected each above the last")
        return self


class Weight(Section):
    """Factors of whole traces; with a power of 0 a factor is 1."""

    offset: Power = 0.0
    """Power of (offset / 1 km) by which traces are multiplied; positive powers amplify far traces.

    Offsets under 10 m count as 10 m.
    """
    amplitude: Power = 0.0
    """Power of the root mean square of the observed trace, divided by the median of its shot.

    With -1 all traces of a shot have the same strength, so that strong traces do not dominate.
    """


class Edit(Section):
    """Leave out traces whose observed amplitude differs from traces at similar offsets.

    The amplitude is the root mean square. It is compared with the median of 11 traces of the shot:
    the trace and its neighbours in the order of offsets. Traces that are not finite are left out as
    well.
    """

    above: Factor = 10.0
    """Leave out traces with more than this multiple of the median amplitude."""
    below: Factor = 0.01
    """Leave out traces with less than this multiple of the median amplitude."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.below >= min(self.above, 1.0):
            raise ValueError("expected below less than above, and less than 1")
        return self


def _listed(value: object) -> object:
    return [value] if isinstance(value, Mapping | Mute) else value


class DataSection(Section):
    """Selection and weighting of the data; by default the data are not changed.

    All keys except `correct` apply to observed and simulated traces alike. docs/data.md has the
    formulas and describes when to use which key.
    """

    band: Pair[Corner] | None = None
    """Lowest and highest frequency: `[0.0, 3.0]` is a low-pass, `[2.0, 12.0]` a band-pass filter.

    The filter has zero phase, and halves the amplitude at both frequencies. Traces and wavelet are
    sampled only as finely as the band requires. By default all frequencies are used.
    """
    offsets: Pair[Offset] | None = None
    """Smallest and largest offset of the traces that are used.

    `inversion.max_offset` is a further limit.
    """
    mute: Annotated[Several[Mute], BeforeValidator(_listed), Field(max_length=20)] = ()
    """Parts of the traces that are silenced: one table or a list of tables."""
    weight: Weight | None = None
    """Factors of whole traces, which depend on offset or amplitude."""
    components: dict[ComponentName, Annotated[float, Field(ge=0.0, le=1e9)]] = Field(
        default_factory=dict
    )
    """Weights of components in the misfit, such as `{ vz = 0.5 }`; 1 by default, 0 leaves one out.

    The traces of each component are first scaled so that all components have the same observed
    energy, and the observed traces a root mean square of 1.
    """
    gain: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    """Power of the time (s) by which samples are multiplied; 1 or 2 amplifies late arrivals."""
    edit: Edit | None = None
    """Leave out traces that are dead, too loud or not finite; `{}` uses the default limits."""
    correct: Literal["line-source"] | None = None
    """Convert observed data from point sources to line sources, as a 2-D model assumes."""

    @property
    def picks(self) -> list[str]:
        """The files of picks, without duplicates."""
        return list(dict.fromkeys(mute.picks for mute in self.mute if mute.picks is not None))

    @property
    def shapes_traces(self) -> bool:
        """True if observed and simulated traces are multiplied by factors."""
        return bool(self.mute or self.weight or self.gain)

    @model_validator(mode="after")
    def _pairs_in_order(self) -> Self:
        for pair, found, first in (
            (self.band, "band is", "the lower frequency first"),
            (self.offsets, "offsets are", "the nearer one first, in m"),
        ):
            if pair is not None and pair[0] >= pair[1]:
                raise ValueError(f"{found} {list(pair)}; expected {first}")
        return self
