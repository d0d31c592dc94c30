"""The system that a process runs on: files and directories, its host, and private directories.

Files are made in directories where others may write too. They are whole or not there, and never
written through a link: a name that is known beforehand may have been taken by somebody, so that a
new file has a random name until it is whole, and a file with a fixed name is checked before a byte
is written. The contents are up to `storage` and `report`.

The host part says how many files, and how much memory, this process may have. `wave.history` says
what simulations may take of it.

A private directory is one in which nobody else can have put anything. Compiled code is kept there:
Numba unpickles what it finds in its cache, and Triton loads it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import pwd
import resource
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

from hpcfwi.errors import InputError, WriteFailure, refusing, say_bytes

_TOKEN = 16  # hexadecimal digits
_NEW = os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to fill; put it in place at the end, remove it if anything fails.

    A power cut leaves the old file or the new one, and of several that write it at once the last
    one's stays. A link of that name is replaced, not followed.
    Raises `WriteFailure` where the system lets it not be written; the old file is whole then.
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
    """Return the files that `written_whole` has left behind when it was killed."""
    return directory.glob(f".{pattern}.{'[0-9a-f]' * _TOKEN}.part")


def beside(path: Path) -> Path:
    """Return the name of a file until it is whole, under which a later job finds it."""
    return path.with_name(path.name + ".part")


def put_in_place(part: Path, path: Path) -> None:
    """Rename a complete `part` to `path` so that a power cut leaves the old file or the new one."""
    flush_to_disk(part)
    part.replace(path)
    flush_to_disk(path.parent)


def open_own(path: str | Path, flags: int) -> int:
    """An opener, as `open` takes one, for a file that stays, and that is written where it is.

    Raises `InputError` as `check_own` does, for what is open. Not for the mode "w", which empties a
    file before it can be looked at.
    """
    path = Path(path)
    try:
        # A pipe would otherwise wait for somebody who reads it
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
    """An opener, as `open` takes one, for a file that is read, wherever links lead to it.

    Raises `InputError` for what is no file, such as a pipe, which would be waited for for ever.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(str(path), "this is a directory, a pipe or a device", "Remove it.")
    return descriptor


def check_own(path: Path) -> None:
    """Raise `InputError` unless there is nothing, or a regular file without other names.

    A link, also a hard one, may have been made by somebody else, to have another file written.
    """
    with suppress(OSError):
        _check_own(path, path.lstat())


def check_link(path: Path) -> None:
    """Raise `InputError` for a symbolic link that somebody else has made, unless that is root."""
    with suppress(OSError):
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode) and found.st_uid not in (os.geteuid(), 0):
            raise InputError(
                str(path),
                f"this is a symbolic link of {user_name(found.st_uid)}, and is not followed",
                "Remove it if you do not know what it is for; a link of your own is followed.",
            )


def make_directory(directory: Path) -> None:
    """Make a directory and its parents; `InputError` where that cannot be."""
    remedy = "Name a directory in which you may write."
    with refusing(str(directory), "the directory cannot be made", remedy):
        directory.mkdir(parents=True, exist_ok=True)


def flush_to_disk(path: Path) -> None:
    """Have a file's content, or a directory's names, on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def user_name(uid: int) -> str:
    """Return the name of a user for messages."""
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
        kind = f"a file of {found.st_nlink} names"
    else:
        kind = "a pipe or device"
    raise InputError(
        str(path),
        f"this is {kind}, of {user_name(found.st_uid)}, expected a file that has no other name",
        "Remove it, and it is made anew.",
    )


# What says that a file system cannot reserve room
_NO_RESERVATIONS = (errno.EOPNOTSUPP, errno.ENOSYS)


def exists(path: Path) -> bool:
    """Return True if a path exists for this process; never raises, as Path.exists may."""
    return os.path.exists(path)  # noqa: PTH110


def is_there(path: Path) -> bool:
    """Return True if there is anything of this name, even a link that leads nowhere.

    Raises `InputError` if the system does not tell: the file must not be made again then.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise InputError(
            str(path),
            f"the system does not say whether it is there ({error.strerror})",
            "See to its permissions or its file system, and give the same command again.",
        ) from error
    return True


def is_link(path: Path) -> bool:
    """Return True if it is a symbolic link; never raises."""
    return os.path.islink(path)  # noqa: PTH114


def check_regular(path: Path) -> None:
    """Raise `InputError` for a directory, pipe or device, of which some are never read to an end.

    Raises OSError where there is nothing, or nothing that this process may see.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = "directory" if stat.S_ISDIR(mode) else "pipe or device"
        raise InputError(str(path), f"this is a {kind}, expected a file", "Name a file.")


def check_disk(path: Path, n_bytes: int) -> None:
    """Raise `WriteFailure` where the file system has less free than a file is to take.

    Quotas are not known here, and some file systems do not tell their size.
    """
    system = os.statvfs(path.parent)
    free = system.f_bavail * system.f_frsize
    if system.f_blocks and n_bytes > free:
        raise WriteFailure(
            str(path),
            os.strerror(errno.ENOSPC),
            f"It takes {say_bytes(n_bytes)}, and there are {say_bytes(free)}: free space on that "
            "file system, and give the same command again.",
        )


def reserve(descriptor: int, n_bytes: int) -> bool:
    """Have the room for so many bytes of an open file kept; False where that cannot be had.

    Raises OSError where there is not so much. Not os.posix_fallocate: where the file system does
    not know of reservations, that writes a byte into every block.
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
    """Raise `InputError` where so many bytes are more than the memory that is free.

    what: takes them; needed: may be infinite. An allocation that fails by itself comes too late
    and without a name, and one that does not fail may bring the host down.
    """
    free = free_on_host()
    if needed > free:
        raise InputError(
            where,
            f"{what} would take {say_bytes(needed)}, and this host has {say_bytes(free)} of memory "
            "free",
            remedy,
        )


