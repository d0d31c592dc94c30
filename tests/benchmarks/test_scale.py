"""Tests of the benchmark that counts resources that grow with the number of ranks."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from benchmarks import scale
from hpcfwi.parallel.context import Context

# Methods that call other collectives, or are no collectives
NOT_COUNTED = {"alone", "is_root", "barrier", "from_root", "raise_on_all_ranks", "close"}


def test_every_collective_of_a_context_is_counted():
    public = {name for name in vars(Context) if not name.startswith("_")}
    methods = {name for name in public if callable(getattr(Context, name))} - NOT_COUNTED
    assert methods - set(Context.__dataclass_fields__) <= set(vars(scale.Counted))


def test_bytes_sent_by_sockets_are_counted_without_leaks():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as sender,
        server.accept()[0] as taker,
    ):
        before = sum(scale.sent_by_sockets())
        sender.sendall(bytes(5000))
        received = 0
        while received < 5000:
            received += len(taker.recv(5000))
        time.sleep(0.1)  # until the counter of the kernel is up to date
        opened = len(list(Path("/proc/self/fd").iterdir()))
        assert sum(scale.sent_by_sockets()) - before == 5000
        assert len(list(Path("/proc/self/fd").iterdir())) == opened


def test_descriptors_are_also_counted_during_a_run(tmp_path):
    context = scale.Counted.like(Context.alone())
    before = scale.Counts.of(context, 0.0).descriptors
    with (tmp_path / "file").open("w"):
        context.barrier()
    assert scale.Counts.of(context, 0.0).descriptors == before + 1


@pytest.mark.long
def test_resources_of_two_ranks_are_counted_on_both():
    case = scale.Case(ranks=2, points=31, shots=8, batch=4)
    found = scale.measure(case, timeout=200.0)
    root, other = found["collectives"]
    assert root == other == int(root) > 0
    assert found["carried"][0] > 8 * 31 * 31, "the sum of a gradient is included"
    assert min(found["sent"]) > 8 * 31 * 31
    assert found["descriptors"][0] > found["descriptors"][1] > 10
    assert min(found["own_memory"]) > 50e6
    assert found["first_epoch_s"] > found["connected_s"] > 0.0
