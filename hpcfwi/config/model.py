"""The section [model]: the earth, and where the inversion starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from hpcfwi.config.network import NetworkSection
from hpcfwi.config.values import FileName, Length, Section, exactly_one
from hpcfwi.registry import DATASETS

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
