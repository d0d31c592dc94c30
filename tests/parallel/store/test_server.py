"""Tests of the server of the store, which serves only clients that know the secret."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

from hpcfwi.parallel import store as servers
from hpcfwi.parallel.store import Server, Store, local_address, sign
from tests.parallel.store.conftest import SECRET
from tests.strangers import as_root, as_stranger


def listening(port: int) -> set[str]:
    """Return the addresses, in hexadecimal, on which a socket listens at this port."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as lines:  # noqa: PTH123
            for line in lines.readlines()[1:]:
                address, _, state = line.split()[1:4]
                if state == "0A" and int(address.split(":")[1], 16) == port:
                    found.add(address.split(":")[0])
    return found


def test_server_listens_only_on_its_given_address(server):
    assert listening(server.place.port) == {"0100007F"}


@pytest.mark.parametrize(
    "opening",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 10_000,
        bytes(32) + sign(b"another secret", b"client", bytes(32), bytes(32)),
    ],
    ids=["nothing", "a browser", "zeros", "another secret"],
)
def test_client_without_the_secret_gets_only_a_greeting(server, store, opening, monkeypatch):
    monkeypatch.setattr(servers, "HANDSHAKE_WAIT", 0.3)
    store.set("a", "one")
    with socket.create_connection(server.place) as stranger:
        stranger.settimeout(5.0)
        stranger.sendall(opening)
        heard = b""
        try:
            while part := stranger.recv(4096):
                heard += part
        except ConnectionResetError:
            pass
    assert len(heard) <= 32
    assert store.get("a") == b"one", "other clients are served"


def test_reconnecting_silent_clients_do_not_block_others(server, monkeypatch):
    monkeypatch.setattr(servers, "HANDSHAKE_WAIT", 60.0)
    over = threading.Event()

    def come_again() -> None:
        while not over.is_set():
            with (
                contextlib.suppress(OSError),
                socket.create_connection(server.place, timeout=30.0) as stranger,
            ):
                while stranger.recv(64):
                    pass

    for _ in range(2 * servers.MOST_UNPROVEN):
        threading.Thread(target=come_again, daemon=True).start()
    time.sleep(0.5)
    try:
        store = Store(server.place, SECRET, timedelta(seconds=20))
        store.set("a", "one")
        time.sleep(0.5)
        assert store.get("a") == b"one", "a connected client stays connected"
        store.close()
    finally:
        over.set()
        server.close()


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_unauthenticated_clients_take_few_descriptors(server, monkeypatch):
    monkeypatch.setattr(servers, "HANDSHAKE_WAIT", 60.0)
    before = count_descriptors()
    crowd = [socket.create_connection(server.place) for _ in range(3 * servers.MOST_UNPROVEN)]
    time.sleep(0.5)
    taken = count_descriptors() - before - len(crowd)
    for stranger in crowd:
        stranger.close()
    assert taken <= servers.MOST_UNPROVEN + 1


COME = """
import socket, sys
with socket.socket(socket.AF_UNIX) as stranger:
    stranger.settimeout(5.0)
    stranger.connect("\\0" + sys.argv[1])
    print(stranger.recv(32))
"""


@as_root
def test_local_server_refuses_other_users():
    server = Server(local_address(), SECRET)
    store = Store(server.place, SECRET, timedelta(seconds=10), server)
    store.set("a", "one")
    command = as_stranger(sys.executable, "-c", COME, server.place.address.removeprefix("\0"))
    heard = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert heard.stdout == "b''\n", heard.stderr
    assert store.get("a") == b"one"
    store.close()
