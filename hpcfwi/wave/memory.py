"""How much memory this process may still take on a device, and whether that was too much."""

from __future__ import annotations

import resource
from pathlib import Path

import torch

from hpcfwi.host import free_on_host

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


def _free_on_gpu(device: torch.device) -> int:
    """What the device has free, and what torch holds of it for nothing."""
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + held


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
