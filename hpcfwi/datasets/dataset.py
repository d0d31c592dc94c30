"""What is said of a known model before its numbers are there: a value each.

Where a file is found is in `fetch`; models are made in `library`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcfwi.model import Grid


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A velocity model with a name; licence: what must stay with it.

    The grid is the one of the original model: the origin of a window is its true place, and
    positions of a survey count from the same zero (a source at the top of a window that begins
    at 800 m has the depth 800 m).
    """

    name: str
    title: str
    licence: str
    citation: str
    grid: Grid


@dataclass(frozen=True, kw_only=True)
class PublishedDataset(Dataset):
    """A model that someone has published.

    file: its name, as published and in $HPCFWI_DATA (there, or in a folder `name`); urls:
    where the same bytes are served; package: requirement and member of the source distribution
    that holds it.
    """

    file: str
    sha256: str
    urls: tuple[str, ...] = ()
    package: tuple[str, str] | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """The public places, for people to read."""
        return self.urls + ((f"{self.package[1]} in {self.package[0]}",) if self.package else ())


@dataclass(frozen=True, kw_only=True)
class ComputedDataset(Dataset):
    """A model given by a formula: P velocity (m/s) on a grid."""

    formula: Callable[[Grid], NDArray[np.float32]]
