"""An epoch's work on 1, 2, ... ranks of one thread each.

Each is a job of its own, `mpirun -n N python -P -m hpcfwi.bench.ranks BATCH`, which simulates the
batch, adds the gradients over its ranks, and prints the seconds.
"""

from __future__ import annotations

import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hpcfwi.bench.waves import median_ratio
from hpcfwi.parallel.rendezvous import usable_cores

MPIRUN = "mpirun --bind-to none"
SHAPE, STEPS, EPOCHS = (200, 400), 600, 3
# What an MPI process sets for itself would confuse the ones that it starts.
OWN_VARIABLES = ("PMIX_", "PMI_", "OMPI_COMM_", "OMPI_UNIVERSE", "OMPI_APP_CTX", "PRTE_")


def find_launcher(env: Mapping[str, str]) -> list[str] | None:
    """The command that launches ranks: $MPIRUN, or mpirun; None where there is none."""
    command = shlex.split(env.get("MPIRUN", MPIRUN))
    return command if shutil.which(command[0]) else None


def compare_ranks(repetitions: int, most: int | None = None) -> list[dict[str, Any]]:
    """Seconds of an epoch on each number of ranks, and the efficiency against one.

    efficiency: time of one rank over (ranks times their time), the median over the turns. Empty
    where there is no launcher, or none that works.
    """
    launcher = find_launcher(os.environ)
    if launcher is None:
        return []
    most = most or len(usable_cores())
    sizes = [n for n in range(1, most + 1) if n in (1, most) or n & (n - 1) == 0]
    seconds: dict[int, list[float]] = {n: [] for n in sizes}
    for _ in range(repetitions):
        for n in sizes:
            taken = _run(launcher, n, batch=2 * most)
            if taken is None:
                return []
            seconds[n].append(taken)
    return [
        {
            "ranks": n,
            "shots": 2 * most,
            "seconds": statistics.median(seconds[n]),
            "efficiency": median_ratio(seconds[1], seconds[n]) / n,
        }
        for n in sizes
    ]


def _run(launcher: list[str], ranks: int, batch: int) -> float | None:
    """The seconds that a job prints; None where it does not run."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(OWN_VARIABLES)}
    done = subprocess.run(
        [*launcher, "-n", str(ranks), sys.executable, "-P", "-m", "hpcfwi.bench.ranks", str(batch)],
        env={**env, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def _measure(batch: int) -> int:
    """Run the epochs of one rank of a job; rank 0 prints the median."""
    import numpy as np
    import torch

    from hpcfwi.bench.waves import make_shots
    from hpcfwi.parallel.launch import launch

    context = launch(gpus=False)
    shots = make_shots(SHAPE, batch, STEPS)
    mine = np.array_split(np.arange(batch), context.size)[context.rank]
    seconds = []
    for _ in range(1 + EPOCHS):
        context.barrier()
        start = time.perf_counter()
        total = torch.zeros(SHAPE, dtype=torch.float64)
        for shot in mine:
            one = replace(shots, sources=shots.sources[shot : shot + 1])
            total += one.run(True, engine="cpu")
        context.sum(total)
        seconds.append(time.perf_counter() - start)
    slowest = max(context.all_gather(statistics.median(seconds[1:])))
    if context.is_root:
        print(slowest, flush=True)
    context.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(_measure(int(sys.argv[1])))
