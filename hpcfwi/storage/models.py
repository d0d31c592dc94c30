"""Model files and image files, which are HDF5, and surfaces, which are text.

A model file has, for each parameter of the model, a dataset of its name, float32 (z, x) or
(z, y, x) in its unit (`model.PARAMETERS`); root attributes format = "hpcfwi-model", version,
axes = "zx" or "zyx", spacing and origin (one number an axis, m).

An image file has the result of a migration, float32 (z, x) or (z, y, x): /image, the reflectivity
in the P velocity, and /image_vs and so on, those in other parameters; root attributes format =
"hpcfwi-image", version, axes, spacing and origin as in a model file, and epoch, the number of
iterations.

A surface, such as the sea floor, is given by its depth at some places. Each line has the numbers of
one place, separated by blanks: `x depth` for a 2-D model and `y x depth` for a 3-D one, in m. Empty
lines and text after a # are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcfwi.errors import InputError, quote, refusing
from hpcfwi.model import AXES, PARAMETERS, Grid, Model, Parameter
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.replicas import once_per_host
from hpcfwi.storage.hdf5 import (
    check_format,
    created_whole,
    find_dataset,
    holds,
    is_whole,
    open_alone,
    plain,
    read_real,
    refuse_values,
)
from hpcfwi.storage.probe import probe_on_root
from hpcfwi.system import check_regular, check_room

MODEL_FORMAT = "hpcfwi-model"
MODEL_VERSION = 1

POWERS = {"velocity": 1.0, "slowness": -1.0, "slowness-squared": -0.5}
"""Exponents that convert quantities to velocities."""

# Not all velocities of a model are below this in km/s, but most slownesses are in s/km.
SLOW = 0.9
# Range of values without a unit that may be velocities, m/s.
ROCK = 300.0, 1e4

# Ranges of spacings and origins, m; values outside of these are typing errors and could overflow.
_SPACINGS = (1e-6, 1e6)
_ORIGINS = (-1e9, 1e9)


def read_model(path: Path, names: Sequence[str] | None = None) -> Model:
    """Read and check a model in one process.

    names: the arrays to read, all of which the file must have; by default all that it has.

    Raises `InputError` with the key if the layout is wrong, or if values are not finite, impossible
    in rock, water and air, or apparently in another unit.
    """
    with open_alone(path) as file:
        check_format(file, path, MODEL_FORMAT, MODEL_VERSION)
        if names is None:
            first, *others = PARAMETERS
            names = [first, *(name for name in others if holds(file, name))]
        for name in names:
            if name in PARAMETERS and not holds(file, name):
                found = ", ".join(f"/{each}" for each in PARAMETERS if holds(file, each))
                remedy = f"Store it as /{name}, for example by `hpcfwi convert --parameter {name}`"
                if name in ("vs", "rho", "qp", "qs"):
                    remedy += f", or, in a starting model, give model.initial.{name}"
                raise InputError(
                    f"{path}, /{name}",
                    f"the file has no {PARAMETERS[name].title}; it holds {found or 'no parameter'}",
                    f"{remedy}.",
                )
        grid, arrays = _read_arrays(file, path, names)
    for name, array in arrays.items():
        check_values(array, f"{path}, /{name}", PARAMETERS[name])
    return Model(grid, arrays).map(lambda array: array.astype(np.float32))


def read_cells(path: Path, name: str) -> Model:
    """Read one array of a file with the layout of a model, such as a mask, in one process.

    Raises `InputError` with the key if the layout is wrong, or if values are negative or not
    finite.
    """
    with open_alone(path) as file:
        check_format(file, path, MODEL_FORMAT, MODEL_VERSION)
        remedy = f"Store a number for each cell as /{name}."
        values = read_real(file, path, name, None, "biuf", "numbers", remedy)
        grid = _read_grid(file, path, name)
    faults = ~(np.isfinite(values) & (values >= 0.0))
    remedy = "Give every cell a number of 0 or more."
    refuse_values(faults, f"{path}, /{name}", "negative or not finite", remedy)
    return Model(grid, {name: values.astype(np.float32)})


def load_model(path: Path, names: Sequence[str], context: Context) -> Model:
    """Read arrays of a model once on each host, for all its ranks; collective.

    Every rank raises the `InputError` of `read_model`. The arrays are read-only.
    """
    probe_on_root(path, context)
    return once_per_host(partial(read_model, path, names), context)


def read_attribute(path: Path, name: str) -> Any:
    """Return a root attribute of a file in one process; None if it has no such attribute."""
    with open_alone(path) as file:
        return plain(file.attrs.get(name))


def read_epoch(path: Path) -> int:
    """Return the epoch of a run's model; 0 if the file has none or cannot be read."""
    try:
        epoch = read_attribute(path, "epoch")
    except InputError:
        return 0
    return int(epoch) if is_whole(epoch) else 0


