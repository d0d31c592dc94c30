"""Conversion of models: raw floats, NumPy and MATLAB arrays, and SEG-Y with one column per trace.

`storage.models` reads and writes the package's own model files. A model is small compared with
data, so that it is held in memory as a whole.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import floor, log10, prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.io
from numpy.typing import NDArray

from hpcfwi.convert import segy
from hpcfwi.convert.layout import FileLayout
from hpcfwi.convert.request import HDF5, MATLAB, NPY, RAW, SEGY, VTK, Request, kind_of
from hpcfwi.convert.segy import Table, find_layout, read_headers, read_traces
from hpcfwi.convert.writing import write_columns, write_image
from hpcfwi.errors import InputError, refusing
from hpcfwi.model import AXES, PARAMETERS, Grid, Model, Parameter
from hpcfwi.storage.hdf5 import check_format, holds, open_alone, read_real
from hpcfwi.storage.models import (
    IMAGE_FORMAT,
    MODEL_FORMAT,
    MODEL_VERSION,
    POWERS,
    check_values,
    name_image,
    read_attribute,
    read_cells,
    read_images,
    read_model,
    write_model,
)
from hpcfwi.system import check_regular, check_room, is_there, open_regular, written_whole

Placement = tuple[tuple[float, ...], tuple[float, ...]]
"""Spacing and origin along z, (y,) x, in m."""

# If more than this share of the values is negative, they are taken for traces.
OSCILLATING = 0.01

# Values with smaller magnitudes are bytes in the wrong order.
TINY = 1e-30

# MATLAB classes of numbers
_MATLAB_NUMBERS = ("double", "single", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)))

log = logging.getLogger("hpcfwi")


def convert_model(request: Request) -> None:
    """Read a model from one kind of file and write it as another, in one process.

    Raises `InputError`.
    """
    source, target = kind_of(request.source), kind_of(request.target)
    name, is_scaled = request.array, request.quantity != "velocity" or request.scale != 1.0
    if source != HDF5:
        model = _read_foreign(request, source)
    elif read_attribute(request.source, "format") == IMAGE_FORMAT:
        model, name = _read_image(request, is_scaled)
    elif not is_scaled:
        names = [name]
        if request.parameter is None and target in (HDF5, VTK):
            names = _find_arrays(request.source) or names
        model = read_model(request.source, names)
    else:
        cells = read_cells(request.source, name)
        model = _make_model(cells[name].astype(np.float64), cells.grid, request)
    if target == HDF5:
        write_model(request.target, *_join(model, request.target))
    elif target == SEGY:
        line = None if request.line is None else segy.make_line(request.line)
        write_columns(request.target, model[name], model.grid, line, request.datum)
    elif target == VTK:
        write_image(request.target, model)
    else:
        axes = model.grid.axes
        order = _check_order(request.order or axes, axes)
        array = model[name].transpose([axes.index(axis) for axis in order])
        with written_whole(request.target) as file:
            if target == NPY:
                np.save(file, np.ascontiguousarray(array))
            else:
                kind = (request.headers.endian or "<") + "f4"
                file.write(np.ascontiguousarray(array, dtype=kind).tobytes())


def _read_image(request: Request, is_scaled: bool) -> tuple[Model, str]:
    """Return images of a migration by their names in the file, and the name of the first one.

    They are those of all parameters, or of the requested one.
    """
    if is_scaled:
        raise InputError(
            str(request.source),
            "it holds images of a migration, which are not quantities of a model",
            "Leave out --quantity and --scale.",
        )
    names = None if request.parameter is None else [request.parameter]
    images, _ = read_images(request.source, names)
    named = {name_image(name): image for name, image in images.arrays.items()}
    return Model(images.grid, named), next(iter(named))


def _find_arrays(path: Path) -> list[str]:
    """Return the parameters of a model file; raises `InputError` for another file."""
    with open_alone(path) as file:
        check_format(file, path, MODEL_FORMAT, MODEL_VERSION)
        return [name for name in PARAMETERS if holds(file, name)]


def _join(model: Model, path: Path) -> tuple[Model, dict[str, Any]]:
    """Return a model with the arrays of a model file, if it exists, and its other attributes.

    Raises `InputError` if the model cannot be added to the file.
    """
    if not model.arrays.keys() <= PARAMETERS.keys():
        raise InputError(
            str(path), "an image is not a model", "Write it as .sgy, .vti, .npy or raw floats."
        )
    if not is_there(path):
        return model, {}
    if read_attribute(path, "format") != MODEL_FORMAT:
        raise InputError(
            str(path), "this file exists already, and is not a model file", "Choose another name."
        )
    names = _find_arrays(path)
    with open_alone(path) as file:
        others = sorted(set(file) - set(names))
        attributes = dict(file.attrs)
    if others or not names:
        raise InputError(
            f"{path}, /{others[0]}" if others else str(path),
            "this array is not a parameter, and would be lost"
            if others
            else "it has no parameter of a model",
            "Choose another name.",
        )
    there = read_model(path, names)
    if twice := sorted(model.arrays.keys() & there.arrays.keys()):
        raise InputError(
            f"{path}, /{twice[0]}",
            "the file has this array already",
            "Choose another file, or remove the array from this one.",
        )
    if not model.grid.agrees(there.grid):
        raise InputError(
            str(path),
            f"its arrays have {there.grid}, but the new one has {model.grid}",
            "Choose another file; all arrays of a model file lie on one grid.",
        )
    return Model(there.grid, {**there.arrays, **model.arrays}), attributes


def read_npy(path: Path) -> NDArray[np.float64]:
    """Read an array of real numbers from a .npy file; raises `InputError`."""
    with refusing(str(path), "it cannot be read", "Check the name and its permissions."):
        check_regular(path)
        # Memory holds the array of the file and its copy in double precision.
        needed = 10.0 * path.stat().st_size
        check_room(str(path), "the array", needed, "Give a smaller array.")
        try:
            found = np.load(path, allow_pickle=False)
        except (ValueError, EOFError, TypeError, SyntaxError, MemoryError) as error:
            raise InputError(
                str(path), f"NumPy cannot read it ({error})", "Write it again with numpy.save."
            ) from error
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "fiu":
        raise InputError(
            str(path), "it is not an array of real numbers", "Store one array of floats."
        )
    return found.astype(np.float64)


def read_mat(path: Path, variable: str | None = None) -> NDArray[np.float64]:
    """Read an array with two or three axes from a MATLAB file of any version.

    variable: name of the array, needed only if the file has several. Raises `InputError` if the
    file is not a MATLAB file or is damaged, if it has no array or none of this name, or if it has
    several arrays and `variable` is None.
    """
    with refusing(str(path), "it cannot be read", "Check the name and its permissions."):
        check_regular(path)
        with open(path, "rb", opener=open_regular) as file:
            is_hdf5 = file.read(10) == b"MATLAB 7.3"
    if is_hdf5:
        with open_alone(path) as opened:
            # MATLAB 7.3 files store arrays with their axes reversed
            shapes = {
                name: found.shape[::-1]
                for name in opened
                if isinstance(opened.get(name, getlink=True), h5py.HardLink)
                and isinstance(found := opened[name], h5py.Dataset)
                and found.dtype.kind in "fiu"
            }
            name = _choose_variable(path, shapes, variable)
            kind = "fiu", "real numbers", "Store doubles."
            return read_real(opened, path, name, None, *kind).transpose()
    try:
        known = scipy.io.whosmat(path)
        shapes = {name: shape for name, shape, kind in known if kind in _MATLAB_NUMBERS}
        name = _choose_variable(path, shapes, variable)
        check_room(
            f"{path}, {name}", "the array", 24.0 * prod(shapes[name]), "Give a smaller array."
        )
        found = scipy.io.loadmat(path, variable_names=[name])[name]
        return np.asarray(found, dtype=np.float64)
    except InputError:
        raise
    except Exception as error:  # damaged files make SciPy raise exceptions of many types
        raise InputError(
            str(path), f"SciPy cannot read it ({error})", "Write it again with MATLAB's save."
        ) from error


def _choose_variable(path: Path, shapes: Mapping[str, tuple[int, ...]], name: str | None) -> str:
    """Return the name of the array to read: `name`, or the only array that can be a model.

    shapes: of all arrays of numbers in the file. Only those with two or three axes can be models.
    """
    models = [n for n, shape in shapes.items() if len(shape) in AXES and min(shape) > 1]
    if name is not None and name not in models:
        found = f"it holds {', '.join(models) or 'no array of two or three axes'}"
        raise InputError(f"{path}, --variable {name}", found, "Name an array that the file holds.")
    if name is None and len(models) != 1:
        found = f"it holds {len(models)} arrays of two or three axes: {', '.join(models)}"
        raise InputError(
            str(path),
            found if models else "it holds no array of two or three axes",
            f"Name one with --variable {models[0]}." if models else "Store the model as an array.",
        )
    return models[0] if name is None else name


def _read_foreign(request: Request, kind: str) -> Model:
    path, placement = request.source, None
    if kind == RAW:
        axes, array = _read_raw(request)
    elif kind in (NPY, MATLAB):
        array = read_npy(path) if kind == NPY else read_mat(path, request.variable)
        if array.ndim not in AXES:
            raise InputError(
                str(path),
                f"its shape is {array.shape}, expected (z, x) or (z, y, x)",
                "Store an array with these axes.",
            )
        axes = _check_order(request.order or AXES[array.ndim], AXES[array.ndim])
    else:
        axes, array, placement = _read_columns(request)
    array = array.transpose([axes.index(axis) for axis in AXES[array.ndim]])
    if request.shape is not None and array.shape != request.shape:
        raise InputError(
            "--shape",
            f"found {request.shape}, but {path} holds {array.shape}",
            "Correct --shape, or leave it out.",
        )
    if request.spacing is None and placement is None:
        raise InputError(
            "--spacing",
            "not given, and the file does not determine it",
            "Give it in m, along z, (y,) x.",
        )
    spacing, origin = placement or ((), (0.0,) * array.ndim)
    spacing, origin = tuple(request.spacing or spacing), tuple(request.origin or origin)
    spacing = spacing * array.ndim if len(spacing) == 1 else spacing
    for option, numbers in (("--spacing", spacing), ("--origin", origin)):
        if len(numbers) != array.ndim:
            raise InputError(
                option,
                f"found {len(numbers)} numbers for an array of {array.ndim} axes",
                f"Give one number for each of {', '.join(AXES[array.ndim])}.",
            )
    return _make_model(array, Grid(array.shape, spacing, origin), request)


def _make_model(array: NDArray[np.float64], grid: Grid, request: Request) -> Model:
    """Make a model from velocities or from values of `request.quantity`; raises `InputError`."""
    where, parameter = str(request.source), PARAMETERS[request.array]
    if request.quantity != "velocity":
        if parameter.unit != "m/s":
            raise InputError(
                f"--quantity {request.quantity}",
                f"given for the {parameter.title}, which is not a velocity",
                "Leave it out.",
            )
        if not array.min() > 0.0:
            raise InputError(
                f"--quantity {request.quantity}",
                f"the smallest value in {where} is {array.min():g}, expected values above 0",
                "Give every cell a value above 0.",
            )
        array = array ** POWERS[request.quantity]
    array = array * request.scale
    negative = np.mean(array < 0.0)
    if parameter.lowest >= 0.0 and negative > OSCILLATING and array.max() > 0.0:
        raise InputError(
            where,
            f"{100.0 * negative:.0f} % of the values are below 0, the others above: "
            "they look like traces, expected a model",
            "If the file is SEG-Y, leave out --model; write an array of traces as gathers with "
            'h5py, as in "Files from Python" of docs/formats.md.',
        )
    check_values(array, where, parameter, "Give --scale")
    return Model(grid, {parameter.name: np.ascontiguousarray(array, dtype=np.float32)})


def _check_order(order: str, axes: str) -> str:
    if sorted(order) != sorted(axes):
        raise InputError(
            "--order",
            f"found {order!r}, but the model has the axes {axes!r}",
            "Name each of these once.",
        )
    return order


def _read_raw(request: Request) -> tuple[str, NDArray[np.float64]]:
    """Read a raw file of floats and return the order of its axes, and the values."""
    path, shape = request.source, request.shape
    if shape is None:
        raise InputError(
            "--shape", "a raw file does not hold its shape", "Give --shape NZ,NX or NZ,NY,NX."
        )
    axes = AXES[len(shape)]
    order = _check_order(request.order or axes, axes)
    with refusing(str(path), "it cannot be read", "Check the name and its permissions."):
        check_regular(path)
        size = path.stat().st_size
        width = {4 * prod(shape): 4, 8 * prod(shape): 8}.get(size)
        if width is None:
            raise InputError(
                str(path),
                f"it has {size} bytes; expected {4 * prod(shape)} or {8 * prod(shape)}, for "
                f"{' x '.join(map(str, shape))} floats of 4 or 8 bytes",
                "Give the shape along z, (y,) x with --shape.",
            )
        check_room(str(path), "the array", 3.0 * size, "Give a smaller array.")
        with open(path, "rb", opener=open_regular) as file:
            content = file.read()
    endian = request.headers.endian or "<"
    with np.errstate(invalid="ignore"):
        found = np.frombuffer(content, f"{endian}f{width}").astype(np.float64)
    swapped = np.frombuffer(content, f"{'<' if endian == '>' else '>'}f{width}")
    parameter = PARAMETERS[request.array]
    if _is_plausible(swapped, parameter) and not _is_plausible(found * request.scale, parameter):
        other = "little" if endian == ">" else "big"
        raise InputError(
            str(path),
            "the values are plausible in the other byte order only",
            f"Give --endian {other}.",
        )
    return order, found.reshape([shape[axes.index(axis)] for axis in order])


def _is_plausible(values: NDArray, parameter: Parameter) -> bool:
    # Whole numbers in the other byte order are tiny
    with np.errstate(invalid="ignore"):
        tiny = (values != 0.0) & (np.abs(values) < TINY)
        return bool((~tiny & (values >= parameter.lowest) & (values <= parameter.highest)).all())


def _read_columns(request: Request) -> tuple[str, NDArray[np.float64], Placement | None]:
    """Read a model from SEG-Y: the order of its axes, its values, and its spacing and origin.

    Each trace is a column of the model, and the sampling interval is the spacing along z in mm. The
    columns of a volume are placed by their inline (y) and crossline (x) numbers, or by `shape`.
    Spacing and origin are None if the headers do not determine them, or if `shape` is given.
    """
    layout = find_layout(request.source, request.headers)
    n_cells = float(layout.n_traces) * layout.n_samples
    check_room(str(layout.path), "the model", 30.0 * n_cells, "Give a smaller model.")
    if layout.in_feet:
        raise InputError(
            f"{layout.path}, bytes 3255-3256 (measurement)",
            "found 2: lengths in feet, expected metres",
            "Give --value measurement=1, --spacing in m and, for values in ft/s, --scale 0.3048.",
        )
    names = ("inline", "crossline", "cdp_x", "cdp_y", "coordinate_scalar", "unit", "interval")
    columns = read_headers(layout, names)
    values = read_traces(layout, np.arange(layout.n_traces)).astype(np.float64)
    y, rows = np.unique(columns["inline"], return_inverse=True)
    x, ranks = np.unique(columns["crossline"], return_inverse=True)
    if request.shape is not None:
        axes = request.order or "yxz"[-len(request.shape) :]
        _check_order(axes, AXES[len(request.shape)])
        lengths = [request.shape[AXES[len(axes)].index(axis)] for axis in axes]
        if prod(lengths[:-1]) != layout.n_traces or lengths[-1] != layout.n_samples:
            raise InputError(
                "--shape",
                f"found {request.shape}, but {layout.path} has {layout.n_traces} traces of "
                f"{layout.n_samples} samples",
                "Give the shape along z, (y,) x, where z is along the traces.",
            )
        return axes, values.reshape(lengths), None
    order = np.arange(layout.n_traces)
    shape: tuple[int, ...] = order.shape
    if y.size > 1 and x.size > 1:
        if y.size * x.size != layout.n_traces or np.unique(rows * x.size + ranks).size < len(rows):
            raise InputError(
                layout.where("inline", "crossline"),
                f"found {y.size} inlines and {x.size} crosslines, but {layout.n_traces} traces",
                "Give --shape NZ,NY,NX if x varies fastest from trace to trace.",
            )
        order, shape = np.lexsort((ranks, rows)), (y.size, x.size)
        values = values[order].reshape(*shape, -1)
    across = _place_columns(columns, layout, request, len(shape))
    digit = 0.0
    if request.line is not None:  # headers hold rounded coordinates of the map
        scalars = columns["coordinate_scalar"]
        digit = float(segy.scale(np.ones(len(scalars)), scalars).max())
    placement = _find_placement(columns, across[order], shape, layout, digit)
    return "yxz"[-values.ndim :], values, placement


def _place_columns(
    columns: Table, layout: FileLayout, request: Request, ndim: int
) -> NDArray[np.float64]:
    """Return the positions (trace, axis) of columns along y and x, or along the line in 2-D, in m.

    Raises `InputError` if a line is given for a volume, or if the columns of a 2-D model are not
    along x and neither a line nor a spacing is given.
    """
    x, y = (
        segy.scale(columns[name].astype(np.float64), columns["coordinate_scalar"])
        for name in ("cdp_x", "cdp_y")
    )
    where = layout.where("cdp_x", "cdp_y")
    if ndim > 1:
        if request.line is not None:
            raise InputError("--line", f"given, but {layout.path} holds a volume", "Leave it out.")
        return np.stack([y, x], axis=1)
    if request.line is not None:
        points = np.stack([x, y, np.zeros_like(x)], axis=1)
        line = segy.make_line(request.line)
        away = line.away(points).max()
        log.info("Columns are along --line %s, from which they are at most %.3g m away", line, away)
        # Rounded to 1 mm, since coordinates on the map have no more digits
        return np.round(line.along(points)[:, 1:], 3)
    lengths = not np.isin(columns["unit"], list(segy.ANGLES)).any()
    if np.ptp(y) and lengths and request.spacing is None:
        ends = [x[0], y[0], x[-1], y[-1]]
        raise InputError(
            where,
            f"the columns lie from x = {x[0]:.10g}, y = {y[0]:.10g} m to x = {x[-1]:.10g}, "
            f"y = {y[-1]:.10g} m, which is not along x",
            f"Give their line, such as --line {','.join(f'{v:.10g}' for v in ends)}; or give "
            "--spacing to ignore their coordinates.",
        )
    return x[:, None]


def _find_placement(
    columns: Table,
    across: NDArray[np.float64],
    shape: tuple[int, ...],
    layout: FileLayout,
    digit: float,
) -> Placement | None:
    """Return spacing and origin of columns, or None if the headers do not determine them.

    The result is None if headers contradict each other or hold angles, or if the positions do not
    grow evenly in the order of the columns, as in a line from east to west.

    across: positions (column, axis), m; shape: numbers of columns along each axis; digit: m, to
    which the positions are rounded.
    """
    said = np.unique(np.append(columns["interval"], layout.interval))
    said = said[said > 0]
    if said.size != 1 or np.isin(columns["unit"], list(segy.ANGLES)).any():
        return None
    spacing, origin = [float(said[0]) / 1000.0], [0.0]
    for axis, places in enumerate(across.T):
        along = np.moveaxis(places.reshape(shape), axis, -1)
        along = along.reshape(-1, shape[axis])
        steps = np.diff(along[0])
        off = np.abs(steps - steps[:1]).max(initial=0.0)
        even = steps.size and steps[0] > 0.0 and off <= 1e-3 * steps[0] + 2.0 * digit
        if not even or (along != along[0]).any():
            return None
        mean, first = float(steps.mean()), float(along[0, 0])
        if digit:  # n steps together determine the spacing n times as exactly as one
            slope, first = np.polyfit(np.arange(steps.size + 1), along[0], 1).tolist()
            mean = round(slope, floor(log10(steps.size / digit))) or mean
            first = round(first, floor(-log10(digit))) + 0.0
        spacing.append(mean)
        origin.append(first)
    return tuple(spacing), tuple(origin)
