"""The store: notes for those who know the secret, and nothing for anybody else."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from hpcfwi.parallel.store import connection as stores
from hpcfwi.parallel.store.connection import (
    Place,
    Server,
    Store,
    StoreError,
    local_address,
    make_secret,
    sign,
)
from tests.strangers import as_root, as_stranger

SECRET = make_secret()
SOON = timedelta(seconds=0.5)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server("127.0.0.1", SECRET)
    yield server
    server.close()


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    store = Store(server.place, SECRET, timedelta(seconds=20))
    yield store
    store.close()


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


def test_a_note_is_there_for_every_rank(store):
    store.set("a", "one")
    other = store.clone()
    assert other.get("a") == b"one"
    other.set("a", b"\x00\xff")
    assert store.get("a") == b"\x00\xff"
    store.set("ü", "größer")
    assert other.multi_get(["ü", "a"]) == ["größer".encode(), b"\x00\xff"]
    store.multi_set(["b", "c"], [b"2", b"3"])
    assert other.look(["b", "nothing", "c"]) == [b"2", None, b"3"]
    assert store.check(["a", "b"])
    assert not store.check(["a", "nothing"])


def test_numbers_are_added_up_and_notes_taken_away(store):
    assert [store.add("n", 2) for _ in range(3)] == [2, 4, 6]
    assert store.get("n") == b"6"
    assert store.delete_key("n")
    assert not store.delete_key("n")
    assert store.add("n", 1) == 1


def test_the_first_of_several_who_compare_and_set_wins(store):
    assert store.compare_set("word", "", "SIGTERM") == b"SIGTERM"
    assert store.compare_set("word", "", "SIGINT") == b"SIGTERM"
    assert store.compare_set("word", "SIGTERM", "3") == b"3"
    assert store.compare_set("other", "x", "y") == b"x", "as torch's own stores have it"
    assert not store.check(["other"])


def test_who_asks_for_a_note_that_is_not_there_waits_for_it(store):
    other = store.clone()
    threading.Timer(0.2, lambda: other.set("late", "here")).start()
    assert store.get("late") == b"here"
    other.close()


def test_but_not_for_ever_and_a_late_answer_is_not_taken_for_another(server):
    hasty = Store(server.place, SECRET, SOON)
    with pytest.raises(StoreError, match="does not answer"):
        hasty.get("never")
    with pytest.raises(StoreError):
        hasty.look(["never"])


def test_the_end_of_the_server_is_learned_at_once(server, store):
    waiting: list[str] = []

    def wait() -> None:
        try:
            store.clone().get("never")
        except StoreError as error:
            waiting.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    began = time.monotonic()
    server.close()
    thread.join()
    assert time.monotonic() - began < 5.0
    assert f"{server.place} does not answer" in waiting[0]
    with pytest.raises(StoreError):
        store.set("a", "one")


def test_it_listens_on_the_one_address_that_it_is_given(server):
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
    monkeypatch.setattr(stores, "HANDSHAKE_WAIT", 0.3)
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


def test_another_secret_is_refused_on_both_sides(server):
    with pytest.raises(StoreError, match="no connection"):
        Store(server.place, make_secret(), SOON)


def test_who_only_pretends_to_be_the_server_is_not_believed():
    with socket.create_server(("127.0.0.1", 0)) as door:
        place = Place(*door.getsockname())

        def pretend() -> None:
            for _ in range(100):
                try:
                    guest, _ = door.accept()
                except OSError:
                    return
                with guest:
                    guest.sendall(bytes(32))
                    guest.recv(64)
                    guest.sendall(bytes(32))

        threading.Thread(target=pretend, daemon=True).start()
        with pytest.raises(StoreError, match="not this job's rank 0"):
            Store(place, SECRET, SOON)


def test_a_message_that_was_changed_or_said_twice_ends_the_connection(store):
    other = store.clone()
    said = other._line.pack(("add", "n", 1))
    other._socket.sendall(said + said)
    time.sleep(0.3)
    assert store.get("n") == b"1", "the second time it was not listened to"
    other = store.clone()
    changed = bytearray(other._line.pack(("add", "n", 1)))
    changed[-2:-1] = b"7"
    other._socket.sendall(changed)
    time.sleep(0.3)
    assert store.get("n") == b"1"


def test_strangers_who_hold_all_places_at_the_door_keep_nobody_out_for_long(server, monkeypatch):
    monkeypatch.setattr(stores, "STRANGERS", 4)
    monkeypatch.setattr(stores, "HANDSHAKE_WAIT", 1.0)
    crowd = [socket.create_connection(server.place) for _ in range(8)]
    time.sleep(0.1)
    store = Store(server.place, SECRET, timedelta(seconds=20))
    store.set("a", "one")
    assert store.get("a") == b"one"
    store.close()
    for stranger in crowd:
        stranger.close()


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_strangers_take_a_few_descriptors_and_no_more(server, monkeypatch):
    monkeypatch.setattr(stores, "HANDSHAKE_WAIT", 60.0)
    before = count_descriptors()
    crowd = [socket.create_connection(server.place) for _ in range(3 * stores.STRANGERS)]
    time.sleep(0.5)
    taken = count_descriptors() - before - len(crowd)
    for stranger in crowd:
        stranger.close()
    assert taken <= stores.STRANGERS


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


def test_what_is_said_is_json_and_never_a_pickle(store):
    assert json.loads(store._line.pack(("set", {"a": "b"}))[36:]) == ["set", {"a": "b"}]
