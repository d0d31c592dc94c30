"""Tests of the transports of objects between ranks: their parts, messages and signatures."""

from __future__ import annotations

import hashlib
import pickle
from contextlib import nullcontext
from datetime import timedelta
from typing import cast

import numpy as np
import pytest
import torch

from hpcfwi.parallel import transport
from hpcfwi.parallel.store import Server, Store, make_secret
from hpcfwi.parallel.transport import SMALL, SignedObjects, make_room, put_together, take_apart
from tests.ranks import run_ranks

# Both transports on the same ranks, with empty and large objects of unequal sizes
TRAVELS = """
from datetime import timedelta
import numpy as np, torch.distributed as dist
from mpi4py import MPI
from hpcfwi.parallel import transport
from hpcfwi.parallel.rendezvous import open_store

comm = MPI.COMM_WORLD
store = open_store(comm, timedelta(seconds=60))
dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size)
transport.LARGEST, transport.SMALL = 1000, 700
for way in (transport.MpiObjects(comm), transport.SignedObjects(comm.rank, comm.size, store)):
    for source in range(comm.size):
        large = {"both": [np.arange(500.0) + comm.rank, np.ones((3, comm.rank), "i4")], "n": source}
        for value in (None, {"rank": comm.rank}, np.arange(500.0) + comm.rank, large):
            np.testing.assert_equal(way.broadcast(value, source), comm.bcast(value, source))
    for value in (None, "r" * comm.rank, np.arange(300.0 * comm.rank), [np.arange(80.0)]):
        np.testing.assert_equal(way.all_gather(value), comm.allgather(value))
dist.destroy_process_group()
if comm.rank == 0:
    print("as MPI brings them")
"""


@pytest.mark.parametrize("n", [2, 3, 4])
def test_both_transports_give_the_objects_of_mpi(n):
    assert run_ranks(n, TRAVELS, warm=True).stdout == "as MPI brings them\n"


def test_message_not_signed_by_its_source_is_not_unpickled():
    secret = make_secret()
    server = Server("127.0.0.1", secret)
    store = Store(server.place, secret, timedelta(seconds=10), server)
    signed = SignedObjects(1, 2, store)
    message = signed._pack(b"said by rank 1")
    assert signed._unpack(message, 1) == b"said by rank 1"
    forged = bytes(32) + pickle.dumps(_Trap())
    for content, source in (
        (message, 0),
        (message[:-1], 1),
        (message[:10], 1),
        (torch.frombuffer(bytearray(forged), dtype=torch.uint8), 1),
    ):
        with pytest.raises(RuntimeError, match=f"from rank {source} is not signed"):
            signed._unpack(content, source)
    assert _Trap.sprung == 0
    store.close()


def test_array_that_differs_from_its_digest_is_refused(monkeypatch):
    monkeypatch.setattr(transport, "run_collective", lambda *_, **__: None)
    receiver = SignedObjects(1, 2, cast(Store, None))
    for sent in (b"\0\0\0", b"\0\0\1"):
        digest = hashlib.sha256(sent).digest()
        monkeypatch.setattr(receiver, "_spread", lambda *_, signed=digest: signed)
        with pytest.raises(RuntimeError, match="rank 0 was changed") if sent[2] else nullcontext():
            receiver._carry(np.zeros(3, np.uint8), 0)


class _Trap:
    """An object whose pickle runs code."""

    sprung = 0

    def __reduce__(self) -> tuple[object, tuple[()]]:
        return spring, ()


def spring() -> None:
    _Trap.sprung += 1


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
