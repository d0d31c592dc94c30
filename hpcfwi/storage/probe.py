"""A helper process that reads HDF5 files first, because a harmful file may kill its reader.

The HDF5 library trusts the contents of a file: a damaged or malicious file can end the process that
reads it, keep it busy for ever, or take all memory. `probe` lets a helper read a file before this
process does. The helper imports h5py once, forks for each file, and lets the child read everything
that the program will read, within limits of time and memory. It starts no MPI, and ends when it has
not been used for a while.
"""

from __future__ import annotations

import json
import math
import os
import resource
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hpcfwi
from hpcfwi.errors import InputError, say_bytes

if TYPE_CHECKING:
    import h5py

    from hpcfwi.parallel.context import Context

SECONDS = 4  # CPU time that reading a file may take, s
PER_SECOND = 10**8  # bytes of a file for each further second
MEMORY = 10**9  # bytes of memory that reading a file may take
IDLE = 30.0  # s without a request after which the helper ends
_PATIENCE = 10  # elapsed time for each second of CPU time, because file systems may be slow
_WHOLE = 2**26  # bytes up to which an array is read completely
_MOST_OBJECTS = 100_000
_MOST_VALUES = 1000  # values that are read of a larger array
_MOST_CHUNKS = 10_000  # chunks whose sizes an older HDF5 is asked for, one after the other
# Variables that launchers set for their ranks, which the helper must not have.
_LAUNCHERS = ("OMPI_", "PMI", "PRTE_", "SLURM_", "HYDRA_", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_REMEDY = "Write it again from its source."

# Files that were read without a crash, with their status at that time.
_harmless: set[tuple[int, ...]] = set()
_helper: tuple[int, subprocess.Popen[str]] | None = None


def probe(path: Path) -> None:
    """Let the helper read an HDF5 file, unless it has read it before and the file has not changed.

    Raises `InputError` if the file kills its reader, or takes too much time or memory. The program
    reports other errors when it reads the file.
    """
    identity = _identify(path)
    if identity is None or identity in _harmless:
        return
    problem = _ask(path)
    if problem:
        raise InputError(str(path), problem, _REMEDY)
    _harmless.add(identity)


def probe_on_root(path: Path, context: Context) -> None:
    """Call `probe` on rank 0, for all ranks; collective. Raises `InputError` on all of them."""
    context.from_root(partial(probe, path))
    identity = _identify(path)
    if identity is not None:
        _harmless.add(identity)


def _identify(path: Path) -> tuple[int, ...] | None:
    """Return identity and status of a file; None if there is none, which its reader reports."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    if not path.is_file():
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _ask(path: Path) -> str:
    """Return the problem that the helper found with a file, empty if there is none."""
    request = json.dumps(os.path.abspath(path)) + "\n"  # noqa: PTH100
    # Try twice, because an idle helper may have just ended.
    for _ in range(2):
        with suppress(BrokenPipeError):
            helper = _find_helper()
            assert helper.stdin is not None
            assert helper.stdout is not None
            helper.stdin.write(request)
            helper.stdin.flush()
            answer = helper.stdout.readline()
            if answer.endswith("\n"):
                return str(json.loads(answer))
        _end_helper()
    raise RuntimeError("the process that checks HDF5 files ended without an answer")


def _find_helper() -> subprocess.Popen[str]:
    """Return the helper of this process; start it if there is none."""
    global _helper
    if _helper is None or _helper[0] != os.getpid() or _helper[1].poll() is not None:
        _end_helper()
        folder = str(Path(hpcfwi.__file__).parents[1])
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_LAUNCHERS)}
        places = filter(None, (folder, kept.get("PYTHONPATH")))
        helper = subprocess.Popen(
            [sys.executable, "-P", "-m", "hpcfwi.storage.probe"],
            env={**kept, "PYTHONPATH": os.pathsep.join(places)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            text=True,
            start_new_session=True,
        )
        _helper = os.getpid(), helper
    return _helper[1]


def _end_helper() -> None:
    """End the helper; do nothing in a fork of the process that started it."""
    global _helper
    if _helper is not None:
        owner, helper = _helper
        if owner == os.getpid():
            helper.kill()
            helper.wait()
        for pipe in filter(None, (helper.stdin, helper.stdout)):
            with suppress(BrokenPipeError):
                pipe.close()
    _helper = None


def _serve() -> None:
    """Answer the paths that are received, until none is received for `IDLE` seconds."""
    while select.select([sys.stdin], [], [], IDLE)[0]:
        request = sys.stdin.readline()
        if not request:
            return
        sys.stdout.write(json.dumps(_read_in_child(Path(json.loads(request)))) + "\n")
        sys.stdout.flush()


def _read_in_child(path: Path) -> str:
    """Read a file in a child process and return the problem, empty if there is none."""
    with suppress(OSError):
        seconds = SECONDS + path.stat().st_size // PER_SECOND
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                os.close(ours)
                _limit(seconds)
                foreign = _surround_with_foreign_values()
                os.write(theirs, _try_to_read(path).encode())
                del foreign
                os._exit(0)
            os._exit(1)
        os.close(theirs)
        late = not select.select([ours], [], [], seconds * _PATIENCE)[0]
        if late:
            os.kill(child, signal.SIGKILL)
        problem = os.read(ours, 4096).decode()
        os.close(ours)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if late or code in (-signal.SIGXCPU, -signal.SIGKILL):
            return f"HDF5 has not read it after {seconds} s: it is damaged or malicious"
        if code < 0:
            name = signal.Signals(-code).name
            return f"HDF5 crashes with {name} when reading it: it is damaged or malicious"
        if code > 0:  # there was not enough memory for a message
            return _say_too_large()
        return problem
    return ""


def _limit(seconds: int) -> None:
    """Limit the memory and the CPU time of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    for kind, value in (
        (resource.RLIMIT_AS, most),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (limit, limit))


def _surround_with_foreign_values() -> list[bytes]:
    """Fill the memory around the next allocations of HDF5, and return the blocks to keep.

    HDF5 reads beyond its arrays in some damaged files. In a new process it would find zeros there
    without an effect; in the program it finds arbitrary values and may crash. Blocks of several
    sizes fill the gaps that imports have left, so that HDF5 allocates among freed blocks.
    """
    kept = [b"Z" * (1000 << power) for power in range(6) for _ in range(500)]
    freed = [b"Z" * 100_000 for _ in range(40)]
    del freed
    return kept


class _HarmError(Exception):
    """A problem with a file that the program's reader would not report."""


@contextmanager
def _reading(harm: str = "") -> Iterator[None]:
    """Pass over errors that the program's reader reports too, and raise `_HarmError` for others.

    harm: the problem if HDF5 cannot read something that the program may read later.
    """
    try:
        yield
    except _HarmError:
        raise
    except InputError:
        pass
    except Exception as error:
        text = "".join(traceback.format_exception_only(error)).lower()
        if isinstance(error, MemoryError) or "alloc" in text or "memory" in text:
            raise _HarmError(_say_too_large()) from error
        if harm and isinstance(error, OSError | RuntimeError | ValueError):
            raise _HarmError(f"{harm} ({error})") from error


def _say_too_large() -> str:
    return f"reading its metadata takes more than {say_bytes(MEMORY)} of memory"


def _try_to_read(path: Path) -> str:
    """Return a problem with a file that the program's reader would not report, otherwise empty."""
    from hpcfwi.storage.hdf5 import open_here

    try:
        with _reading(), open_here(path) as file:
            _read_all(file, path)
    except _HarmError as harm:
        return str(harm)
    return ""


def _read_all(file: h5py.File, path: Path) -> None:
    """Read all objects of a file."""
    import h5py

    seen: set[int] = set()
    groups: list[h5py.Group] = [file]
    while groups:
        group = groups.pop()
        _read_attributes(group)
        for name in group:
            # Targets of other links are read under their own names, or are in another file.
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                continue
            with _reading():
                found = group[name]
                with _reading(f"HDF5 cannot locate {found.name}"):
                    place = h5py.h5o.get_info(found.id).addr
                if place in seen:
                    continue
                seen.add(place)
                if isinstance(found, h5py.Group):
                    groups.append(found)
                elif isinstance(found, h5py.Dataset):
                    _read_attributes(found)
                    _read_dataset(found, path)
            if len(seen) > _MOST_OBJECTS:
                raise _HarmError(f"it has more than {_MOST_OBJECTS} groups and arrays")


def _read_attributes(found: h5py.Group | h5py.Dataset) -> None:
    for name in found.attrs:
        with _reading():
            found.attrs[name]


def _read_dataset(dataset: h5py.Dataset, path: Path) -> None:
    from hpcfwi.storage.hdf5 import check_storage

    check_storage(dataset, path)
    if not dataset.size or not dataset.id.get_storage_size():
        return
    with _reading(f"HDF5 cannot read {dataset.name}"):
        # This visits the whole index of the chunks without reading values.
        if dataset.chunks is not None:
            dataset.id.get_num_chunks()
        if dataset.nbytes <= _WHOLE:
            dataset[...]
        else:
            _read_values(dataset)


def _read_values(dataset: h5py.Dataset) -> None:
    """Read one value of each chunk, or of evenly spaced chunks if there are many.

    For compressed arrays it also reads one value of each chunk that may take much memory.
    """
    import h5py
    import numpy as np

    chunk = dataset.chunks or dataset.shape
    several = [-(-length // part) for length, part in zip(dataset.shape, chunk, strict=True)]
    total = math.prod(several)
    count = min(total, _MOST_VALUES)
    if dataset.id.get_create_plist().get_nfilters():
        count = min(count, 1 + _WHOLE // (math.prod(chunk) * dataset.dtype.itemsize))
    numbers = np.linspace(0, total - 1, count).astype(np.int64)
    corners = np.stack(np.unravel_index(numbers, several), axis=1) * np.array(chunk)
    corners = np.unique([*corners.tolist(), *_find_swelling(dataset)], axis=0)
    places = dataset.id.get_space()
    places.select_elements(corners.astype(np.uint64))
    values = np.empty(len(corners), dtype=dataset.dtype)
    dataset.id.read(h5py.h5s.create_simple(values.shape), places, values)


def _find_swelling(dataset: h5py.Dataset) -> list[tuple[int, ...]]:
    """Return the first indices of the chunks that may take half of `MEMORY` after decompression.

    HDF5 decompresses a chunk to its end, even beyond the size that it should have. Versions before
    1.14 take too long to report the sizes of more than `_MOST_CHUNKS` chunks; the list is then
    empty.
    """
    from hpcfwi.storage.hdf5 import largest_ratio

    ratio, found = largest_ratio(dataset), dataset.id
    if ratio == 1:
        return []
    chunks: list[Any] = []
    if hasattr(found, "chunk_iter"):
        found.chunk_iter(chunks.append)
    elif found.get_num_chunks() <= _MOST_CHUNKS:
        chunks = [found.get_chunk_info(i) for i in range(found.get_num_chunks())]
    return [chunk.chunk_offset for chunk in chunks if chunk.size * ratio > MEMORY // 2]


def _main() -> None:
    with suppress(ImportError):
        import mpi4py

        rc: Any = mpi4py.rc
        rc.initialize = False
    import hpcfwi.storage.hdf5  # noqa: F401

    _serve()


if __name__ == "__main__":
    _main()
