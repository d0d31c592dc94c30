"""Known models by their names: as a `Model`, or as a model file with its licence beside it."""

from __future__ import annotations

import ast
import base64
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hpcfwi.datasets.dataset import ComputedDataset, PublishedDataset
from hpcfwi.datasets.fetch import fetch_dataset
from hpcfwi.errors import InputError
from hpcfwi.model import PARAMETERS, Grid, Model, resample_onto
from hpcfwi.registry import DATASETS, find
from hpcfwi.storage.models import write_model
from hpcfwi.system import written_whole


def load_dataset(
    name: str, to: Path | None = None, announce: Callable[[str], None] = print
) -> Model:
    """The parameters of a dataset that an inversion knows, as a model on the dataset's own grid.

    Arguments and errors are those of `fetch_dataset`; `announce` is told as well what the model is
    and under which licence. Raises `InputError` for an unknown name too.
    """
    model, _ = _load(_known(name), to, announce)
    known = {parameter: model[parameter] for parameter in PARAMETERS if parameter in model.arrays}
    return Model(model.grid, known)


def export_dataset(name: str, directory: Path, announce: Callable[[str], None] = print) -> Path:
    """Write NAME.h5, a model file, and NAME.LICENCE.txt beside it; returns the model file.

    The file has all arrays that the dataset's source has. Errors are those of `load_dataset`, and
    `InputError` where they cannot be written.
    """
    dataset = _known(name)
    model, contents = _load(dataset, None, announce)
    path = directory / f"{name}.h5"
    facts = {field: getattr(dataset, field) for field in ("title", "licence", "citation")}
    try:
        write_model(path, model, {**facts, "contents": contents})
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


def _load(
    dataset: PublishedDataset | ComputedDataset, to: Path | None, announce: Callable[[str], None]
) -> tuple[Model, str]:
    """All arrays of a dataset, and in words what they are."""
    announce(f"{dataset.title}.")
    announce(f"Licence: {dataset.licence}")
    announce(f"Please cite: {dataset.citation}")
    arrays: Mapping[str, NDArray[np.floating]]
    match dataset:
        case ComputedDataset():
            arrays, contents = {"vp": dataset.formula(dataset.grid)}, dataset.title
        case PublishedDataset():
            edition, path = fetch_dataset(dataset, to, announce)
            arrays, contents = _read_published(path, dataset.grid), edition.contents
    single = {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}
    return Model(dataset.grid, single), contents


def _known(name: str) -> PublishedDataset | ComputedDataset:
    if name not in DATASETS:
        raise InputError(
            f"dataset {name!r}", "not a known dataset", f"Choose one of {', '.join(DATASETS)}."
        )
    return cast(PublishedDataset | ComputedDataset, find(DATASETS[name]))


def _read_published(path: Path, grid: Grid) -> Mapping[str, NDArray[np.floating]]:
    """Read the arrays of a published file, in axis order, m/s and kg/m3.

    Archives are in km/s, and plain binary files have the depth fastest.
    """
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {"vp": 1000.0 * arrays["model"]}
    if path.suffix == ".py":
        return _read_texts(path, grid)
    return {"vp": np.fromfile(path, dtype="<f4").reshape(grid.shape[::-1]).T}


def _read_texts(path: Path, grid: Grid) -> Mapping[str, NDArray[np.floating]]:
    """Read arrays that lie as texts in a Python file, without executing it.

    `_VP_TRUE_B85` and its like are 16-bit numbers, compressed, in base 85; `_VP_TRUE_SHAPE` says
    how many, over the extent of `grid`, onto which they are resampled as any model is.
    """
    values = {
        target.id: ast.literal_eval(statement.value)
        for statement in ast.parse(path.read_bytes()).body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name) and "_TRUE_" in target.id
    }

    names = ("VP", "VS", "RHO")
    shape = values["_VP_TRUE_SHAPE"]
    extent = (last - first for first, last in zip(grid.origin, grid.last, strict=True))
    spacing = tuple(length / (n - 1) for length, n in zip(extent, shape, strict=True))

    def read(name: str) -> NDArray[np.float32]:
        numbers = zlib.decompress(base64.b85decode(values[f"_{name}_TRUE_B85"]))
        return np.frombuffer(numbers, "<f2").reshape(shape).astype(np.float32)

    own = Model(Grid(shape, spacing, grid.origin), {name.lower(): read(name) for name in names})
    return resample_onto(own, grid).arrays
