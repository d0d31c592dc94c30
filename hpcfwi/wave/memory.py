"""How much memory this process may still take on a device."""

from __future__ import annotations

from pathlib import Path

import torch

# Of what is free, this share is left to everything else: other arrays of the program, and other
# programs that may want more meanwhile.
MARGIN = 0.2


def memory_at_hand(device: torch.device) -> int:
    """Bytes on `device` that may be taken now, less a margin of 20 %."""
    return int((1.0 - MARGIN) * _free(device))


def _free(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    lines = Path("/proc/meminfo").read_text().splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable"))
    return 1024 * int(kilobytes)