def write_model(path: Path, model: Model, attributes: Mapping[str, Any] | None = None) -> None:
    """Write a model in one process, completely or not at all.

    attributes: further root attributes, such as the source of the model. Raises `WriteFailure`.
    """
    own = {"format": MODEL_FORMAT, "version": MODEL_VERSION, **describe_grid(model.grid)}
    _write(path, model, {**(attributes or {}), **own})


def describe_grid(grid: Grid) -> dict[str, Any]:
    """Return the attributes of a grid in files."""
    return {"axes": grid.axes, "spacing": grid.spacing, "origin": grid.origin}


def _write(path: Path, model: Model, attributes: Mapping[str, Any]) -> None:
    with created_whole(path) as file:
        for name, array in model.arrays.items():
            file.create_dataset(name, data=array, dtype=np.float32)
        file.attrs.update(attributes)


def _read_arrays(
    file: h5py.File, path: Path, names: Sequence[str]
) -> tuple[Grid, dict[str, NDArray[np.float64]]]:
    """Return the grid of a file, and arrays on it; raises `InputError` for one of another shape."""
    shapes = {name: find_dataset(file, path, name).shape for name in names}
    grid = _read_grid(file, path, names[0])
    for name, shape in shapes.items():
        if shape != grid.shape:
            raise InputError(
                f"{path}, /{name}",
                f"its shape is {shape}, but that of /{names[0]} is {grid.shape}",
                "Store all arrays on one grid.",
            )
    return grid, {name: read_real(file, path, name) for name in names}


def _read_grid(file: h5py.File, path: Path, name: str) -> Grid:
    dataset = file[name]
    ndim = dataset.ndim
    if ndim not in AXES:
        raise InputError(
            f"{path}, /{name}",
            f"its shape is {dataset.shape}, expected two dimensions (z, x) or three (z, y, x)",
            "Store one model, without further dimensions.",
        )
    if 0 in dataset.shape:
        raise InputError(
            f"{path}, /{name}",
            f"its shape is {dataset.shape}, expected at least one point along each axis",
            "Store a model that is not empty.",
        )
    axes = plain(file.attrs.get("axes"))
    if not isinstance(axes, str) or axes != AXES[ndim]:
        turned = isinstance(axes, str) and sorted(axes) == sorted(AXES[ndim])
        raise InputError(
            f"{path}, attribute axes",
            f"found {quote(axes)}, expected {AXES[ndim]!r} for an array of {ndim} dimensions",
            f"Transpose the array, spacing and origin to {AXES[ndim]!r} and set axes to that."
            if turned
            else f"Set axes to {AXES[ndim]!r} if that is the order of the array.",
        )
    spacing = _read_lengths(file, path, "spacing", ndim, _SPACINGS)
    return Grid(dataset.shape, spacing, _read_lengths(file, path, "origin", ndim, _ORIGINS))


def _read_lengths(
    file: h5py.File, path: Path, key: str, ndim: int, between: tuple[float, float]
) -> tuple[float, ...]:
    where, expected = f"{path}, attribute {key}", f"{ndim} numbers, one per axis"
    remedy = f"Give the {key} along {', '.join(AXES[ndim])}, in m."
    if key not in file.attrs:
        raise InputError(where, f"missing, expected {expected}", remedy)
    found = np.asarray(file.attrs[key])
    lengths = tuple(map(float, found.reshape(-1))) if found.dtype.kind in "iuf" else ()
    if len(lengths) != ndim or not np.isfinite(lengths).all():
        raise InputError(
            where,
            f"found {quote(plain(file.attrs[key]))}, expected {ndim} finite numbers, one per axis",
            remedy,
        )
    if not between[0] <= min(lengths) <= max(lengths) <= between[1]:
        raise InputError(
            where,
            f"found {lengths}, expected {between[0]:g} to {between[1]:g} m along each axis",
            remedy,
        )
    return lengths


def check_values(
    values: NDArray[np.float64],
    where: str,
    parameter: Parameter,
    scaling: str = "Multiply the array by",
) -> None:
    """Raise `InputError` for values that are not finite, impossible, or in another unit.

    where: the place of the values in messages; scaling: what to do with the factor between units.
    """
    unit = parameter.unit
    remedy = "Fill the cells that have no value."
    refuse_values(~np.isfinite(values), where, "not finite", remedy)
    remedy = f"Give every cell, including air and water, a value above 0 {unit}."
    refuse_values((values <= 0) & parameter.positive, where, "not positive", remedy)
    slow = tell_slowness(values) if parameter.unit == "m/s" else []
    if slow:
        choices = " or ".join(f"--quantity {name} --scale {scale:g}" for name, scale in slow)
        raise InputError(
            where,
            f"the values go from {values.min():g} to {values.max():g}, expected {unit}: they look "
            f"like {' or '.join(name for name, _ in slow)}",
            f"Convert them to velocities: `hpcfwi convert FROM TO` with {choices}.",
        )
    if 0.0 < values.max() < parameter.mistaken:
        raise InputError(
            where,
            f"the largest value is {values.max():g}, expected {unit}; "
            f"it looks like {parameter.figure_unit}",
            f"{scaling} {parameter.figure_scale:g}.",
        )
    if values.min() < parameter.lowest or values.max() > parameter.highest:
        raise InputError(
            where,
            f"the values go from {values.min():g} to {values.max():g}, expected "
            f"{parameter.lowest:g} to {parameter.highest:g} {unit}",
            f"Correct the cells that have an impossible {parameter.title}.",
        )


