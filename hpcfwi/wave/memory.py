"""How much memory this process may still take on a device, and whether that was too much."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import torch

# Of what is free, this share is left to everything else: other arrays of the program, and other
# programs that may want more meanwhile.
MARGIN = 0.2
# What torch's allocators say in a RuntimeError without a class of its own.
_COMPLAINTS = ("can't allocate memory", "out of memory")


def memory_at_hand(device: torch.device) -> int:
    """Bytes on `device` that may be taken now, less a margin of 20 %.

    On a CPU it is shared by all processes of the machine, or of the control group that limits
    this one.
    """
    free = _free_on_gpu(device) if device.type == "cuda" else free_on_host()
    return int((1.0 - MARGIN) * free)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error says that memory has run out, on a CPU or on a GPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _COMPLAINTS)


def free_on_host(root: Path = Path("/")) -> int:
    """Bytes that a process can take without swapping, within the limits of its control groups.

    root: where `proc` and `sys` are.
    """
    lines = (root / "proc/meminfo").read_text().splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable"))
    return max(0, min([1024 * int(kilobytes), *_free_in_groups(root)]))


def _free_on_gpu(device: torch.device) -> int:
    """What the device has free, and what torch holds of it for nothing."""
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + held


def _free_in_groups(root: Path) -> Iterator[int]:
    """What each control group that holds this process, of version 1 or 2, leaves of its limit.

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
            free = _free_in_group(root / folder / group, *names)
            if free is not None:
                yield free


def _free_in_group(group: Path, limit: str, usage: str, cache: str) -> int | None:
    """The limit less the usage, without the files' cache that the kernel gives up first.

    None where there is no limit, or no such group.
    """
    try:
        most, used = (group / limit).read_text().strip(), int((group / usage).read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except OSError:
        return None
    return None if most == "max" else int(most) - used + int(statistics.get(cache, 0))


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
