"""Tests that kernels read and write only the arrays that they are given.

Triton's interpreter calls two functions for all loads and stores; here they check the addresses
first. On a GPU, `compute-sanitizer --tool memcheck` checks the same.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hpcfwi.wave import Boundary, Recompute, Snapshots
from tests.wave.engines.gpu.test_engine import both_ways, on_device, tiny_shots, tiny_volume

pytestmark = [
    pytest.mark.usefixtures("quick_interpreter"),
    pytest.mark.skipif(
        torch.cuda.is_available(), reason="kernels are not interpreted on a machine with a GPU"
    ),
]


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list of accesses outside of the arguments of the running kernel, as text."""
    from triton.runtime import interpreter

    arrays: list[tuple[int, int]] = []
    found: list[str] = []

    def look(addresses: np.ndarray, mask: np.ndarray, size: int, what: str) -> None:
        used = addresses[np.broadcast_to(mask, addresses.shape)]
        if used.size:
            first, last = int(used.min()), int(used.max()) + size
            if not any(start <= first and last <= stop for start, stop in arrays):
                found.append(f"{what} {used.size} values at {first} to {last} of {arrays}")

    def load(addresses, mask, other, kind):
        look(addresses, mask, np.dtype(kind).itemsize, "reads")
        return inner.load(addresses, mask, other, kind)

    def store(addresses, values, mask):
        look(addresses, mask, values.dtype.itemsize, "writes")
        return inner.store(addresses, values, mask)

    def begin(executor, given, named):
        args, kwargs = prepare(executor, given, named)
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
        arrays[:] = [
            (each.data_ptr(), each.data_ptr() + each.numel() * each.element_size())
            for each in tensors
        ]
        return args, kwargs

    inner, prepare = interpreter._interpreter, interpreter.GridExecutor._init_args_hst
    watching = {name: getattr(inner, name) for name in dir(inner) if not name.startswith("_")}
    monkeypatch.setattr(
        interpreter, "_interpreter", SimpleNamespace(**{**watching, "load": load, "store": store})
    )
    monkeypatch.setattr(interpreter.GridExecutor, "_init_args_hst", begin)
    return found


HISTORIES = [
    Snapshots(1),
    Snapshots(2, format="int8"),
    Boundary(1),
    Boundary(1, format="int8"),
    Boundary(2, format="float16"),
    Boundary(1, format="bfloat16"),
    Recompute(1, states=2),
]


@pytest.mark.parametrize("history", HISTORIES, ids=repr)
def test_kernels_access_only_their_arguments_with_every_history(touched, history):
    both_ways(on_device(tiny_shots(shots=2, samples=5)), history=history)
    assert not touched, touched[0]


@pytest.mark.parametrize("order", [2, 8])
@pytest.mark.parametrize("free_surface", [False, True])
def test_kernels_access_only_their_arguments_with_any_order_and_surface(
    touched, order, free_surface
):
    shots = tiny_shots(order=order, free_surface=free_surface, samples=3)
    both_ways(on_device(shots), history=Boundary(1, format="int8"))
    assert not touched, touched[0]


def test_kernels_access_only_their_arguments_in_three_dimensions(touched):
    both_ways(on_device(tiny_volume()), history=Boundary(1, format="float16"))
    assert not touched, touched[0]
