"""Strategies of hypothesis that damage a good config or HDF5 file.

A damaged file can still be a good one, for example if a number is replaced by another valid one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from datetime import date, time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from hypothesis import strategies as st

Tables = dict[str, Any]

EXTREME = [0.0, -0.0, -1.0, 1e-320, 1e-300, 1e-12, 1e-6, 0.5, 1e3, 1e6, 1e9, 1e15, 1e38, 1e300]
HUGE = [10**9, 2**31, 2**63, 10**12, 10**18, 10**400]
SIZES = ["0 B", "1 B", "10 kB", "1 GB", "-1 GB", "9" * 400 + " GB", "1e9 B", "GB", "12"]
NAMES = ["", ".", "..", "/", "/dev/null", "nowhere.h5", "a\0b", "x" * 5000, "~", "input.toml"]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(NAMES)
floats = st.floats() | st.sampled_from(EXTREME) | st.sampled_from([-x for x in EXTREME])
integers = st.integers() | st.sampled_from(HUGE) | st.sampled_from([-x for x in HUGE])
scalars = st.one_of(
    floats,
    integers,
    texts,
    st.booleans(),
    st.sampled_from(SIZES),
    st.just(date(2026, 1, 1)) | st.just(time(12)),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)


def paths_in(tables: Tables, *above: str) -> Iterator[tuple[str, ...]]:
    """Yield the path of every key."""
    for key, value in tables.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from paths_in(value, *above, key)


@st.composite
def damaged_tables(draw: st.DrawFn, good: Tables, more: tuple[tuple[str, ...], ...]) -> Tables:
    """Draw a config with one to three keys removed, changed or added.

    more: paths of keys that the good config leaves out.
    """
    tables = copy.deepcopy(good)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from([*paths_in(tables), *more]))
        *parents, last = place
        table = tables
        for key in parents:
            table = table.get(key, {}) if isinstance(table, dict) else {}
        if not isinstance(table, dict):
            continue
        match draw(st.sampled_from(["change", "change", "change", "remove", "add", "nest"])):
            case "remove":
                table.pop(last, None)
            case "change":
                table[last] = draw(alike(table.get(last)))
            case "add":
                table[draw(texts)] = draw(values)
            case "nest":
                table[last] = {last: table.get(last, 1)}
    return tables


def alike(value: object) -> st.SearchStrategy[Any]:
    """Return a strategy of values that prefers the same type, which passes more checks."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return values
    return (integers if isinstance(value, int) else floats) | values


@st.composite
def damaged_bytes(draw: st.DrawFn, good: bytes) -> bytes:
    """Draw truncated bytes, or bytes with a few replaced, removed or inserted."""
    if draw(st.booleans()):
        return good[: draw(st.integers(0, len(good)))]
    content = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        taken = draw(st.integers(0, 3))
        content[at : at + taken] = draw(st.binary(max_size=3))
    return bytes(content)


@st.composite
def flipped_bytes(draw: st.DrawFn, good: bytes) -> bytes:
    """Draw bytes of the same length with a few replaced."""
    content = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    return bytes(content)


Harm = Callable[[h5py.File], None]

DTYPES = ["<f2", "<f4", ">f4", "<f8", ">f8", "<i4", "u1", "?", "<c8", "S5", "V4"]
SHAPES = [(), (0,), (1,), (1, 1), (10**6, 10**6), (10, 10**6, 10**6), (0, 30, 150), (2, 2, 2, 2)]
NUMBERS = [np.nan, np.inf, -np.inf, 0.0, -1.0, 1e-30, 0.5, 1e5, 3e38, 1e300]
ATTRIBUTES = [
    *NUMBERS,
    -3,
    2**63 - 1,
    True,
    1j,
    "",
    "zx",
    "zyx",
    "2",
    b"\xff\xfe",
    "a\nb" * 50,
    h5py.Empty("f4"),
    (1.0,),
    (20.0, 20.0),
    (20.0, 0.0),
    (20.0, -20.0),
    (20.0, np.nan),
    (1e-300, 20.0),
    (1e300, 1e300),
    (20.0, 20.0, 20.0),
    np.zeros((2, 2)),
    np.zeros(2, "i4"),
    np.zeros(2, "i4,f4"),
    np.zeros(0),
]


