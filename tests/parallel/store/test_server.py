"""The server: notes for those who know the secret, and nothing for anybody else."""

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
    """The addresses, in the kernel's hexadecimal, at which something listens on this port."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as lines:  # noqa: PTH123
            for line in lines.readlines()[1:]:
                address, _, state = line.split()[1:4]
                if state == "0A" and int(address.split(":")[1], 16) == port:
                    found.add(address.split(":")[0])
    return found


def test_store_listens_on_the_one_address_that_it_is_given(server):
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
def test_who_does_not_know_the_secret_hears_a_greeting_and_no_more(
    server, store, opening, monkeypatch
):
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
    assert store.get("a") == b"one", "and the others are served"


def test_strangers_who_say_nothing_and_come_again_and_again_keep_nobody_out(server, monkeypatch):
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

    for _ in range(2 * servers.STRANGERS):
        threading.Thread(target=come_again, daemon=True).start()
    time.sleep(0.5)
    try:
        store = Store(server.place, SECRET, timedelta(seconds=20))
        store.set("a", "one")
        time.sleep(0.5)
        assert store.get("a") == b"one", "who has come in is not sent away"
        store.close()
    finally:
        over.set()
        server.close()


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_strangers_take_a_few_descriptors_and_no_more(server, monkeypatch):
    monkeypatch.setattr(servers, "HANDSHAKE_WAIT", 60.0)
    before = count_descriptors()
    crowd = [socket.create_connection(server.place) for _ in range(3 * servers.STRANGERS)]
    time.sleep(0.5)
    taken = count_descriptors() - before - len(crowd)
    for stranger in crowd:
        stranger.close()
    assert taken <= servers.STRANGERS + 1


COME = """
import socket, sys
with socket.socket(socket.AF_UNIX) as stranger:
    stranger.settimeout(5.0)
    stranger.connect("\\0" + sys.argv[1])
    print(stranger.recv(32))
"""


@as_root
def test_on_one_host_the_system_says_who_comes_and_other_users_hear_nothing():
    server = Server(local_address(), SECRET)
    store = Store(server.place, SECRET, timedelta(seconds=10), server)
    store.set("a", "one")
    command = as_stranger(sys.executable, "-c", COME, server.place.address.removeprefix("\0"))
    heard = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert heard.stdout == "b''\n", heard.stderr
    assert store.get("a") == b"one"
    store.close()
