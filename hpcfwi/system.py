"""The system that a process runs on: files and directories, its host, and private directories.

Files are made in directories where other users may also write. They appear only when they are
complete, and nothing is written through a link, because another user may have made a link with a
name that can be guessed. A new file therefore has a random name until it is complete, and an
existing file with a fixed name is checked before it is changed.

The functions about the host find the memory that this process may use.

A private directory is one into which no other user can write. Compiled code is stored there,
because Numba unpickles, and Triton loads, the contents of their caches.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import logging
import os
import pwd
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, TypeVar

from hpcfwi.errors import InputError, WriteFailure, refusing, say_bytes

log = logging.getLogger("hpcfwi")

T = TypeVar("T")

_TOKEN = 16  # hexadecimal digits
_NEW = os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


# Errors of disks and file servers that may be over when a file is read again
MOMENTARY = (errno.EIO, errno.ETIMEDOUT, errno.EREMOTEIO, errno.ESTALE)
# Pauses between attempts to read a file that the system cannot read, s; half a minute in total.
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)


class UnreadableError(Exception):
    """A file that the system cannot read at present; `path`, and the system's `reason`."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} cannot be read ({reason})")
        self.path, self.reason = path, reason


@contextmanager
def reading(path: Path, numbers: Container[int | None] | None = None) -> Iterator[None]:
    """Turn an OSError while a file is read into an `UnreadableError`.

    numbers: the errors for which this is done, all of them by default.
    """
    try:
        yield
    except OSError as error:
        if numbers is not None and error.errno not in numbers:
            raise
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise UnreadableError(path, reason) from error


def read_patiently(read: Callable[[], T]) -> T:
    """Return the result of `read`, which is tried again while it raises `UnreadableError`.

    Raises `InputError` if it still does so after half a minute.
    """
    for pause in PAUSES:
        try:
            return read()
        except UnreadableError as error:
            if pause == PAUSES[0]:
                log.warning("%s: trying again for %.0f s.", error, sum(PAUSES))
        time.sleep(pause)
    try:
        return read()
    except UnreadableError as error:
        raise InputError(
            str(error.path),
            f"it cannot be read ({error.reason})",
            "Check its permissions and its file system, and run the same command again.",
        ) from error


def digest_file(path: Path) -> str:
    """Return the SHA-256 of the contents of a file; raises the `InputError` of `read_patiently`."""

    def digest() -> str:
        with reading(path), path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    return read_patiently(digest)


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file, which is renamed to `path` at the end, or removed after an error.

    After a power cut, either the old file or the new one is there. If several processes write the
    file, that of the last one stays. A link of this name is replaced, not followed. Raises
    `WriteFailure` if the file cannot be written; the old file is then unchanged, unless only its
    directory could not be flushed.
    """
    make_directory(path.parent)
    part = path.with_name(f".{path.name}.{secrets.token_hex(_TOKEN // 2)}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | _NEW, 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(descriptor)
            part.replace(path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
        flush_to_disk(path.parent)
    except OSError as error:
        raise WriteFailure.of(path, error) from error


def unfinished(directory: Path, pattern: str) -> Iterator[Path]:
    """Return the temporary files that `written_whole` left behind when it was killed."""
    return directory.glob(f".{pattern}.{'[0-9a-f]' * _TOKEN}.part")


def beside(path: Path) -> Path:
    """Return the temporary name of a file, by which a later job can find the incomplete file."""
    return path.with_name(path.name + ".part")


def put_in_place(part: Path, path: Path) -> None:
    """Rename a complete file `part` to `path`; a power cut leaves either the old or the new one."""
    flush_to_disk(part)
    part.replace(path)
    flush_to_disk(path.parent)


def open_own(path: str | Path, flags: int) -> int:
    """Open an existing file that is changed in place; an opener for `open`.

    Raises `InputError` as `check_own` does, for the open file. Do not use the mode "w", which
    empties a file before it is checked.
    """
    path = Path(path)
    try:
        # With O_NONBLOCK, opening a pipe does not wait for a reader
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError:
        check_own(path)
        raise
    try:
        _check_own(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_regular(path: str | Path, flags: int) -> int:
    """Open a file for reading, also through links; an opener for `open`.

    Raises `InputError` if it is not a regular file; reading a pipe, for example, may block for
    ever.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(str(path), "this is a directory, a pipe or a device", "Remove it.")
    return descriptor


