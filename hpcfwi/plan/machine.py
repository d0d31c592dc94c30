"""What the ranks of a launch have: processors, memory, and how long they took to get here."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.memory import find_shares, weigh_given
from hpcfwi.operators.batching import Share
from hpcfwi.parallel.context import Context
from hpcfwi.system import resident_bytes


@dataclass(frozen=True)
class Machine:
    """The ranks of a launch; hosts, threads and shares in their order.

    program: bytes that a rank has before any data; ready: seconds from the start to the experiment;
    compiling: to prepare the engine.
    """

    hosts: tuple[str, ...]
    threads: tuple[int, ...]
    shares: tuple[Share, ...]
    device: torch.device
    program: int
    ready: float
    compiling: float

    @property
    def memory(self) -> int:
        """Bytes that the simulations of each rank may take; at least one, as for a limit."""
        return max(1, min(share.memory for share in self.shares))


def describe_machine(
    experiment: Experiment, context: Context, ready: float, compiling: float = 0.0
) -> Machine:
    """What the ranks have now; collective. The times are those of a `Machine`."""
    shares, _ = find_shares(experiment, experiment.simulated(), context, has_state=False)
    return Machine(
        tuple(context.all_gather(context.host)),
        tuple(context.all_gather(context.threads)),
        tuple(shares),
        context.device,
        max(context.all_gather(resident_bytes() - sum(weigh_given(experiment)))),
        ready,
        compiling,
    )


def seconds_since_start() -> float:
    """Since this process began (Linux; elsewhere since its first use of the processor)."""
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return time.process_time()
    # The second field, a name in parentheses, may itself hold spaces: count after it.
    began = int(stat.read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began
