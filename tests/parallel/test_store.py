"""Tests of the store: its server, which serves only clients with the secret, and its clients."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from hpcfwi.parallel import store as stores
from hpcfwi.parallel.store import (
    Address,
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


def test_note_is_visible_to_every_rank(store):
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


def count_received(monkeypatch):
    """Return a list to which the sizes of messages from the store are appended."""
    sizes, receive = [], stores._receive

    def counted(*arguments):
        received = receive(*arguments)
        sizes.append(len(received))
        return received

    monkeypatch.setattr(stores, "_receive", counted)
    return sizes


def test_reading_a_note_transfers_little_more_than_its_bytes(store, monkeypatch):
    address = bytes(1200)  # the addresses of gloo are mostly zeros
    store.set("address", address)
    sizes = count_received(monkeypatch)
    assert store.get("address") == address
    assert sum(sizes) < 1.5 * len(address)


def test_waiting_for_a_note_does_not_transfer_its_content(store, monkeypatch):
    store.set("address", bytes(1200))
    sizes = count_received(monkeypatch)
    store.wait(["address"])
    assert sum(sizes) < 100


def test_waiting_for_several_notes_does_not_depend_on_their_order(store):
    def ask(first: int) -> list[bytes]:
        return store.clone().multi_get([str((first + n) % 9) for n in range(9)])

    with ThreadPoolExecutor(9) as pool:
        found = [pool.submit(ask, first) for first in range(9)]
        time.sleep(0.2)
        for n in (4, 0, 8, 2, 7, 1, 3, 6, 5):
            store.set(str(n), bytes([n]))
        for first, notes in enumerate(found):
            assert notes.result(10.0) == [bytes([(first + n) % 9]) for n in range(9)]


def test_store_adds_numbers_and_deletes_notes(store):
    assert [store.add("n", 2) for _ in range(3)] == [2, 4, 6]
    assert store.get("n") == b"6"
    assert store.delete_key("n")
    assert not store.delete_key("n")
    assert store.add("n", 1) == 1


def test_first_compare_and_set_wins(store):
    assert store.compare_set("word", "", "SIGTERM") == b"SIGTERM"
    assert store.compare_set("word", "", "SIGINT") == b"SIGTERM"
    assert store.compare_set("word", "SIGTERM", "3") == b"3"
    assert store.compare_set("other", "x", "y") == b"x", (
        "the result equals that of the stores of torch"
    )
    assert not store.check(["other"])


def test_reading_a_missing_note_waits_for_it(store):
    other = store.clone()
    later = threading.Timer(0.2, lambda: other.set("late", "here"))
    later.start()
    assert store.get("late") == b"here"
    later.join()
    other.close()


def test_wait_for_a_key_times_out_and_breaks_the_connection(server):
    hasty = Store(server.place, SECRET, SOON)
    with pytest.raises(StoreError, match="does not answer"):
        hasty.get("never")
    with pytest.raises(StoreError):
        hasty.look(["never"])


def test_answer_to_an_interrupted_question_is_not_taken_for_the_next_one(store):
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            store.get("late")
    finally:
        signal.signal(signal.SIGALRM, before)
    with contextlib.closing(store.clone()) as other:
        other.set("late", "answer")
    with pytest.raises(StoreError, match="does not answer"):
        store.get("next")


def test_waiting_client_fails_at_once_when_the_server_closes(server, store):
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


def test_connection_with_another_secret_is_refused(server):
    with pytest.raises(StoreError, match="no connection"):
        Store(server.place, make_secret(), SOON)


def test_client_refuses_a_server_without_the_secret():
    with socket.create_server(("127.0.0.1", 0)) as door:
        place = Address(*door.getsockname())

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


def test_changed_or_repeated_message_is_ignored(store):
    other = store.clone()
    said = other._channel.pack(("add", "n", 1))
    other._socket.sendall(said + said)
    time.sleep(0.3)
    assert store.get("n") == b"1", "the repeated message is ignored"
    other = store.clone()
    changed = bytearray(other._channel.pack(("add", "n", 1)))
    changed[-2:-1] = b"7"
    other._socket.sendall(changed)
    time.sleep(0.3)
    assert store.get("n") == b"1"


def test_messages_are_json_and_not_pickles(store):
    assert json.loads(store._channel.pack(("set", {"a": "b"}))[36:]) == ["set", {"a": "b"}]


def test_signature_is_not_valid_for_another_server_with_the_same_secret():
    signatures = []
    for _ in range(2):
        server = Server("127.0.0.1", SECRET)
        one, other = (Store(server.place, SECRET, timedelta(seconds=10)) for _ in range(2))
        assert one.sign(b"a", b"b") == other.sign(b"a", b"b")
        signatures.append(one.sign(b"a", b"b"))
        for end in (one, other, server):
            end.close()
    assert signatures[0] != signatures[1]


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
    assert store.get("a") == b"one", "other clients are served"


def test_reconnecting_silent_clients_do_not_block_others(server, monkeypatch):
    monkeypatch.setattr(stores, "HANDSHAKE_WAIT", 60.0)
    over = threading.Event()

    def come_again() -> None:
        while not over.is_set():
            with (
                contextlib.suppress(OSError),
                socket.create_connection(server.place, timeout=30.0) as stranger,
            ):
                while stranger.recv(64):
                    pass

    for _ in range(2 * stores.MOST_UNPROVEN):
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
    monkeypatch.setattr(stores, "HANDSHAKE_WAIT", 60.0)
    before = count_descriptors()
    crowd = [socket.create_connection(server.place) for _ in range(3 * stores.MOST_UNPROVEN)]
    time.sleep(0.5)
    taken = count_descriptors() - before - len(crowd)
    for stranger in crowd:
        stranger.close()
    assert taken <= stores.MOST_UNPROVEN + 1


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