def tell_slowness(values: NDArray[np.float64]) -> list[tuple[str, float]]:
    """Return the quantities that the values may be if they are not velocities.

    They are names in `POWERS`, with the factors that convert the powers to m/s, such as 1000 for
    s/km. There are none if the values may be velocities, in m/s or km/s, or if they cannot be any
    of these quantities.
    """
    if not 0.0 < values.min() <= values.max() < SLOW:
        return []
    lowest, highest = ROCK
    found = []
    for name in ("slowness", "slowness-squared"):
        for scale in (1000.0, 1.0):
            ends = [scale * value ** POWERS[name] for value in (values.max(), values.min())]
            if lowest <= ends[0] and ends[1] <= highest:
                found.append((name, scale))
    return found


IMAGE_FORMAT = "hpcfwi-image"
IMAGE_VERSION = 1


def name_image(parameter: str) -> str:
    """Return the name of the image of a parameter in files."""
    return "image" if parameter == next(iter(PARAMETERS)) else f"image_{parameter}"


def write_images(path: Path, images: Model, epoch: int) -> None:
    """Write the images of parameters in one process, completely or not at all.

    Raises `WriteFailure`.
    """
    grid = describe_grid(images.grid)
    own = {"format": IMAGE_FORMAT, "version": IMAGE_VERSION, **grid, "epoch": epoch}
    named = {name_image(name): image for name, image in images.arrays.items()}
    _write(path, Model(images.grid, named), own)


def read_images(path: Path, names: Sequence[str] | None = None) -> tuple[Model, int]:
    """Read the images of parameters, and their number of iterations.

    names: of the parameters, by default those of which the file has an image. Raises `InputError`.
    """
    with open_alone(path) as file:
        check_format(file, path, IMAGE_FORMAT, IMAGE_VERSION)
        if names is None:
            there = [name for name in PARAMETERS if holds(file, name_image(name))]
            names = there or [*PARAMETERS][:1]
        grid, arrays = _read_arrays(file, path, [name_image(name) for name in names])
        epoch = plain(file.attrs.get("epoch", 0))
    if not is_whole(epoch):
        raise InputError(
            f"{path}, attribute epoch",
            f"found {quote(epoch)}, expected the number of iterations",
            "Migrate again.",
        )
    images = zip(names, arrays.values(), strict=True)
    return Model(grid, {name: image.astype(np.float32) for name, image in images}), int(epoch)


COLUMNS = {2: ("x", "depth"), 3: ("y", "x", "depth")}
# Largest coordinate, m; larger ones are typing errors, and could overflow.
_FURTHEST = 1e9


def read_surface(path: Path, ndim: int) -> NDArray[np.float64]:
    """Read the rows (row, ndim) of a surface, in the file's order; ndim: axes of the model.

    Raises `InputError` with the number of the line if it is wrong or its place appears twice.
    """
    with refusing(str(path), "it cannot be read", "Check the name and its permissions."):
        check_regular(path)
        # A number takes more bytes as an object in memory than as characters in the file.
        check_room(str(path), "the surface", 40.0 * path.stat().st_size, "Give fewer rows.")
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    expected = f"{ndim} numbers, {' '.join(COLUMNS[ndim])}, in m"
    seen: dict[tuple[float, ...], int] = {}
    rows = []
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        row = _read_numbers(words)
        if len(row) != ndim or not all(abs(value) <= _FURTHEST for value in row):
            raise InputError(
                f"{path}, line {number}",
                f"found {quote(line.strip())}, expected {expected}",
                "Give a row for each position, with blanks between the numbers.",
            )
        before = seen.setdefault(tuple(row[:-1]), number)
        if before != number:
            raise InputError(
                f"{path}, line {number}",
                f"found {quote(line.strip())}, but line {before} has the same position",
                "Remove one of the two lines.",
            )
        rows.append(row)
    if not rows:
        raise InputError(str(path), f"it has no row, expected {expected}", "Write at least one.")
    return np.array(rows)


def _read_numbers(words: list[str]) -> list[float]:
    """Return the numbers, or an empty list if one of the words is not a number."""
    try:
        return [float(word) for word in words]
    except ValueError:
        return []