def free_on_host(root: Path = Path("/")) -> int:
    """Bytes that a process can take without swapping, within the limits of its control groups.

    root: where `proc` and `sys` are.
    """
    return max(0, _find_tightest(root)[0])


def say_free(root: Path = Path("/")) -> str:
    """Say how much memory is free, of which limit, and whose limit that is, for a message.

    root: where `proc` and `sys` are.
    """
    free, limit, whose = _find_tightest(root)
    return f"{say_bytes(max(0, free))} are free of the {say_bytes(limit)} of {whose}"


def _find_tightest(root: Path) -> tuple[int, int, str]:
    """Return the bytes left under the tightest limit, that limit, and whose it is."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    found = {name: 1024 * int(value.split()[0]) for name, value in (x.split(":") for x in lines)}
    host = found["MemAvailable"], found["MemTotal"], "this host"
    return min([host, *_free_in_groups(root)])


def _free_in_groups(root: Path) -> Iterator[tuple[int, int, str]]:
    """Yield for each control group of this process the bytes left, its limit, and its name.

    Groups are of version 1 or 2; those without a limit are left out.
    Slurm puts limits on the groups of jobs and steps, above that of the process. In a container
    the paths may be those of the host, of which only the last, the root, is to be found inside.
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
    """Return the bytes that a group has left, and its limit; None where it has none or is none.

    The cache of files counts as free, because the kernel gives it up first.
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
    """The resident size of this process (Linux; elsewhere its largest so far)."""
    return _status_bytes("VmRSS")


def peak_resident_bytes() -> int:
    """The largest resident size of this process so far.

    Not `ru_maxrss` where Linux knows better: that is at first the size of the process that started
    this one.
    """
    return _status_bytes("VmHWM")


def _status_bytes(name: str) -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = status.read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
OTHERS_MAY_ENTER = stat.S_IXGRP | stat.S_IXOTH


# Files that libraries read from the current directory, wherever they are told to look as well
SETTINGS = {"matplotlibrc": "Matplotlib", ".numba_config.yaml": "Numba"}


class Place(NamedTuple):
    """The directory of compiled code; if there is none, path is None, and problem says why."""

    path: Path | None
    problem: str = ""


@cache
def find_place(variable: str, name: str) -> Place:
    """Return the directory of compiled code of this process, made with mode 700 if missing.

    It lies in the directory that the environment variable names, or as `name` in the user's cache.
    Raises `InputError` if others may write in the one that is named, or replace it.
    """
    named = os.environ.get(variable)
    given = Path(named).absolute() if named else _find_cache()
    place = given / ("hpcfwi" if named else name)
    if not place.is_absolute():  # it begins with a "~" that stands for nothing
        return Place(None, "this user has no home directory")
    try:
        exposed = why_exposed(place)
        if exposed is None:
            make_private(place)
            # Others may have been faster in making what was missing
            exposed = why_exposed(place, is_made=True)
        if exposed is None:
            tempfile.TemporaryFile(dir=place).close()
            return Place(place)
    except OSError as error:
        return Place(None, f"{place} cannot be written ({error.strerror})")
    if named:
        raise InputError(
            f"{variable}: {named}",
            f"no place for code that will be executed, as {exposed}",
            f"Give it to its user alone (chmod 700), name another directory, or unset {variable}.",
        )
    return Place(None, exposed)


def _find_cache() -> Path:
    """The user's own; imported here, as waves run on bare machines, too, where a place is named."""
    import platformdirs

    return platformdirs.user_cache_path("hpcfwi")


def refuse_settings_of_others() -> None:
    """Raise `InputError` if a library would read settings that somebody else may have written.

    Some libraries read settings from the current directory. Settings say, among others, where
    compiled code is kept, which is executed.
    """
    for name, library in SETTINGS.items():
        with suppress(OSError):
            path = Path.cwd() / name
            exposed = why_exposed(path, may_read=True) if os.path.lexists(path) else None
            if exposed is not None:
                raise InputError(
                    str(path),
                    f"{library} would take settings from this file, and {exposed}",
                    "Give the command in another directory.",
                )


def make_private(directory: Path) -> None:
    """Make a directory, and the parents that it lacks, for this user alone; raises OSError."""
    for folder in (*reversed(directory.parents), directory):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)


def why_exposed(directory: Path, is_made: bool = False, may_read: bool = False) -> str | None:
    """Return how somebody else could put a file there or replace it, None if there is no way.

    It must be closed to all others, and of this user; on the way there, only root and this user
    may be able to replace anything. What is yet to be made is as it will be made; is_made: nothing
    is, and what is missing has been taken away; may_read: others may read it, and root may own it,
    be it a directory or a file. Raises OSError.
    """
    closed = False
    for step in (*reversed(directory.parents), directory):
        try:
            found = step.lstat()
        except FileNotFoundError:
            return f"somebody has taken {step} away" if is_made else None
        if stat.S_ISLNK(found.st_mode):
            if found.st_uid not in _trusted():
                return f"{step} is a link of {user_name(found.st_uid)}"
            step.stat()  # which raises where it leads nowhere, or in a circle
            target = step.parent / step.readlink() / directory.relative_to(step)
            return why_exposed(target, is_made, may_read)
        if found.st_uid not in _trusted():
            return f"{step} belongs to {user_name(found.st_uid)}"
        mode = stat.S_IMODE(found.st_mode)
        # On the way others can replace what is not theirs, unless the directory is like /tmp
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
    """Return the users who are trusted: this one, root, and in a container the owner of /."""
    return {os.geteuid(), 0, Path("/").stat().st_uid}
