"""The section [data]: what of the traces counts, observed and simulated ones alike."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from hpcfwi.config.values import Section, Unit

Corner = Annotated[float, Field(ge=0.0, le=1e12), Unit("Hz")]


class DataSection(Section):
    """What of the traces counts, observed and simulated ones alike."""

    band: Annotated[tuple[Corner, Corner], Field(strict=False)] | None = None
    """Lowest and highest frequency: `[0.0, 3.0]` is a low-pass, `[2.0, 12.0]` a band-pass.

    Zero phase; half of the amplitude is left at each. Traces and wavelet are sampled no more often
    than the band needs. Where not given, everything counts.
    """

    @model_validator(mode="after")
    def _band_in_order(self) -> Self:
        if self.band is not None and self.band[0] >= self.band[1]:
            raise ValueError(f"band is {list(self.band)}; expected the lower frequency first")
        return self