def check_own(path: Path) -> None:
    """Raise `InputError` if there is anything but a regular file without other names.

    Another user may have made a symbolic or hard link, so that another file would be written.
    """
    with suppress(OSError):
        _check_own(path, path.lstat())


def check_link(path: Path) -> None:
    """Raise `InputError` for a symbolic link that belongs to neither this user nor root."""
    with suppress(OSError):
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode) and found.st_uid not in (os.geteuid(), 0):
            raise InputError(
                str(path),
                f"this is a symbolic link of {user_name(found.st_uid)}, which is not followed",
                "Remove it if you do not know its purpose; your own links are followed.",
            )


def make_directory(directory: Path) -> None:
    """Make a directory and its parents; raises `InputError`."""
    remedy = "Name a directory to which you may write."
    with refusing(str(directory), "the directory cannot be created", remedy):
        directory.mkdir(parents=True, exist_ok=True)


def flush_to_disk(path: Path) -> None:
    """Flush the content of a file, or the names of a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def user_name(uid: int) -> str:
    """Return the name and number of a user for messages."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _check_own(path: Path, found: os.stat_result) -> None:
    mode = found.st_mode
    if stat.S_ISREG(mode) and found.st_nlink == 1:
        return
    if stat.S_ISLNK(mode):
        kind = "a symbolic link"
    elif stat.S_ISDIR(mode):
        kind = "a directory"
    elif stat.S_ISREG(mode):
        kind = f"a file with {found.st_nlink} names"
    else:
        kind = "a pipe or device"
    raise InputError(
        str(path),
        f"this is {kind} owned by {user_name(found.st_uid)}, expected a file without other names",
        "Remove it; it is then created again.",
    )


# Errors of file systems that cannot reserve space.
_NO_RESERVATIONS = (errno.EOPNOTSUPP, errno.ENOSYS)


def exists(path: Path) -> bool:
    """Return True if a path exists for this process; never raises, as Path.exists may."""
    return os.path.exists(path)  # noqa: PTH110


def is_there(path: Path) -> bool:
    """Return True if there is anything of this name, even a broken link.

    Raises `InputError` if the system cannot tell, also after half a minute if the error may be
    momentary, because the file must not be created again then.
    """

    def look() -> bool:
        try:
            with reading(path, MOMENTARY):
                path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise InputError(
                str(path),
                f"the system cannot tell if it exists ({error.strerror})",
                "Check its permissions and its file system, and run the same command again.",
            ) from error
        return True

    return read_patiently(look)


def is_link(path: Path) -> bool:
    """Return True if it is a symbolic link; never raises."""
    return os.path.islink(path)  # noqa: PTH114


