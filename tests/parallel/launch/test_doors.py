"""Tests of shutting the sockets on which libraries listen, after all ranks have connected."""

from __future__ import annotations

import socket

import pytest

from hpcfwi.parallel import rendezvous


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
