"""The section [inversion]: the updates of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from hpcfwi.config.choices import Choice
from hpcfwi.config.values import Count, Length, Position, Section
from hpcfwi.model import PARAMETERS
from hpcfwi.registry import MISFITS, OPTIMIZERS, REGULARIZERS, SAMPLINGS, ScheduleName

if TYPE_CHECKING:
    MisfitName = str
    OptimizerName = str
    ParameterName = str
    RegularizerName = str
    SamplingName = str
else:
    MisfitName = Literal[*MISFITS]
    OptimizerName = Literal[*OPTIMIZERS]
    ParameterName = Literal[*PARAMETERS]
    RegularizerName = Literal[*REGULARIZERS]
    SamplingName = Literal[*SAMPLINGS]

Bound = Annotated[float, Field(gt=0.0, le=max(p.highest for p in PARAMETERS.values()))]
Bounds = Annotated[tuple[Bound, Bound], Field(strict=False)]


class Optimizer(Choice):
    """What makes an update of a gradient."""

    registry = OPTIMIZERS
    name: OptimizerName


class Misfit(Choice):
    """How far simulated data are from observed ones: docs/misfits.md says what each is for."""

    registry = MISFITS
    name: MisfitName


class Regularizer(Choice):
    """What is asked of a model beside its data."""

    registry = REGULARIZERS
    name: RegularizerName


def _tag_bounds(value: object) -> str:
    return "a table" if isinstance(value, Mapping) else "a pair"


class InversionSection(Section):
    """The updates."""

    epochs: Annotated[int, Field(gt=0, le=999_999)]
    """Updates of the model.

    An epoch is one update, made of `batch` shots; it is not a pass through the survey.
    """
    batch: Count
    """Shots of an epoch, at most those of the survey.

    All of the survey is what `"lbfgs"` and `"ncg"` want, which learn from one epoch for the next.
    """
    sampling: SamplingName = "sweep"
    """Which shots an epoch has.

    `"sweep"`: every shot of the survey once before any comes again, in another order each time.
    `"random"`: those of each epoch drawn anew; a shot may come again before another has come.
    """
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Of the draw. The shots of an epoch are a function of it and of the epoch's number."""
    optimizer: Optimizer
    """What makes an update of a gradient, and its keys."""
    fixed_above: Position | None = None
    """Cells at this depth or above it keep their initial velocity (the water)."""
    parameters: Annotated[tuple[ParameterName, ...], Field(strict=False, min_length=1)] = (
        next(iter(PARAMETERS)),
    )
    """What of the model is inverted for."""
    misfit: Misfit = Misfit(name="least-squares")
    """How far simulated data are from observed ones, and its keys."""
    regularize: Regularizer | None = None
    """What is asked of a model beside its data, and its keys. Nothing where not given."""
    bounds: (
        Annotated[
            Annotated[Bounds, Tag("a pair")]
            | Annotated[dict[ParameterName, Bounds], Tag("a table")],
            Discriminator(_tag_bounds),
        ]
        | None
    ) = None
    """Smallest and largest value, within which the cells that may change are kept.

    In the parameter's unit; a pair for the first of `parameters`, or a table of pairs by their
    names. The absorbing boundary is tuned to the largest velocity, which without bounds is the
    initial model's.
    """
    schedule: ScheduleName = "static"
    """`"static"`: equal parts for all ranks. `"dynamic"`: the next shots to whichever rank is free.

    The second is for ranks or shots that differ. The answer is the same.
    """
    reproducible: bool = True
    """The same bits for any number of ranks and any schedule.

    `false` adds gradients in float32, in whatever order.
    """
    max_failed_shots: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.05
    """Share of the survey's shots that may be set aside before the run stops.

    A shot whose misfit or gradient is not finite is set aside for that epoch.
    """
    max_offset: Length | None = None
    """Leave receivers that are further from the source, horizontally, out of the misfit.

    Whatever their traces hold, they do not count. With `wave.aperture`, windows do not reach for
    such receivers: that is what makes them small where every shot has all receivers. Observed data
    are simulated for all receivers.
    """

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        for lowest, highest in self.bounds_by_name.values():
            if lowest >= highest:
                raise ValueError(f"bounds are {[lowest, highest]}; expected the smaller one first")
        return self

    @property
    def bounds_by_name(self) -> Mapping[str, tuple[float, float]]:
        """The bounds of each parameter that has any."""
        if isinstance(self.bounds, tuple):
            return {self.parameters[0]: self.bounds}
        return self.bounds or {}
