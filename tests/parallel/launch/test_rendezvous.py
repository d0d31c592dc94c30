"""Tests of the rendezvous of ranks: the address, the secret of the job, and shut sockets."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist

from hpcfwi.errors import InputError
from hpcfwi.parallel import rendezvous
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.rendezvous import EnvironmentExchange, list_interfaces, open_store
from hpcfwi.parallel.store import Server, Store, StoreError, local_address, make_secret
from tests.parallel.test_store import listening
from tests.parallel.together import on_ranks

SOON = timedelta(seconds=10)
HOSTS = threading.local()


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """Restore the environment, which ranks change for other programs."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture
def open_stores(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """A function that returns the store or the error of each rank on given hosts."""
    monkeypatch.setattr(rendezvous.socket, "gethostname", lambda: HOSTS.name)

    def open_on(hosts: list[str]) -> list[Any]:
        def join(context: Context) -> Any:
            def allgather(value: Any) -> list[Any]:
                return context.all_gather(json.loads(json.dumps(value)))

            HOSTS.name = context.host
            try:
                return open_store(SimpleNamespace(rank=context.rank, allgather=allgather), SOON)
            except InputError as error:
                return error

        return on_ranks(len(hosts), join, hosts)

    return open_on


@contextmanager
def closing(stores: list[Store]) -> Iterator[None]:
    yield
    for store in stores:
        store.close()


def in_hexadecimal(address: str) -> str:
    return "".join(f"{int(part):02X}" for part in reversed(address.split(".")))


def test_ranks_of_one_host_connect_without_a_port(open_stores):
    stores = open_stores(["a", "a", "a"])
    with closing(stores):
        stores[1].set("who", "rank 1")
        assert [store.get("who") for store in stores] == [b"rank 1"] * 3
        assert stores[0]._place.is_local
        assert os.environ["MASTER_ADDR"] == "127.0.0.1"
        assert int(os.environ["MASTER_PORT"]) > 0


def test_given_secret_is_used_by_all_ranks(open_stores, monkeypatch):
    monkeypatch.setenv("HPCFWI_SECRET", "of this job")
    stores = open_stores(["a", "a"])
    with closing(stores):
        stores[1].set("who", "rank 1")
        assert stores[0].get("who") == b"rank 1"
        assert {store._secret for store in stores} == {b"of this job"}


def test_secret_is_not_accepted_from_the_rendezvous(monkeypatch):
    """Anyone can write to torchrun's store, which has no secret."""
    monkeypatch.setenv("HPCFWI_SECRET", "of this job")
    foreign = Server(local_address(), make_secret())

    class ForgedExchange:
        rank, size = 1, 2

        def allgather(self, value: Any) -> list[Any]:
            return ["a", "a"] if value else [[[foreign.place], foreign._secret.hex(), 1], None]

    with pytest.raises(StoreError, match="no connection to rank 0"):
        open_store(ForgedExchange(), timedelta(seconds=0.3))
    foreign.close()


def test_address_at_which_another_program_answers_is_not_used(open_stores, monkeypatch):
    own = [ip for _, ip in list_interfaces() if not ip.startswith("127.")]
    if not own:
        pytest.skip("this machine has no network but its loopback")
    others, servers = iter([make_secret()]), []

    def serve(address: str, secret: bytes) -> Server:
        servers.append(Server(address, next(others, secret)))
        return servers[-1]

    monkeypatch.setattr(rendezvous, "Server", serve)
    monkeypatch.setattr(rendezvous, "list_interfaces", lambda: [("one", own[0]), ("two", own[0])])
    stores = open_stores(["a", "b"])
    with closing(stores):
        assert {store._place for store in stores} == {servers[1].place}


def test_ranks_of_several_hosts_connect_at_an_address_that_all_reach(open_stores):
    own = [ip for _, ip in list_interfaces() if not ip.startswith("127.")]
    if not own:
        pytest.skip("this machine has no network but its loopback")
    stores = open_stores(["a", "a", "b"])
    with closing(stores):
        stores[2].set("who", "rank 2")
        assert stores[0].get("who") == b"rank 2"
        assert listening(stores[0]._place.port) == {in_hexadecimal(own[0])}


def test_all_ranks_raise_the_same_error_without_a_common_address(open_stores, monkeypatch):
    monkeypatch.setattr(rendezvous, "list_interfaces", lambda: [("lo", "127.0.0.1")])
    told = {str(error) for error in open_stores(["a", "b"])}
    assert len(told) == 1
    assert "network of a: none of its addresses (no IPv4) can be reached" in told.pop()


def test_jobs_have_different_secrets(open_stores):
    one, other = open_stores(["a", "a"]), open_stores(["a", "a"])
    with closing(one + other), pytest.raises(StoreError):
        Store(one[0]._place, other[0]._secret, timedelta(seconds=0.3))


def test_store_of_torchrun_does_not_contain_the_secret(monkeypatch):
    shared = dist.HashStore()
    ranks = iter([(shared, 0, 2), (shared, 1, 2)])
    monkeypatch.setattr(rendezvous, "rendezvous", lambda *_, **__: iter([next(ranks)]))
    exchanges = [EnvironmentExchange(SOON), EnvironmentExchange(SOON)]
    with ThreadPoolExecutor(2) as pool:
        stores = list(pool.map(lambda exchange: open_store(exchange, SOON), exchanges))
    with closing(stores):
        stores[1].set("who", "rank 1")
        assert stores[0].get("who") == b"rank 1"
        secret = stores[0]._secret.hex()
        keys = [f"hpcfwi/{number}/{rank}" for number in range(1, 9) for rank in range(2)]
        left = [shared.get(key).decode() for key in keys if shared.check([key])]
        assert left
        assert not [value for value in left if secret in value]


@pytest.mark.parametrize("rank", ["0", "1"])
def test_error_for_a_failed_rendezvous_names_the_address(rank, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    env = {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    monkeypatch.setattr(rendezvous, "MEETING_WAIT", timedelta(seconds=1))
    monkeypatch.setattr(os, "environ", {**os.environ, **env})
    told = f"2 ranks did not connect .* at 127.0.0.1:{port}.*Start all"
    with pytest.raises(InputError, match=told) as refused:
        EnvironmentExchange(SOON)
    assert "\n" not in str(refused.value)


def test_timeout_after_the_rendezvous_is_longer_than_during_it(monkeypatch):
    monkeypatch.setattr(rendezvous, "MEETING_WAIT", timedelta(seconds=1))
    shared = dist.HashStore()
    monkeypatch.setattr(rendezvous, "rendezvous", lambda *_, **__: iter([(shared, 0, 1)]))
    assert EnvironmentExchange(SOON)._store.timeout == SOON


def test_shut_sockets_keep_connections_and_accept_no_others():
    with socket.create_server(("127.0.0.1", 0)) as earlier:
        with rendezvous.shut_afterwards():
            door = socket.create_server(("127.0.0.1", 0))
            friend = socket.create_connection(door.getsockname())
            inside, _ = door.accept()
        with pytest.raises(TimeoutError):
            socket.create_connection(door.getsockname(), timeout=0.5)
        friend.sendall(b"still here")
        assert inside.recv(100) == b"still here"
        socket.create_connection(earlier.getsockname(), timeout=5.0).close()
        for each in (door, friend, inside):
            each.close()


def test_listing_sockets_leaks_no_descriptor():
    before = rendezvous._listening()
    for _ in range(200):
        rendezvous._listening()
    with socket.create_server(("127.0.0.1", 0)) as door:
        assert set(rendezvous._listening()) - set(before) == {door.fileno()}
        assert door.fileno() < 200
