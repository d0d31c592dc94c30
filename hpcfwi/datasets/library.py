"""Known models by their names: as a `Model`, or as a model file with its licence beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hpcfwi.datasets.dataset import ComputedDataset, PublishedDataset
from hpcfwi.datasets.fetch import fetch_dataset
from hpcfwi.errors import InputError
from hpcfwi.files import written_whole
from hpcfwi.model import Grid, Model
from hpcfwi.registry import DATASETS, find
from hpcfwi.storage.models import write_model


def load_dataset(
    name: str, to: Path | None = None, announce: Callable[[str], None] = print
) -> Model:
    """The dataset as a model in m/s on its own grid; arguments and errors of `fetch_dataset`.

    Says what the model is and under which licence. Raises `InputError` for an unknown name too.
    """
    dataset = _known(name)
    announce(f"{dataset.title}.")
    announce(f"Licence: {dataset.licence}")
    announce(f"Please cite: {dataset.citation}")
    match dataset:
        case ComputedDataset():
            vp = dataset.formula(dataset.grid)
        case PublishedDataset():
            vp = _read_published(fetch_dataset(dataset, to, announce), dataset.grid)
    return Model(dataset.grid, {"vp": np.ascontiguousarray(vp, dtype=np.float32)})


def export_dataset(name: str, directory: Path, announce: Callable[[str], None] = print) -> Path:
    """Write NAME.h5, a model file, and NAME.LICENCE.txt beside it; returns the model file.

    Errors are those of `load_dataset`, and `InputError` where they cannot be written.
    """
    model = load_dataset(name, announce=announce)
    dataset = _known(name)
    path = directory / f"{name}.h5"
    facts = {field: getattr(dataset, field) for field in ("title", "licence", "citation")}
    try:
        write_model(path, model, facts)
        with written_whole(directory / f"{name}.LICENCE.txt") as file:
            file.write(("\n\n".join(facts.values()) + "\n").encode())
    except OSError as error:
        raise InputError(
            str(directory),
            f"{path.name} and its licence cannot be written there ({error})",
            "Name a directory in which you may write, with --to.",
        ) from error
    announce(f"Wrote {path}.")
    return path


def _known(name: str) -> PublishedDataset | ComputedDataset:
    if name not in DATASETS:
        raise InputError(
            f"dataset {name!r}", "not a known dataset", f"Choose one of {', '.join(DATASETS)}."
        )
    return cast(PublishedDataset | ComputedDataset, find(DATASETS[name]))


def _read_published(path: Path, grid: Grid) -> NDArray[np.floating]:
    """P velocity in m/s, in axis order; archives are in km/s, plain binary files depth fastest."""
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return 1000.0 * arrays["model"]
    return np.fromfile(path, dtype="<f4").reshape(grid.shape[::-1]).T
