"""Fixtures of a server and a connected store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from hpcfwi.parallel.store import Server, Store, make_secret

SECRET = make_secret()


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
