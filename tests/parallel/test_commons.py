"""Tests of `once_per_host`, whose result the ranks of a host share in memory."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
import torch

from hpcfwi.errors import InputError
from hpcfwi.parallel import replicas
from hpcfwi.parallel.replicas import is_host_shared, once_per_host
from tests.parallel.together import Thread, on_ranks
from tests.ranks import run_ranks

HOSTS = ("a", "b", "a", "b", "c")
FIRST = [0, 1, 4]
LARGE = np.arange(30_000.0).reshape(100, 300)


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch):
    monkeypatch.setattr(replicas, "MEMORY", tmp_path)
    return tmp_path


def ask(hosts=HOSTS, fail=()):
    """Return the result or error of each rank, and the ranks that made the call."""
    asked = []

    def act(context):
        def call():
            asked.append(context.rank)
            if context.rank in fail:
                raise InputError("observed.h5", f"host {context.host} does not see it", "Look.")
            return {"large": LARGE.copy(), "turned": LARGE.T.copy(), "small": np.arange(3)}

        try:
            return once_per_host(call, context)
        except InputError as error:
            return error

    return on_ranks(len(hosts), act, hosts), asked


def check(found):
    for each in found:
        assert each.keys() == {"large", "turned", "small"}
        np.testing.assert_array_equal(each["large"], LARGE)
        np.testing.assert_array_equal(each["turned"], LARGE.T)
        np.testing.assert_array_equal(each["small"], np.arange(3))


def test_one_rank_per_host_calls_and_its_host_shares_the_result(memory):
    found, asked = ask()
    assert sorted(asked) == FIRST
    check(found)
    assert not any(each[name].flags.writeable for each in found for name in ("large", "turned"))
    assert all(is_host_shared(each[name]) for each in found for name in ("large", "turned"))
    assert not any(is_host_shared(array) for array in (found[0]["small"], LARGE, LARGE[1:]))
    assert all(each["turned"].ctypes.data % replicas.ALIGNED == 0 for each in found)
    assert not list(memory.iterdir())


def test_single_rank_calls_and_gets_a_writable_result():
    found, asked = ask(("a",))
    assert asked == [0]
    check(found)
    assert found[0]["large"].flags.writeable


def forbid_all(monkeypatch, memory):
    monkeypatch.setattr(replicas, "MEMORY", memory / "missing")


def forbid_one_to_open(monkeypatch, _memory):
    """Fail as two containers with the same host name and different memory do."""
    asked = []

    def open_own(name):
        asked.append(name)
        if len(asked) == 2:
            raise FileNotFoundError(name)
        return original(name)

    original = replicas._open_own
    monkeypatch.setattr(replicas, "_open_own", open_own)


def leave_no_room(monkeypatch, _memory):
    def reserve(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(replicas, "reserve", reserve)


def know_no_reservations(monkeypatch, _memory):
    monkeypatch.setattr(replicas, "reserve", lambda *_: False)


def leave_no_room_to_map(monkeypatch, _memory):
    def map_file(*_, **__):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(replicas.mmap, "mmap", map_file)


def give_it_to_others(monkeypatch, _memory):
    monkeypatch.setattr(replicas.os, "geteuid", lambda: -1)


@pytest.mark.parametrize(
    "hinder",
    [
        forbid_all,
        forbid_one_to_open,
        leave_no_room,
        know_no_reservations,
        leave_no_room_to_map,
        give_it_to_others,
    ],
)
def test_all_ranks_get_the_result_of_rank_0_without_shared_memory(hinder, monkeypatch, memory):
    hinder(monkeypatch, memory)
    found, asked = ask()
    assert asked[-1] == 0
    check(found)
    assert all(each["large"].flags.writeable for each in found)
    assert not list(memory.iterdir())


def test_all_ranks_get_the_result_of_rank_0_if_a_host_finds_other_bits(memory):
    asked = []

    def act(context):
        def call():
            asked.append(context.rank)
            found = LARGE.copy()
            found[-1, -1] = np.nextafter(found[-1, -1], np.inf) if context.host == "c" else 1.0
            return found

        return once_per_host(call, context)

    for each in on_ranks(len(HOSTS), act, HOSTS):
        np.testing.assert_array_equal(each, [*LARGE[:-1], [*LARGE[-1, :-1], 1.0]])
    assert sorted(asked) == [0, *FIRST]
    assert not list(memory.iterdir())


@pytest.mark.parametrize("fail", [(0,), (4,), (1, 4)])
def test_all_ranks_raise_the_error_of_a_host(fail, memory):
    found, _ = ask(fail=fail)
    assert {str(each) for each in found} == {str(found[0])}
    assert f"host {HOSTS[fail[0]]} does not see it" in str(found[0])
    assert all(vars(each)["raised_on_all_ranks"] for each in found)
    assert not list(memory.iterdir())


class Bereft(Thread):
    """A rank whose neighbour dies before it gets the name of the file."""

    def all_gather(self, value):
        if value != self.host:
            raise ConnectionError(value)
        return [value] * self.size


def test_death_of_a_rank_leaves_no_shared_file_or_descriptor(memory):
    context = Bereft(0, 2, 0, "a", torch.device("cpu"), 1)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(ConnectionError, match=str(memory)):
        once_per_host(dict, context)
    assert not list(memory.iterdir())
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


PROCESSES = """
from pathlib import Path
import numpy as np
from hpcfwi.parallel.replicas import once_per_host
from hpcfwi.parallel.launch import launch

context = launch(gpus=False)
found = once_per_host(lambda: np.full(1_000_000, context.rank + 0.5), context)
assert found.sum() == 500_000.0, found
context.barrier()  # a page that only one rank has touched counts as private
lines = Path("/proc/self/smaps").read_text().splitlines()
(at,) = (n for n, line in enumerate(lines) if "hpcfwi-" in line)
own = sum(int(line.split()[1]) for line in lines[at + 1 : at + 20] if "Private_" in line)
assert "(deleted)" in lines[at], lines[at]
context.barrier()
print(f"{own} kB of its own", flush=True)
context.close()
"""


def test_processes_of_a_host_map_the_same_memory():
    assert run_ranks(3, PROCESSES, warm=True).stdout == 3 * "0 kB of its own\n"
