"""Tests of batches of more than 2^31 cells, whose offsets need 64 bits.

The arrays are sparse files: parts that no kernel accesses need neither memory nor disk space.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from hpcfwi.wave import Boundary
from hpcfwi.wave.engines.gpu import kernels, sweep
from hpcfwi.wave.engines.gpu.kernels import BACKWARDS, FORWARDS
from hpcfwi.wave.engines.gpu.layout import KEPT, Blueprint, Layout, layout_of, spread_out
from hpcfwi.wave.engines.gpu.sweep import Sweep
from tests.wave.engines.gpu.test_engine import tiny_shots

pytestmark = [
    pytest.mark.usefixtures("quick_interpreter"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the memory of a GPU cannot be sparse"),
]
# Cells from one shot's field to the next, and shots: the last shot begins beyond 32 bits
STRIDE, SHOTS = 2**30, 3


Make = Callable[..., Tensor]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A function that creates the arrays of sweeps, as sparse files if they are large."""
    from triton.runtime import interpreter

    def with_holes(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        if prod(shape) < STRIDE:
            return torch.zeros(shape, dtype=dtype, device=device)
        file = tmp_path / str(len(list(tmp_path.iterdir())))
        return torch.from_file(str(file), shared=True, size=prod(shape), dtype=dtype).reshape(shape)

    monkeypatch.setattr(sweep, "torch", SimpleNamespace(**{**vars(torch), "zeros": with_holes}))
    monkeypatch.setattr(Layout, "size", STRIDE)
    # Kernels work on arrays of the CPU directly, which need not be copied back
    monkeypatch.setattr(interpreter.GridExecutor, "_restore_args_dev", lambda *_: None)
    return with_holes


def make_sweep(shots: int) -> Sweep:
    """Return a sweep whose last shot has random numbers, equal for any number of shots."""
    problem = tiny_shots(samples=4, free_surface=True).simulate(engine="eager", keep=False)._problem
    kept = Boundary(1, format="int8")
    problem = replace(problem, history=kept, model={"vp": problem.like.float()})
    layout, random = layout_of(problem), torch.Generator().manual_seed(0)
    both = problem.source_taps, problem.receiver_taps
    points = [spread_out(taps, layout, 1.0) for taps in both]
    found = Sweep(
        Blueprint(
            layout, torch.device("cpu"), torch.float32, True, shots, 4, points[0].sizes,
            points[1].sizes, kept, True, False,
        ),
        problem,
    )  # fmt: skip
    cells = prod(layout.field_shape)
    found.arrays["v2dt2"][:cells] = torch.rand(cells, generator=random)
    fields = [field for name in ("fields", "memory", "image") for field in found.arrays[name]]
    for array in (*fields, found.arrays["wavelet"], found.arrays["traces"]):
        part = array[-1, :cells]
        part.copy_(torch.rand(part.shape, generator=random))
    for name, matrix in zip(("sources", "receivers"), points, strict=True):
        for table in ("cells", "weights", "occupied", "points", "spreading"):
            found.arrays[f"{name}_{table}"][:] = torch.from_numpy(getattr(matrix, table))
    return found


def go_through(found: Sweep) -> list[Tensor]:
    """Run the kernels of a step in both directions of time, and return the last shot's arrays."""
    cur, new = found.arrays["fields"]
    psi, zeta, other = found.arrays["memory"]
    change, cells = found.arrays["image"][0], prod(found.blueprint.layout.field_shape)
    for mode in (FORWARDS, BACKWARDS):
        found.stepper.advance(0, mode, cur, new, psi, zeta, other, keep=True)
        found._launch_exchange(0, target=new, sources="sources", field=cur, receivers="receivers")
        found._launch_exchange(0, target=new, factor=change, sources="sources")
    found._launch_kept(kernels.store, found.edges, 0, field=new)
    found._launch_kept(
        kernels.restore, found.edges, 0, field=cur, origin=found.blueprint.layout.origin,
        stride_z=found.blueprint.layout.strides[0], RADIUS=1, FREE_SURFACE=True,
    )  # fmt: skip
    found._launch_kept(kernels.store, found.samples, 0, field=found.arrays["u"])
    found._launch_kept(kernels.correlate, found.samples, 0, total=change, field=cur)
    kept = [found.arrays[name] for name in ("u", "fields", "memory", "image")]
    return [array[..., -1, :cells].clone() for array in kept] + [found.arrays["traces"][-1]]


@pytest.mark.usefixtures("make")
def test_last_shot_of_a_large_batch_has_the_bits_of_a_single_shot() -> None:
    alone, last = (go_through(make_sweep(shots)) for shots in (1, SHOTS))
    assert all(array.any() for array in alone)
    assert all(map(torch.equal, last, alone))


def test_fields_of_the_last_shot_in_the_last_slot_are_stored_and_loaded(make: Make) -> None:
    cpu, slots, cells = torch.device("cpu"), 2, KEPT
    kept = make((slots, SHOTS, STRIDE), torch.float16, cpu)
    field, total = (make((SHOTS, STRIDE), torch.float32, cpu) for _ in range(2))
    field[-1, :cells] = values = torch.arange(-100.0, cells - 100.0)
    alike = {
        "kept": kept, "scales": torch.zeros(slots * SHOTS), "starts": None, "cells": None,
        "field": field, "clock": torch.ones((), dtype=torch.int64), "at": 0, "interval": 1,
        "slots": slots, "cells_kept": STRIDE, "size": STRIDE, "LISTED": False, "UNITS": 0,
    }  # fmt: skip
    kernels.store[(1, SHOTS)](**alike)
    assert torch.equal(kept[-1, -1, :cells], values.half())
    kernels.correlate[(1, SHOTS)](total=total, **alike)
    assert torch.equal(total[-1, :cells], values.square())
