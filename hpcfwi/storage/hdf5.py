"""HDF5 files on all ranks: opened together if HDF5 is parallel, otherwise by each rank separately.

`models` and `gathers` define the contents of the files. Errors that a user can act on are raised on
all ranks, so that no rank waits for one that has given up.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcfwi.errors import InputError, WriteFailure, quote, say_bytes
from hpcfwi.storage.probe import probe
from hpcfwi.system import check_own, check_regular, check_room, exists, is_link, written_whole

if TYPE_CHECKING:
    from hpcfwi.parallel.context import Context

MOST_NAMES = 10  # of datasets in a message
_MOST_LINKS = 100  # and groups in the path of an array
# The numbers of the HDF5 filters that are supported, with their largest compression ratios: gzip,
# shuffle, Fletcher's checksum, and LZF of h5py
_FILTERS = {1: 1032, 2: 1, 3: 1, 32000: 100}
_SPARE = 2**24  # bytes of an array that may be missing in the file
# Errors other than OSError that h5py raises for damaged files; only their messages distinguish them
_H5PY_ERRORS = (RuntimeError, KeyError, ValueError, TypeError, UnicodeError, SystemError)

# Files that could not be closed after a failure to write. References are kept, because HDF5 crashes
# if such a file is released. The process must exit without closing HDF5.
unclosed: list[h5py.File] = []


def is_parallel(context: Context) -> bool:
    """Return True if these ranks open a file together: HDF5 uses MPI, and MPI knows the ranks.

    Return False if ranks survive the death of others, because they could not close such a file
    without them.
    """
    able = bool(h5py.get_config().mpi) and context.comm is not None
    return able and context.size > 1 and not context.fault_tolerant


def describe(context: Context) -> str:
    """Return a sentence for the log that says how files are read and written."""
    if is_parallel(context):
        return "HDF5 is parallel: all ranks read and write their own parts of one file."
    if context.size == 1:
        return "One process reads and writes the HDF5 files."
    if not h5py.get_config().mpi:
        reason = "h5py was built without MPI"
    elif context.comm is None:
        reason = "these ranks were not started by MPI"
    else:
        reason = "ranks may die, and the others must then be able to close their files"
    return (
        f"HDF5 is not parallel ({reason}): each rank reads on its own, and rank 0 writes all data."
    )


@contextmanager
def open_alone(path: Path) -> Iterator[h5py.File]:
    """Open a file for reading in this process only.

    Raises `InputError` if the file is missing, not HDF5, truncated, unreadable or harmful, or if
    HDF5 finds damage while it is read. The body of the `with` must do nothing else.
    """
    probe(path)
    with explained(path), open_here(path) as file:
        yield file


def open_here(path: Path) -> h5py.File:
    """Open a file for reading in this process, without `probe`, which `open_alone` calls first."""
    return h5py.File(path, "r", **_without_lock())


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the errors of h5py while it opens or reads a file into an `InputError` that names it."""
    try:
        check_regular(path)
        yield
    except OSError as error:
        raise _explain_reading(path, error) from error
    except _H5PY_ERRORS as error:
        raise InputError(
            str(path), f"HDF5 cannot read it ({error})", "Write it again from its source."
        ) from error


def open_file(path: Path, context: Context) -> h5py.File:
    """Open a file for reading on all ranks; collective, as is closing if HDF5 is parallel.

    Rank 0 has opened it with `open_alone` before, because messages of MPI-IO about faulty files are
    less specific. Raises `InputError` on all ranks if any of them cannot open it.
    """
    driver = {"driver": "mpio", "comm": context.comm} if is_parallel(context) else {}
    with raised_on_all_ranks(context), explained(path):
        file = h5py.File(path, "r", **driver, **_without_lock())
    # It is a variable, because the release of a parallel file waits for ranks that have none.
    return file  # noqa: RET504


