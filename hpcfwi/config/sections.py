"""The sections [model] and [wave] of an input file.

They describe the model and the starting model, and the equation and how it is solved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from hpcfwi.config.values import (
    Choice,
    Count,
    FileName,
    Length,
    OneOf,
    Pair,
    Section,
    Unit,
    check_size,
    exactly_one,
    find_plugin,
    name_of,
)
from hpcfwi.registry import (
    DATASETS,
    ENGINES,
    EQUATIONS,
    NETWORKS,
    HistoryFormat,
    HistoryKind,
    HistoryName,
    Order,
)


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


def _tag_number(value: object) -> str:
    return "a name" if isinstance(value, str) else "a number"


_T = TypeVar("_T")
AutoOr = Annotated[
    Annotated[Literal["auto"], Tag("a name")] | Annotated[_T, Tag("a number")],
    Discriminator(_tag_number),
]
Spacing = AutoOr[Length]


class HistorySection(Section):
    """A complete description of a history.

    The history is chosen when an inversion starts, for the largest window of the survey, and is the
    same on all ranks. A reproducible inversion keeps it when it continues. The log has a line such
    as `History: snapshots, every 14 steps, float16, 84.7 MB per shot; 1 shot at a time`.
    docs/decisions/014-memory.md describes the rules, and what happens when memory runs out.
    """

    kind: HistoryKind = "snapshots"
    """How the sampled steps are obtained in the backward simulation.

    `"snapshots"` stores them, `"boundary"` reconstructs them from the stored perimeter of the
    model, and `"recompute"` simulates them again.
    """
    interval: Count | None = None
    """Number of steps between samples; 1 gives the exact gradient of the discrete scheme.

    By default the Nyquist rate of the wavelet determines it, which changes the gradient by a few
    tenths of a per cent.
    """
    format: HistoryFormat | None = None
    """Format of the stored numbers; by default full precision. Not for `"recompute"`."""
    states: Count | None = None
    """Number of stored states from which steps are simulated again; by default 8.

    Only for `"recompute"`.
    """

    @model_validator(mode="after")
    def _keys_of_its_own(self) -> Self:
        foreign = "format" if self.kind == "recompute" else "states"
        if getattr(self, foreign) is not None:
            raise ValueError(f"{self.kind} has no {foreign}")
        return self


def _tag_history(value: object) -> str:
    return "a table" if isinstance(value, Mapping | HistorySection) else "a name"


# Standard linear solids have no constant quality factor in wider bands.
WIDEST = 1000


class AttenuationSection(Section):
    """The dependence of quality factors and velocities on frequency, see docs/equations.md."""

    frequency: Annotated[float, Field(gt=0.0, le=1e6), Unit("Hz")] = 10.0
    """Frequency at which waves have the velocities of the model; others are slower or faster."""
    band: Pair[Annotated[float, Field(gt=0.0, le=1e6)]] = (2.0, 30.0)
    """Lowest and highest frequency (Hz) between which quality factors are constant."""
    mechanisms: Annotated[int, Field(ge=1, le=3)] = 1
    """Number of relaxation mechanisms.

    In a band of 3 to 30 Hz, losses 1/Q up to 1/20 are within 36 % of the asked ones with 1,
    and within 8 % with 2; 3 suit wider bands. Each adds a field for every stress.
    """

    @model_validator(mode="after")
    def _band_in_order(self) -> Self:
        if self.band[0] >= self.band[1]:
            raise ValueError(f"band is {list(self.band)}; expected the smaller frequency first")
        if self.band[1] > WIDEST * self.band[0]:
            raise ValueError(f"band is {list(self.band)}; expected a ratio of at most {WIDEST}")
        return self


class WaveSection(Section):
    """The wave equation and how it is solved."""

    equation: Annotated[str, OneOf(EQUATIONS)] = "acoustic"
    """The wave equation, which determines the parameters of the model (docs/equations.md).

    `"acoustic"` is the one with constant density. The others are solved by the engines `"cpu"`,
    `"gpu"` and `"eager"`, with the histories `"snapshots"` and, on the first two, `"recompute"`.
    """
    attenuation: AttenuationSection | None = None
    """Attenuation of the equations `"viscoacoustic"` and `"viscoelastic"`, if not the default."""
    order: Order = 8
    """Order of the differences in space."""
    spacing: Spacing | None = None
    """Spacing of a coarser grid on which the inversion simulates waves.

    `"auto"` is the coarsest spacing that the highest frequency of the wavelet, after `data.band`,
    allows. The inversion still updates, writes and draws the model on the grid of the model, on
    which observed data are simulated as well.
    """
    boundary: Annotated[int, Field(ge=0, le=1000), Unit("cells")] = 20
    """Width of the absorbing boundary (CPML) outside the model."""
    aperture: Length | None = None
    """Simulate each shot only in a window of the model around its source and receivers.

    The window includes all depths. Along each horizontal axis it extends beyond source and
    receivers by this distance on both sides, rounded to cells, at least by eight cells, up to the
    ends of the model. It has its own absorbing boundary. By default every shot is simulated in the
    whole model; observed data always are. docs/physics.md describes the error.
    """
    free_surface: bool = False
    """If true, the top of the model is a free surface, in place of an absorbing boundary.

    The pressure is 0 there or, in elastic media, the stresses on the surface are.
    """
    engine: Annotated[str, OneOf(("auto", *ENGINES))] = "auto"
    """The engine that computes the waves.

    `"cpu"` is compiled code for CPUs, `"gpu"` uses Triton kernels for GPUs, `"eager"` is the
    reference for any device, and `"deepwave"` needs the package Deepwave. `"auto"` is `"cpu"` on
    CPUs, and `"gpu"` on GPUs or, if Triton is not installed, `"eager"`.
    """
    ranks_per_shot: AutoOr[Count] = 1
    """Number of ranks that simulate each shot together, each a layer of the grid along z.

    The engine is `"cpu"`, or `"gpu"` with the equation `"acoustic"` and ranks on the same host. The
    results have the same bits with any number. It pays for a batch of fewer shots than ranks, or
    where memory does not suffice for a shot of each rank, in 3-D also between hosts
    (docs/splitting.md). `"auto"` is the largest number on a host that leaves no ranks without a
    shot and has an expected efficiency of at least 60 %, and 1 with the engine `"gpu"`. A run can
    be continued with another number.
    """
    history: Annotated[
        Annotated[HistoryName, Tag("a name")] | Annotated[HistorySection, Tag("a table")],
        Discriminator(_tag_history),
    ] = "auto"
    """The data of the forward simulation that are stored for the backward simulation.

    `"auto"` is the fastest history of the engine that fits into the memory. With enough memory it
    stores snapshots in float16, which change the gradient by 0.02 % in addition to the sampling.
    `"snapshots"`, `"boundary"` and `"recompute"` are the fastest history of that kind. A table
    describes one history exactly.
    """
    memory: Annotated[str, BeforeValidator(check_size)] | None = None
    """Approximate limit of the memory for the simulations of one rank, with its unit.

    Examples are `"12 GB"` (1 GB is 10^9 bytes) and `"12 GiB"` (1 GiB is 2^30 bytes). It determines
    the `history` and the number of shots that are simulated together. The default is the free
    memory that is not needed otherwise.
    """
