"""What this host can give, a file or room in memory, and what this process has of it.

What simulations may take of its memory, or of a GPU's, is in `wave.history`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from hpcfwi.errors import InputError, WriteFailure, say_bytes

# What says that a file system cannot reserve room
_NO_RESERVATIONS = (errno.EOPNOTSUPP, errno.ENOSYS)


def exists(path: Path) -> bool:
    """Whether there is something that this process may see; never raises, as Path.exists may."""
    return os.path.exists(path)  # noqa: PTH110


def is_there(path: Path) -> bool:
    """Whether there is something of this name, be it a link that leads nowhere.

    Raises `InputError` where the system does not tell: what is there must not be made anew then.
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
    """Whether it is a symbolic link, wherever that leads; never raises."""
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

    What a quota leaves is not known here, and some file systems do not tell their size.
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