def open_for_writing(
    path: Path, context: Context, fits: Callable[[h5py.File], bool]
) -> h5py.File | None:
    """Open an existing file for writing on all ranks; collective.

    fits: a function that returns True if an open file is the expected one, because it may have been
    replaced in the meantime. If HDF5 is not parallel, rank 0 opens the file and the others get
    None. Allocated chunks are written at once without a cache, because an error would be lost if it
    occurred when the cache is flushed. Raises `InputError` on all ranks if any of them cannot open
    the file.
    """
    file = None
    with raised_on_all_ranks(context):
        before = identify(path)
        try:
            if is_parallel(context):
                file = h5py.File(path, "r+", driver="mpio", comm=context.comm, rdcc_nbytes=0)
            elif context.is_root:
                file = h5py.File(path, "r+", rdcc_nbytes=0, **_without_lock())
        except OSError as error:
            raise _explain_writing(path, error) from error
        with explained(path):
            if identify(path) != before or (file is not None and not fits(file)):
                if file is not None and not is_parallel(context):
                    file.close()
                raise exchanged(path)
    return file


def identify(path: Path) -> tuple[int, int]:
    """Return the device and inode of a file; raise `InputError` for a link, as HDF5 follows it."""
    check_own(path)
    found = path.lstat()
    return found.st_dev, found.st_ino


def exchanged(path: Path) -> InputError:
    """Return the error for a file that has replaced the one that this job made."""
    return InputError(
        str(path), "it was replaced by another file", "Check who may write to this directory."
    )


@contextmanager
def created_whole(path: Path) -> Iterator[h5py.File]:
    """Yield a file to fill in this process, which is written to disk completely or not at all.

    It is filled in memory and needs as much memory as its size. If HDF5 wrote to a full disk, the
    process would end with a segmentation fault, and while it writes, no thread can read another
    file. Raises `WriteFailure`.
    """
    # The contents of HDF5's in-memory files would have to be copied
    image = io.BytesIO()
    with h5py.File(image, "w") as file:
        yield file
    with written_whole(path) as whole:
        whole.write(image.getbuffer())


def check_format(file: h5py.File, path: Path, name: str, version: int) -> None:
    """Raise `InputError` unless the root attributes state the format `name` and a known version.

    version: the newest version that is known.
    """
    found = plain(file.attrs.get("format"))
    if found != name:
        raise InputError(
            f"{path}, attribute format",
            f"missing, expected {name!r}"
            if found is None
            else f"found {quote(found)}, expected {name!r}",
            f"Give a file of this format; the documentation of {name} describes it.",
        )
    written = plain(file.attrs.get("version"))
    if not is_whole(written) or written < 1:
        raise InputError(
            f"{path}, attribute version",
            f"found {quote(written)}, expected a whole number from 1 to {version}",
            f"Set it to {version}.",
        )
    if written > version:
        raise InputError(
            f"{path}, attribute version",
            f"found {written}, but this program reads versions up to {version}",
            "Use a newer hpcfwi, or write the file again with this one.",
        )


REAL = "real floating-point numbers"
TO_REAL = "Convert the array to float32 before storing it."


def find_dataset(
    file: h5py.File,
    path: Path,
    key: str,
    kinds: str = "f",
    expected: str = REAL,
    remedy: str = TO_REAL,
) -> h5py.Dataset:
    """Return the dataset of this name; raise `InputError` if it is missing or of another type.

    Values in another file are also an error, because the author of this file may have no right to
    read the other one.

    kinds: types of values (`dtype.kind` of NumPy); expected, remedy: parts of the message for a
    dataset of another type.
    """
    found = follow(file, path, key)
    if not isinstance(found, h5py.Dataset):
        there = ", ".join(f"/{name}" for name in islice(file, MOST_NAMES)) or "nothing"
        raise InputError(
            f"{path}, /{key}",
            f"there is no such dataset; the file holds {there}{', ...' * (len(file) > MOST_NAMES)}",
            f"Store the array as /{key}.",
        )
    if found.dtype.kind not in kinds or found.shape is None:
        problem = f"its type is {quote(found.dtype)}, expected {expected}"
        raise InputError(f"{path}, /{key}", problem, remedy)
    check_storage(found, path)
    return found


def refuse_values(faults: NDArray[np.bool_], where: str, problem: str, remedy: str) -> None:
    """Raise `InputError` if some values are faulty, with their number and the index of the first.

    faults: True for the faulty values; problem: what they are, such as "not finite".
    """
    if faults.any():
        first = tuple(int(i[0]) for i in faults.nonzero())
        raise InputError(
            where,
            f"{faults.sum()} of {faults.size} values are {problem}, the first at index {first}",
            remedy,
        )


