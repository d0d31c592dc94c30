"""The table [inversion.precondition]: what is done to a gradient before a step is made of it."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from hpcfwi.config.values import Length, Section

KEYS = ("illumination", "smooth", "depth", "taper")


class PreconditionSection(Section):
    """What is done to a gradient before a step is made of it; one key at least.

    `illumination`, `depth` and `taper` are weights of cells, `smooth` spreads what they leave:
    otherwise it would spread what is large around sources and receivers. All together are
    symmetric: half of the weights and of the smoothing on either side, so that searches along lines
    can begin with it. Figures show what came of it.
    """

    illumination: Annotated[float, Field(gt=0.0, le=1e3)] | None = None
    """Divide by how well a cell is lit, plus this.

    That is the root of the source and receiver illuminations' product, as a share of its largest:
    0.01 strengthens what is poorly lit a hundredfold at most.
    """
    smooth: Annotated[float, Field(gt=0.0, le=10.0)] | None = None
    """Smooth by a Gaussian, whose standard deviation is this share of the wavelength.

    At the wavelet's peak, and the mean velocity of each depth.
    """
    depth: Annotated[float, Field(gt=-10.0, le=10.0)] | None = None
    """Multiply by the depth to this power."""
    taper: Length | None = None
    """Multiply by 0 at each source and receiver of the survey, by 1 from this distance on.

    Between them by half a period of a cosine, of the distance to the nearest of them. `adam`
    divides each cell by the size of its own gradients, and so keeps of it only what is 0, and what
    `smooth` no longer spreads.
    """

    @model_validator(mode="after")
    def _something(self) -> Self:
        if all(getattr(self, key) is None for key in KEYS):
            raise ValueError(f"expected at least one of {', '.join(KEYS)}")
        return self
