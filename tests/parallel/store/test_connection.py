"""A connection to the store: notes are written, waited for, and never mixed up."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from hpcfwi.parallel import store
from hpcfwi.parallel.store import Place, Server, Store, StoreError, make_secret
from tests.parallel.store.conftest import SECRET

SOON = timedelta(seconds=0.5)


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


def count_received(monkeypatch):
    """The sizes of what comes from the store, from now on."""
    sizes, receive = [], store._receive

    def counted(*arguments):
        received = receive(*arguments)
        sizes.append(len(received))
        return received

    monkeypatch.setattr(store, "_receive", counted)
    return sizes


def test_a_note_takes_few_more_bytes_on_the_way_than_it_has(store, monkeypatch):
    address = bytes(1200)  # gloo's are mostly zeros
    store.set("address", address)
    sizes = count_received(monkeypatch)
    assert store.get("address") == address
    assert sum(sizes) < 1.5 * len(address)


def test_who_waits_for_a_note_is_told_that_it_is_there_and_not_what_it_says(store, monkeypatch):
    store.set("address", bytes(1200))
    sizes = count_received(monkeypatch)
    store.wait(["address"])
    assert sum(sizes) < 100


def test_who_waits_for_several_notes_has_all_of_them_in_whatever_order_they_come(store):
    def ask(first: int) -> list[bytes]:
        return store.clone().multi_get([str((first + n) % 9) for n in range(9)])

    with ThreadPoolExecutor(9) as pool:
        found = [pool.submit(ask, first) for first in range(9)]
        time.sleep(0.2)
        for n in (4, 0, 8, 2, 7, 1, 3, 6, 5):
            store.set(str(n), bytes([n]))
        for first, notes in enumerate(found):
            assert notes.result(10.0) == [bytes([(first + n) % 9]) for n in range(9)]


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
    later = threading.Timer(0.2, lambda: other.set("late", "here"))
    later.start()
    assert store.get("late") == b"here"
    later.join()
    other.close()


def test_waiting_for_a_key_ends_and_a_late_answer_is_not_taken_for_another(server):
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


def test_what_is_said_is_json_and_never_a_pickle(store):
    assert json.loads(store._line.pack(("set", {"a": "b"}))[36:]) == ["set", {"a": "b"}]


def test_what_was_signed_at_an_earlier_start_with_the_same_secret_is_no_signature_now():
    signatures = []
    for _ in range(2):
        server = Server("127.0.0.1", SECRET)
        one, other = (Store(server.place, SECRET, timedelta(seconds=10)) for _ in range(2))
        assert one.sign(b"a", b"b") == other.sign(b"a", b"b")
        signatures.append(one.sign(b"a", b"b"))
        for end in (one, other, server):
            end.close()
    assert signatures[0] != signatures[1]
