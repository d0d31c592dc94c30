"""A simulation that receives a signal: `python -m tests.run.observing CONFIG HOW RANK SHOTS`.

Each rank prints the number of shots that it simulates: "simulated 2". HOW is the name of a signal
that rank RANK sends to itself while it writes the shot after SHOTS others, or "none". With a fifth
word, HDF5 is not parallel.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np

from hpcfwi.operators.simulator import Simulator
from hpcfwi.parallel.failure import run_guarded
from hpcfwi.parallel.launch import launch
from hpcfwi.run.job import run_job
from hpcfwi.storage import unfinished
from hpcfwi.wave import Simulation
from tests.undrawn import draw_nothing

simulate, digest_of = Simulator.simulate, unfinished.digest_of
written = 0


def print_and_simulate(simulator: Simulator, model: Any, survey: Any, **options: Any) -> Simulation:
    print(f"simulated {survey.n_shots}", flush=True)
    return simulate(simulator, model, survey, **options)


def digest_and_signal(how: str, shots: int, gather: Any) -> np.uint64:
    global written
    if written == shots:
        os.kill(os.getpid(), getattr(signal, how))  # its traces are written, but no digest
    written += 1
    return digest_of(gather)


def main(config: str, how: str, rank: str, shots: str, *serial: str) -> int:
    context = launch()
    context.threads = 1
    if serial:
        h5py.get_config = partial(SimpleNamespace, mpi=False)
    Simulator.simulate = print_and_simulate
    if how != "none" and context.rank == int(rank):
        unfinished.digest_of = partial(digest_and_signal, how, int(shots))

    def forward() -> int:
        run_job(Path(config), (), context, inverts=False)
        return 0

    return run_guarded(context, forward)


if __name__ == "__main__":
    draw_nothing()
    sys.exit(main(*sys.argv[1:]))