def read_real(
    file: h5py.File,
    path: Path,
    key: str,
    shapes: Sequence[tuple[int, ...]] | None = None,
    kinds: str = "f",
    expected: str = REAL,
    remedy: str = TO_REAL,
    allowed: Callable[[NDArray[np.float64]], NDArray[np.bool_]] | None = None,
) -> NDArray[np.float64]:
    """Return all values of a dataset; arguments as for `find_dataset`.

    shapes: those that are allowed; allowed: returns True for the values that are, by default all.
    Raises `InputError` if the dataset is missing, of another type or shape, never written, or too
    large, or if it has another value.
    """
    dataset, where = find_dataset(file, path, key, kinds, expected, remedy), f"{path}, /{key}"
    if shapes is not None and dataset.shape not in shapes:
        raise InputError(
            where, f"its shape is {dataset.shape}, expected {' or '.join(map(str, shapes))}", remedy
        )
    check_written(dataset, where)
    # Memory holds the values in the type of the file, and in double precision.
    needed = dataset.size * (dataset.dtype.itemsize + 8.0)
    check_room(where, f"its shape {dataset.shape}", needed, "Give a smaller array.")
    # A damaged file may contain signalling NaN, whose conversion would warn.
    with np.errstate(invalid="ignore"):
        values = dataset[...].astype(np.float64)
    if allowed is not None and not (good := allowed(values)).all():
        raise InputError(where, f"found {values[~good][0]:g}, expected {expected}", remedy)
    return values


def check_written(dataset: h5py.Dataset, where: str) -> None:
    """Raise `InputError` if a dataset has no values, because none was written."""
    if dataset.size and not dataset.id.get_storage_size():
        raise InputError(
            where,
            f"its shape is {dataset.shape}, but none of its values was written",
            "Write it again from its source.",
        )


def check_storage(dataset: h5py.Dataset, path: Path) -> None:
    """Raise `InputError` if values are not in this file, or are fewer than the dataset's shape."""
    where = f"{path}, {dataset.name}"
    if dataset.external or dataset.is_virtual:
        raise _elsewhere(where)
    if dataset.shape is None:
        return
    numbers = _filters_of(dataset)
    unknown = [number for number in numbers if number not in _FILTERS]
    if unknown:
        raise InputError(
            where,
            f"its values are stored with filter {unknown[0]}, which is not supported",
            "Compress them with gzip: `h5repack -f GZIP=4 OLD NEW`.",
        )
    ratio = largest_ratio(dataset)
    there = path.stat().st_size
    sizes = [dataset.shape, *([] if dataset.chunks is None else [dataset.chunks])]
    # dataset.nbytes may overflow.
    needed = max(math.prod(map(int, size)) for size in sizes) * dataset.dtype.itemsize
    if needed > ratio * there + _SPARE:
        raise InputError(
            where,
            f"its shape {dataset.shape} takes {say_bytes(needed)}, but the file has "
            f"{say_bytes(there)}: most of its values were not written",
            "Write all values, or a smaller array.",
        )


def largest_ratio(dataset: h5py.Dataset) -> int:
    """Return the largest ratio between the size of a dataset in memory and in the file.

    It is the product of the largest compression ratios of the dataset's filters.
    """
    return math.prod(_FILTERS[number] for number in _filters_of(dataset))


def _filters_of(dataset: h5py.Dataset) -> list[int]:
    filters = dataset.id.get_create_plist()
    return [filters.get_filter(i)[0] for i in range(filters.get_nfilters())]


def _elsewhere(where: str) -> InputError:
    return InputError(
        where,
        "its values are in another file, which is not supported",
        "Store the values in this file, for example with `h5repack`.",
    )


def holds(file: h5py.File | h5py.Group, name: str) -> bool:
    """Return True if a name exists, even as a link, which is not followed."""
    return file.get(name, getlink=True) is not None


