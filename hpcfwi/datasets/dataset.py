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
class Edition:
    """A file in which a model has been published.

    Parameters
    ----------
    file
        Its name, as published and in $HPCFWI_DATA (there, or in a folder of the dataset's name).
    sha256
        Of the file's bytes.
    contents
        In words: what the file holds, and how it is brought onto the dataset's grid.
    urls
        Where the file is served.
    package
        Name, version and member of the source distribution that holds it.
    """

    file: str
    sha256: str
    contents: str
    urls: tuple[str, ...] = ()
    package: tuple[str, str, str] | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """The public places, for people to read."""
        if self.package is None:
            return self.urls
        name, version, member = self.package
        return (*self.urls, f"{member} of the source distribution {name} {version}")


@dataclass(frozen=True, kw_only=True)
class PublishedDataset(Dataset):
    """A model that someone has published; editions: of which the first that is found is taken."""

    editions: tuple[Edition, ...]


@dataclass(frozen=True, kw_only=True)
class ComputedDataset(Dataset):
    """A model given by a formula: P velocity (m/s) on a grid."""

    formula: Callable[[Grid], NDArray[np.float32]]