def check_regular(path: Path) -> None:
    """Raise `InputError` for a directory, pipe or device; reading one may never end.

    Raises OSError if the path does not exist, or if this process may not see it.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = "directory" if stat.S_ISDIR(mode) else "pipe or device"
        raise InputError(str(path), f"this is a {kind}, expected a file", "Name a file.")


def check_disk(path: Path, n_bytes: int) -> None:
    """Raise `WriteFailure` if the file system has less free space than a file needs.

    This does not consider quotas, and does nothing if the file system does not report its size.
    """
    system = os.statvfs(path.parent)
    free = system.f_bavail * system.f_frsize
    if system.f_blocks and n_bytes > free:
        raise WriteFailure(
            str(path),
            os.strerror(errno.ENOSPC),
            f"The file needs {say_bytes(n_bytes)}, but only {say_bytes(free)} are free. Free space "
            "on that file system, and run the same command again.",
        )


def reserve(descriptor: int, n_bytes: int) -> bool:
    """Reserve space for an open file of `n_bytes`; return False if that is not supported.

    Raises OSError if there is not enough space. It does not use os.posix_fallocate, which writes a
    byte into every block on file systems without reservations.
    """
    library = ctypes.CDLL(None, use_errno=True)
    while library.fallocate(descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(n_bytes)) != 0:
        number = ctypes.get_errno()
        if number in _NO_RESERVATIONS:
            return False
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
    return True


def check_room(where: str, what: str, needed: float, remedy: str) -> None:
    """Raise `InputError` if an object needs more than the free memory of this host.

    where: the key or file in the message; what: the object; needed: bytes, may be infinite. The
    check is made beforehand, because the error of a failed allocation does not name the object,
    and an allocation that succeeds beyond the free memory may bring the host down.
    """
    free = free_on_host()
    if needed > free:
        raise InputError(
            where,
            f"{what} would need {say_bytes(needed)}, but this host has {say_bytes(free)} of free "
            "memory",
            remedy,
        )


def free_on_host(root: Path = Path("/")) -> int:
    """Return the bytes that this process can use without swapping, within its control groups.

    root: directory of `proc` and `sys`.
    """
    return max(0, _find_tightest(root)[0])


def say_free(root: Path = Path("/")) -> str:
    """Return a text for messages about the free memory, its limit, and what sets the limit.

    root: directory of `proc` and `sys`.
    """
    free, limit, whose = _find_tightest(root)
    return f"{say_bytes(max(0, free))} are free of the {say_bytes(limit)} of {whose}"


def _find_tightest(root: Path) -> tuple[int, int, str]:
    """Return the bytes left under the tightest limit, the limit, and the name of what sets it."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    found = {name: 1024 * int(value.split()[0]) for name, value in (x.split(":") for x in lines)}
    host = found["MemAvailable"], found["MemTotal"], "this host"
    return min([host, *_free_in_groups(root)])