def follow(file: h5py.File, path: Path, key: str) -> Any:
    """Return the object of a key, found through links within the file, None if there is none.

    Raises `InputError` if a link leads to another file, which is not opened.
    """
    found, left = file["/"], _parts(key)
    for _ in range(_MOST_LINKS):
        if not left or not isinstance(found, h5py.Group):
            return None if left else found
        name, *left = left
        link = found.get(name, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            raise _elsewhere(f"{path}, /{key}")
        if isinstance(link, h5py.SoftLink):
            found, left = found if link.path[:1] != "/" else file["/"], _parts(link.path) + left
        else:
            found = found.get(name)
    raise InputError(f"{path}, /{key}", "too many links lead to it", "Store the array itself.")


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def plain(value: Any) -> Any:
    """Return the value of an attribute as a Python object.

    The result does not depend on the language that wrote the attribute. An array of one element
    becomes that element, because MATLAB, C and Fortran write scalars in this way; other arrays
    become lists. Arrays of characters or bytes become text, whose padding with NUL or blanks is
    removed. An empty attribute becomes None.
    """
    if isinstance(value, np.ndarray):
        if value.size == 1:
            return plain(value.reshape(-1)[0])
        if value.dtype in (np.dtype("S1"), np.dtype("u1")):
            return plain(value.tobytes())
        return value.tolist()
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        return value.partition("\0")[0].rstrip(" ")
    if isinstance(value, h5py.Empty):
        return None
    return value.item() if isinstance(value, np.generic) else value


def is_number(value: Any) -> bool:
    """Return True if an attribute's plain value is a real number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_number(
    file: h5py.File, path: Path, name: str, remedy: str, positive: bool = False
) -> float:
    """Return a finite number, or one above 0, from a root attribute; raises `InputError`."""
    value = plain(file.attrs.get(name))
    if not is_number(value) or not (0.0 if positive else -math.inf) < value < math.inf:
        expected = "a number above 0" if positive else "a finite number"
        found = f"found {quote(value)}, expected {expected}"
        raise InputError(f"{path}, attribute {name}", found, remedy)
    return float(value)


def is_whole(value: Any) -> bool:
    """Return True if an attribute's plain value is an integer or a float such as 1.0."""
    return is_number(value) and float(value).is_integer()


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
    file: h5py.File, path: Path, key: str, names: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> NDArray[np.int8] | None:
    """Return indices of names, None if there is one name; raise `InputError` if they are wrong."""
    if len(names) == 1 and not holds(file, key):
        return None
    expected = f"whole numbers from 0 to {len(names) - 1}"
    remedy = "Give the index of a name for each of them."
    known = partial(np.isin, test_elements=np.arange(len(names)))
    return read_real(file, path, key, shapes, "iuf", expected, remedy, known).astype(np.int8)


def _without_lock() -> dict[str, bool]:
    """Return the option with which HDF5 does not lock files.

    Shared file systems may not support locks. They are not needed, because no file is read while it
    is written, and only one job writes in a run directory. HDF5 before 1.10.7 supports only the
    variable HDF5_USE_FILE_LOCKING=FALSE.
    """
    return {"locking": False} if h5py.version.hdf5_version_tuple >= (1, 10, 7) else {}


@contextmanager
def raised_on_all_ranks(context: Context) -> Iterator[None]:
    """Raise an `InputError` or `WriteFailure` of any rank on all ranks; collective at the end."""
    failure: InputError | WriteFailure | None = None
    try:
        yield
    except (InputError, WriteFailure) as error:
        failure = error
    for found in context.all_gather(failure):
        if found is not None:
            context.raise_on_all_ranks(found)


def _explain_reading(path: Path, error: OSError) -> InputError:
    where = str(path)
    if isinstance(error, PermissionError):
        return InputError(where, "permission to read it is denied", "Get permission to read it.")
    if not exists(path):
        if is_link(path):
            return InputError(where, "this link is broken", "Repair the link, or name the file.")
        return InputError(where, "there is no such file", "Check the name and the directory.")
    if "truncated" in str(error):
        remedy = "Copy it again, or write it again from its source."
        return InputError(where, "the HDF5 file is truncated", remedy)
    if "lock" in str(error):
        return InputError(
            where,
            f"HDF5 cannot lock it ({error})",
            "Set the environment variable HDF5_USE_FILE_LOCKING=FALSE.",
        )
    if not h5py.is_hdf5(path):
        return InputError(
            where,
            "this is not an HDF5 file",
            "Give a file that was written by HDF5; `hpcfwi convert` makes one of other formats.",
        )
    return InputError(where, f"HDF5 cannot open it ({error})", "Write it again from its source.")


def _explain_writing(path: Path, error: OSError) -> InputError:
    return InputError(
        str(path),
        f"HDF5 cannot open it for writing ({error})",
        "Name a file in a directory to which you may write; if its file system cannot lock "
        "files, set HDF5_USE_FILE_LOCKING=FALSE.",
    )
