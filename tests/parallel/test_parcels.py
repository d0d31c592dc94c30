"""Tests of parcels: objects whose arrays are sent apart from the pickled outline."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcfwi.parallel.transport import SMALL, make_room, put_together, take_apart

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)


def transfer(value):
    """Send a value; return what is received, the size of the outline and those of the arrays."""
    outline, sent = take_apart(value)
    received = make_room(outline)
    for there, here in zip(received, sent, strict=True):
        there[:] = here
    return put_together(outline, received), len(outline), [part.size for part in sent]


def test_objects_without_arrays_are_sent_in_the_outline():
    value = {"epoch": 3, "history": [{"loss": 0.5}], "shots": (1, 2), "best": None}
    found, _, arrays = transfer(value)
    assert found == value
    assert arrays == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_tensors_are_sent_unpickled_and_unchanged(dtype):
    tensor = (100 * torch.rand(300, 400)).to(dtype)
    found, outline, arrays = transfer({"model": {"vp": tensor}, "step": torch.tensor(2.0)})
    assert torch.equal(found["model"]["vp"], tensor)
    assert found["model"]["vp"].dtype == dtype
    assert found["step"].shape == ()
    assert arrays == [tensor.nbytes]
    assert outline < 2000


def test_received_arrays_are_writable_and_small_ones_are_in_the_outline():
    large, small = np.arange(SMALL, dtype=np.float32), np.arange(5)
    found, _, arrays = transfer([large, small, large])
    assert arrays == [large.nbytes], "the array is sent once"
    found[0][3] = found[1][3] = -1.0
    assert found[2][3] == -1.0
    assert large[3] == small[3] == 3.0


@pytest.mark.parametrize("change", [torch.t, lambda t: t[::2], lambda t: t[:0]])
def test_views_of_tensors_are_sent_without_the_rest(change):
    tensor = change(torch.rand(300, 400))
    found, outline, arrays = transfer(tensor)
    assert torch.equal(found, tensor)
    assert sum(arrays) == tensor.nbytes
    assert outline < 2000


def test_received_parameter_still_requires_a_gradient():
    found, _, _ = transfer(torch.nn.Parameter(torch.rand(300, 400)))
    assert found.requires_grad
