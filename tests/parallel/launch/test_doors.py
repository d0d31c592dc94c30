"""Sockets that libraries listen on, once all have come."""

from __future__ import annotations

import resource
import socket

import pytest

from hpcfwi.errors import InputError
from hpcfwi.parallel.launch import doors


def test_who_has_come_stays_and_nobody_else_comes():
    with socket.create_server(("127.0.0.1", 0)) as earlier:
        with doors.shut_afterwards():
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


def test_looking_at_sockets_leaves_no_descriptor_behind():
    before = doors._listening()
    for _ in range(200):
        doors._listening()
    with socket.create_server(("127.0.0.1", 0)) as door:
        assert set(doors._listening()) - set(before) == {door.fileno()}
        assert door.fileno() < 200


def test_a_process_may_have_as_many_files_as_it_is_allowed():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        doors.allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_ranks_that_may_not_open_enough_files_are_told_before_they_connect():
    many = 10_000
    doors.check_files([doors.FILES + 3 * doors.FILES_OF_ROOT, doors.FILES + 3, many])
    with pytest.raises(InputError, match=r"^rank 0: it may open 1024 files, and takes 1088 among"):
        doors.check_files([1024] * 512)
    with pytest.raises(InputError, match=r"^rank 2: it may open 60 files"):
        doors.check_files([many, many, 60])


def test_where_there_is_no_limit_no_rank_is_one_too_many(monkeypatch):
    infinity = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (infinity, infinity))
    doors.check_files([doors.count_files_allowed()] * 1_000_000)
