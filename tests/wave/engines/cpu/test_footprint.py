"""Tests of the estimated memory of the cpu engine."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hpcfwi.bench import make_shots
from hpcfwi.wave import Snapshots
from hpcfwi.wave.engines.cpu.engine import footprint
from hpcfwi.wave.engines.cpu.windows import STEPS_PER_WINDOW
from hpcfwi.wave.history import sampled_steps

HISTORIES = (
    "Snapshots(10)",
    "Snapshots(10, format='float16')",
    "Boundary(10)",
    "Recompute(10, states=8)",
)
# Prints the estimated memory and that of this process, in bytes. It has one thread, since the heaps
# of several threads keep more than is in use.
MEASURE = """
import sys
from dataclasses import replace
import torch
from hpcfwi.bench import measure_growth_of_memory
from hpcfwi.bench import make_shots
from hpcfwi.wave import Boundary, Recompute, Snapshots
from hpcfwi.wave.engines.cpu import engine
torch.set_num_threads(1)
history = eval(sys.argv[1])
options = {"engine": "cpu", "history": history}
make_shots((40, 60), 2, 12).run(True, **options)
shots = make_shots((351, 1151), 3, 800)
problem = shots.simulate(keep=False, **options)._problem
estimate = engine.footprint(replace(problem, history=history), 800)
print(estimate, measure_growth_of_memory(lambda: shots.run(True, **options)))
"""


@pytest.mark.parametrize("history", HISTORIES)
def test_memory_of_a_batch_agrees_with_the_estimate(history: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, history],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    estimate, taken = map(int, done.stdout.split())
    assert estimate == pytest.approx(taken, rel=0.25)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_estimated_windows_agree_with_the_cells_of_the_wave(dtype: torch.dtype) -> None:
    shots = make_shots((300, 1200), 1, 600)
    shots = replace(shots, vp=shots.vp.to(dtype), wavelet=shots.wavelet.to(dtype))
    kept = Snapshots(10, format="int8")
    simulation = shots.simulate(keep=True, engine="cpu", history=kept)
    problem, (keeper,) = simulation._problem, simulation._state.histories
    windows = keeper.windows[np.array(sampled_steps(599, 10)) // STEPS_PER_WINDOW]
    cells = np.diff(windows)[:, ::2].prod(axis=1).sum()
    fewer = replace(problem, history=replace(kept, interval=599))
    rest = footprint(fewer, 599)
    assert footprint(problem, 599) - rest == pytest.approx(cells, rel=0.25)
