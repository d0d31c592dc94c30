"""How much memory this process may still take on a device, and whether that was too much."""

from __future__ import annotations

import torch

from hpcfwi.host import free_on_host

# Of what is free, this share is left to everything else: other arrays of the program, and other
# programs that may want more meanwhile.
MARGIN = 0.2
# What torch's allocators say in a RuntimeError without a class of its own.
_COMPLAINTS = ("can't allocate memory", "out of memory")


def memory_at_hand(device: torch.device) -> int:
    """Bytes on `device` that may be taken now, less a margin of 20 %."""
    return int((1.0 - MARGIN) * free_on(device))


def free_on(device: torch.device) -> int:
    """Bytes on `device` that are free now.

    On a CPU it is shared by all processes of the machine, or of the control group that limits
    this one.
    """
    return _free_on_gpu(device) if device.type == "cuda" else free_on_host()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error says that memory has run out, on a CPU or on a GPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _COMPLAINTS)


def _free_on_gpu(device: torch.device) -> int:
    """What the device has free, and what torch holds of it for nothing."""
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + held