def _free_in_groups(root: Path) -> Iterator[tuple[int, int, str]]:
    """Yield for each control group of this process the bytes left, its limit, and its name.

    Groups are of version 1 or 2; groups without a limit are left out. Parent groups are included,
    because Slurm sets limits on the groups of jobs and steps, above that of the process. In a
    container the paths may be those of the host, of which only the root exists inside.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder, names = "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            folder = "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        for group in (inside, *inside.parents):
            found = _free_in_group(root / folder / group, *names)
            if found is not None:
                yield *found, f"control group /{group}" if group.parts else "the control group"


def _free_in_group(group: Path, limit: str, usage: str, cache: str) -> tuple[int, int] | None:
    """Return the bytes that a group has left, and its limit; None if it has no limit or is absent.

    The cache of files counts as free, because the kernel releases it first.
    """
    try:
        most, used = (group / limit).read_text().strip(), int((group / usage).read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except OSError:
        return None
    if most == "max":
        return None
    return int(most) - used + int(statistics.get(cache, 0)), int(most)


def resident_bytes() -> int:
    """Return the resident size of this process in bytes."""
    return _status_bytes("VmRSS")


def peak_resident_bytes() -> int:
    """Return the largest resident size of this process so far.

    It is not taken from `ru_maxrss`, which starts with the size of the parent process.
    """
    return _status_bytes("VmHWM")


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
OTHERS_MAY_ENTER = stat.S_IXGRP | stat.S_IXOTH


# Files that these libraries always read from the current directory
SETTINGS = {"matplotlibrc": "Matplotlib", ".numba_config.yaml": "Numba"}


class Place(NamedTuple):
    """A directory of compiled code; if there is none, path is None and `problem` says why."""

    path: Path | None
    problem: str = ""


@cache
def find_place(variable: str, name: str) -> Place:
    """Return the directory of compiled code of this process, made with mode 700 if missing.

    It is in the directory that the environment variable `variable` names, or else it is the
    directory `name` in the user's cache. Raises `InputError` if others may write to the directory
    of the variable, or replace it.
    """
    named = os.environ.get(variable)
    if named:
        place = Path(named).absolute() / "hpcfwi"
    else:
        import platformdirs  # only here, because it may not be installed

        place = platformdirs.user_cache_path("hpcfwi") / name
    if not place.is_absolute():  # it begins with a "~" without a meaning
        return Place(None, "this user has no home directory")
    try:
        exposed = why_exposed(place)
        if exposed is None:
            make_private(place)
            # Other processes may have made it in the meantime
            exposed = why_exposed(place, is_made=True)
        if exposed is None:
            tempfile.TemporaryFile(dir=place).close()
            return Place(place)
    except OSError as error:
        return Place(None, f"{place} cannot be written ({error.strerror})")
    if named:
        raise InputError(
            f"{variable}: {named}",
            f"not safe for code that will be executed: {exposed}",
            f"Make it accessible to its owner only (chmod 700), name another directory, or unset "
            f"{variable}.",
        )
    return Place(None, exposed)


def refuse_settings_of_others() -> None:
    """Raise `InputError` if a library would read settings that another user may have written.

    Some libraries read settings from the current directory. A setting may be the directory of
    compiled code, which is executed.
    """
    for name, library in SETTINGS.items():
        with suppress(OSError):
            path = Path.cwd() / name
            exposed = why_exposed(path, may_read=True) if os.path.lexists(path) else None
            if exposed is not None:
                raise InputError(
                    str(path),
                    f"{library} would read its settings from this file, but {exposed}",
                    "Run the command in another directory.",
                )


def make_private(directory: Path) -> None:
    """Make a directory and its missing parents for this user alone; raises OSError."""
    for folder in (*reversed(directory.parents), directory):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)


def why_exposed(directory: Path, is_made: bool = False, may_read: bool = False) -> str | None:
    """Return how another user could write or replace a file there; None if that is impossible.

    The directory must belong to this user and be closed to others, and only root and this user may
    replace parts of the path to it. Missing parts of the path are safe, because `make_private` will
    make them. is_made: missing parts are a problem; may_read: others may read the directory or
    file, and root may own it. Raises OSError.
    """
    closed = False
    for step in (*reversed(directory.parents), directory):
        try:
            found = step.lstat()
        except FileNotFoundError:
            return f"{step} has been removed" if is_made else None
        if stat.S_ISLNK(found.st_mode):
            if found.st_uid not in _trusted():
                return f"{step} is a link of {user_name(found.st_uid)}"
            step.stat()  # which raises for a broken or circular link
            target = step.parent / step.readlink() / directory.relative_to(step)
            return why_exposed(target, is_made, may_read)
        if found.st_uid not in _trusted():
            return f"{step} belongs to {user_name(found.st_uid)}"
        mode = stat.S_IMODE(found.st_mode)
        # Others could replace parts of the path, unless the directory has a sticky bit as /tmp has
        is_sticky = mode & stat.S_ISVTX and step != directory
        if mode & OTHERS_MAY_WRITE and not is_sticky and not closed:
            return f"others may write in {step} (mode {mode:o})"
        closed = closed or not mode & OTHERS_MAY_ENTER
    if may_read:
        return None
    if found.st_uid != os.geteuid():
        return f"{directory} belongs to {user_name(found.st_uid)}"
    if mode & 0o077:
        return f"{directory} is open to others (mode {mode:o})"
    return None


def _trusted() -> set[int]:
    """Return the uids of trusted users: this user, root, and in a container the owner of /."""
    return {os.geteuid(), 0, Path("/").stat().st_uid}