def remove(key: str) -> Harm:
    return lambda file: file.__delitem__(key)


def rename(key: str) -> Harm:
    return lambda file: file.move(key, f"{key}2")


def replace(key: str, make: Callable[[np.ndarray], Any]) -> Harm:
    """Return a function that replaces an array, unless earlier damage has emptied it."""

    def harm(file: h5py.File) -> None:
        old = file[key][...]
        if not isinstance(old, h5py.Empty):
            del file[key]
            file[key] = make(old)

    return harm


def make_group(key: str) -> Harm:
    def harm(file: h5py.File) -> None:
        del file[key]
        file.create_group(key)["inside"] = 1.0

    return harm


def link(key: str, target: Any) -> Harm:
    return replace(key, lambda _: target)


def leave_unwritten(key: str, shape: tuple[int, ...]) -> Harm:
    def harm(file: h5py.File) -> None:
        del file[key]
        file.create_dataset(key, shape, "f4")

    return harm


def write_one_chunk(key: str, shape: tuple[int, ...]) -> Harm:
    """Return a function that creates a dataset larger than any memory with one written chunk."""

    def harm(file: h5py.File) -> None:
        del file[key]
        file.create_dataset(key, shape, "f4", chunks=(1,) * len(shape))
        file[key][(0,) * len(shape)] = 1500.0

    return harm


def put(key: str, number: float) -> Harm:
    """Return a function that sets one value of an array, converted to float64."""

    def change(array: np.ndarray) -> np.ndarray:
        array = array.real.astype(np.float64)
        array.flat[array.size // 2 : array.size // 2 + 1] = number
        return array

    return replace(key, change)


def fill(key: str, number: float) -> Harm:
    return replace(key, lambda array: np.full(array.shape, number))


def set_attribute(key: str, value: Any) -> Harm:
    return lambda file: file.attrs.__setitem__(key, value)


def remove_attribute(key: str) -> Harm:
    return lambda file: void(file.attrs.pop(key, None))


def turn_axes(key: str) -> Harm:
    return replace(key, np.transpose)


def convert(key: str, dtype: str) -> Harm:
    return replace(key, lambda array: array.astype(dtype))


def harms(datasets: tuple[str, ...], attributes: tuple[str, ...]) -> st.SearchStrategy[Harm]:
    """Return a strategy of one kind of damage to a file with these datasets and attributes."""
    key, attribute = st.sampled_from(datasets), st.sampled_from(attributes)
    targets = [h5py.SoftLink("/nowhere"), h5py.ExternalLink("nowhere.h5", "/vp")]
    targets += [h5py.SoftLink(f"/{name}") for name in datasets]
    shapes = st.sampled_from(SHAPES)
    return st.one_of(
        st.builds(remove, key),
        st.builds(rename, key),
        st.builds(make_group, key),
        st.builds(link, key, st.sampled_from([*targets, h5py.Empty("f4"), "text", 1.0])),
        st.builds(leave_unwritten, key, shapes),
        st.builds(write_one_chunk, key, shapes.filter(lambda shape: shape and 0 not in shape)),
        st.builds(put, key, st.sampled_from(NUMBERS)),
        st.builds(fill, key, st.sampled_from(NUMBERS)),
        st.builds(turn_axes, key),
        st.builds(convert, key, st.sampled_from(DTYPES)),
        st.builds(set_attribute, attribute, st.sampled_from(ATTRIBUTES) | floats | texts),
        st.builds(remove_attribute, attribute),
    )


def harm_file(path: Path, several: list[Harm]) -> None:
    """Apply several kinds of damage; skip those that are no longer possible."""
    for harm in several:
        with h5py.File(path, "a") as file:
            try:
                harm(file)
            except (
                KeyError,
                TypeError,
                ValueError,
                OSError,
                RuntimeError,
                ArithmeticError,
                MemoryError,
            ):
                continue


def void(_: object) -> None:
    """Discard a value."""
