"""Components of traces and kinds of sources in gathers files.

They exist in files of version 2, in which something is not pressure or not explosive. Indices may
be left out if there is one name. Vectors and tensors are in axis order.

/kinds int8 (receiver) or (shot, receiver), indices of the attribute kind_names, such as "pressure"
and "vz"; for the name "strain", /directions float64 (receiver, ndim), along the fibre, and the
attribute gauge (m). /source_kinds int8 (shot), indices of the attribute source_kind_names; for the
name "moment", /source_moments float64 (shot, ndim, ndim), symmetric.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcfwi.errors import InputError, quote
from hpcfwi.model import AXES
from hpcfwi.storage.hdf5 import holds, plain, read_number, read_real
from hpcfwi.survey import (
    COMPONENTS,
    EXPLOSIVE,
    PRESSURE,
    SOURCE_KINDS,
    STRAIN,
    Components,
    SourceKinds,
    Survey,
    moment_kinds,
    moment_tensors,
)

MOMENT = "moment"


def describe_kinds(survey: Survey) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the datasets and the attributes for the kinds of a survey, by name.

    There are none if all traces are of pressure and all sources explosive.
    """
    datasets: dict[str, NDArray[Any]] = {}
    attributes: dict[str, Any] = {}
    components, sources = survey.components, survey.source_kinds
    if components.names != PRESSURE.names:
        attributes["kind_names"] = _as_attribute(components.names)
        if components.kinds is not None:
            datasets["kinds"] = components.kinds.astype(np.int8)
        if components.directions is not None:
            datasets["directions"] = components.directions.astype(np.float64)
            attributes["gauge"] = components.gauge
    if sources.keys() != EXPLOSIVE.keys():
        shape, ndim = (survey.n_shots,), survey.sources.shape[-1]
        tensors = moment_tensors(sources, AXES[ndim], survey.n_shots)
        names = list(dict.fromkeys(MOMENT if MOMENT in name else name for name in sources))
        attributes["source_kind_names"] = _as_attribute(names)
        if MOMENT in names:
            datasets["source_moments"] = tensors
        if len(names) > 1:
            acts = [
                tensors.any(axis=(1, 2))
                if name == MOMENT
                else np.broadcast_to(sources[name], shape)
                for name in names
            ]
            datasets["source_kinds"] = np.argmax(acts, axis=0).astype(np.int8)
    return datasets, attributes


def _as_attribute(names: Sequence[str]) -> str | list[str]:
    """Return names as `plain` reads them from an attribute."""
    return names[0] if len(names) == 1 else list(names)


def read_components(file: h5py.File, path: Path, shape: tuple[int, int], ndim: int) -> Components:
    """Return the components of the traces of an open file, for so many shots and receivers.

    Raises `InputError` if something about them is missing or wrong.
    """
    names = read_names(file, path, "kind_names", COMPONENTS, ("kinds", "directions"))
    if names is None:
        return PRESSURE
    kinds = read_kinds(file, path, "kinds", names, [shape[1:], shape])
    if STRAIN not in names:
        return Components(names, kinds)
    remedy = "Give the length of fibre over which the strain is averaged, in m."
    gauge = read_number(file, path, "gauge", remedy, positive=True)
    number = names.index(STRAIN)
    all_kinds = np.zeros(shape[1]) if kinds is None else kinds
    fibre = np.any(np.atleast_2d(all_kinds == number), axis=0)
    remedy = "Give the direction of the fibre at each receiver, in axis order, as float32."
    directions = read_real(file, path, "directions", [(shape[1], ndim)], remedy=remedy)
    length = np.linalg.norm(directions, axis=-1)
    wrong = fibre & ~(np.isfinite(length) & (length > 0.0))
    if wrong.any():
        raise InputError(
            f"{path}, /directions",
            f"found {directions[wrong][0].tolist()} for receiver {wrong.argmax()}, which records "
            "strain; expected a finite vector that is not 0",
            remedy,
        )
    along = np.divide(
        directions, length[:, None], out=np.zeros_like(directions), where=fibre[:, None]
    )
    return Components(names, kinds, gauge, along)


def read_source_kinds(file: h5py.File, path: Path, n_shots: int, ndim: int) -> SourceKinds:
    """Return the kinds of the sources of an open file; raise `InputError` if they are wrong."""
    known = (*SOURCE_KINDS, MOMENT)
    arrays = ("source_kinds", "source_moments")
    names = read_names(file, path, "source_kind_names", known, arrays)
    if names is None:
        return EXPLOSIVE
    kinds = read_kinds(file, path, "source_kinds", names, [(n_shots,)])
    found: dict[str, NDArray[np.float64]] = {}
    for number, name in enumerate(names):
        acts = np.ones(()) if kinds is None else (kinds == number).astype(np.float64)
        if name != MOMENT:
            found[name] = acts
            continue
        remedy = "Give the moment tensor of each shot, in axis order, as float32."
        tensors = read_real(file, path, "source_moments", [(n_shots, ndim, ndim)], remedy=remedy)
        tensors = np.where(np.reshape(acts, (-1, 1, 1)) > 0.0, tensors, 0.0)
        turned = tensors.transpose(0, 2, 1)
        wrong = ~np.isclose(tensors, turned, rtol=1e-6, atol=0.0).all(axis=(1, 2))
        wrong |= ~np.isfinite(tensors).all(axis=(1, 2))
        wrong |= (acts > 0.0) & ~tensors.any(axis=(1, 2))
        if wrong.any():
            raise InputError(
                f"{path}, /source_moments",
                f"found {tensors[wrong][0].tolist()} for shot {wrong.argmax()}, expected finite "
                "numbers and a symmetric tensor that is not 0",
                remedy,
            )
        found |= moment_kinds(tensors, AXES[ndim])
    return found


def read_names(
    file: h5py.File, path: Path, key: str, known: Sequence[str], arrays: Sequence[str]
) -> tuple[str, ...] | None:
    """Return the names in an attribute, None without it; raise `InputError` if they are wrong.

    arrays: names of the datasets that need the attribute.
    """
    given = plain(file.attrs.get(key))
    if given is None and not any(holds(file, name) for name in arrays):
        return None
    # `plain` makes a text of an array of one name.
    names = tuple(str(plain(name)) for name in (given if isinstance(given, list) else [given]))
    if not names or not set(names) <= set(known) or len(set(names)) < len(names):
        raise InputError(
            f"{path}, attribute {key}",
            f"found {quote(given)}, expected some of {', '.join(known)}, each of them once",
            f"Give the names that the values of /{arrays[0]} count, from 0.",
        )
    return names


def read_kinds(
    file: h5py.File,
    path: Path,
    key: str,
    names: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
) -> NDArray[np.int8] | None:
    """Return indices of names, None if there is one name; raise `InputError` if they are wrong."""
    if len(names) == 1 and not holds(file, key):
        return None
    expected = f"whole numbers from 0 to {len(names) - 1}"
    remedy = "Give the index of a name for each of them."
    values = read_real(file, path, key, shapes, "iuf", expected, remedy)
    wrong = ~np.isin(values, np.arange(len(names)))
    if wrong.any():
        raise InputError(
            f"{path}, /{key}", f"found {values[wrong][0]:g}, expected {expected}", remedy
        )
    return values.astype(np.int8)
