"""The section [wave]: the equation, and how it is solved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from hpcfwi.config.values import Count, Length, Section, Unit, check_size
from hpcfwi.registry import ENGINES, HistoryFormat, HistoryKind, HistoryName, Order

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
