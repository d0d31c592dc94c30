"""The table [inversion.prior]: what a model is taken for, where the data do not say otherwise."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from hpcfwi.config.own import name_of
from hpcfwi.config.values import Count, FileName, Section
from hpcfwi.registry import DENOISERS


class PriorSection(Section):
    """A denoiser that models go through between updates (plug and play): docs/priors.md."""

    denoiser: Annotated[str, AfterValidator(name_of(DENOISERS, "function"))]
    """`"tv"` (total variation), `"nlm"` (nonlocal means), or a function of your own.

    That is "module:function", from `folder` or from where else Python finds it: of images
    (image, 1, z, x) or (image, 1, z, y, x), torch tensors, and the strength, it returns images of
    the same shape. Their values are those of the model, 0 at the lower of its bounds and 1 at the
    upper one or, without bounds, at its smallest and largest value.
    """
    strength: Annotated[float, Field(gt=0.0, le=1e3)]
    """How much the denoiser takes for noise, on the scale of 0 to 1."""
    every: Count = 1
    """Epochs from one time to the next."""
    patch: Count | None = None
    """Points along each axis of the tiles that ranks share; the whole model where not given."""
    overlap: Annotated[int, Field(ge=0, le=100_000)] = 64
    """Points that the denoiser sees around a tile."""
    folder: FileName | None = None
    """Folder of the module of a function of your own; that of the input file where not given."""
