"""A rank's connection to the store."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from torch.distributed.distributed_c10d import Store as TorchStore

from hpcfwi.parallel.store.messages import (
    DIGEST,
    HEAD,
    NONCE,
    Handshake,
    Line,
    StoreError,
    sign,
    to_bytes,
    to_text,
)
from hpcfwi.parallel.store.server import SESSION, Place, Server

RETRY = 0.1  # s between two tries to connect
KNOCK_WAIT = 0.3  # s that one try to connect takes at a door where many wait
ADMISSION_WAIT = 5.0  # s that whoever is connected waits to be let in


class Store(TorchStore):
    """A rank's connection to the store; also what torch.distributed asks of one.

    timeout: to wait for the connection, for an answer, and for notes that are not there yet;
    server: what serves it where that is this process, and is closed with it.
    Any thread may use it, but not while another waits in it: `clone` makes a connection more.
    What fails raises `StoreError`, and the connection is then lost.
    """

    def __init__(
        self, place: Place, secret: bytes, timeout: timedelta, server: Server | None = None
    ) -> None:
        super().__init__()
        self._place, self._secret, self._timeout, self._server = place, secret, timeout, server
        self._turn = threading.Lock()
        self._socket, self._line = self._connect(time.monotonic() + timeout.total_seconds())
        self._session = self.get(SESSION)

    def set(self, key: str, value: str | bytes) -> None:
        """Write a note, in place of one that is there."""
        self._ask("set", {key: to_text(value)})

    def get(self, key: str) -> bytes:
        """A note; waits for one that is not there yet."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Several notes; waits until all are there."""
        return [to_bytes(value) for value in self._ask("get", list(keys))]

    def multi_set(self, keys: list[str], values: list[bytes]) -> None:
        """Write several notes."""
        self._ask("set", dict(zip(keys, map(to_text, values), strict=True)))

    def look(self, keys: Iterable[str]) -> list[bytes | None]:
        """Several notes as they are now; None for one that is not there."""
        return [v if v is None else to_bytes(v) for v in self._ask("look", list(keys))]

    def check(self, keys: list[str]) -> bool:
        """Whether all these notes are there."""
        return None not in self.look(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all these notes are there."""
        self._ask("wait", list(keys), timeout=timeout)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Write `desired` where the note is `expected`, "" for none; what the note is then."""
        return to_bytes(self._ask("compare and set", key, to_text(expected), to_text(desired)))

    def add(self, key: str, amount: int) -> int:
        """Add to a number, 0 where there is none, and return the sum."""
        return int(self._ask("add", key, amount))

    def delete_key(self, key: str) -> bool:
        """Remove a note; whether it was there."""
        return bool(self._ask("delete", key))

    def has_extended_api(self) -> bool:
        """For torch: several notes can be had at once."""
        return True

    def clone(self) -> Store:
        """Another connection to the same store, for another thread."""
        return Store(self._place, self._secret, self._timeout)

    def sign(self, *parts: bytes) -> bytes:
        """The signature that only this job's ranks can make, and none of an earlier start of it."""
        return sign(self._secret, self._session, *parts)

    def close(self) -> None:
        """End the connection, also for a thread that waits in it, and the server that it has."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if self._server is not None:
            self._server.close()

    def _ask(self, *question: Any, timeout: timedelta | None = None) -> Any:
        seconds = (timeout or self._timeout).total_seconds()
        with self._turn:
            try:
                self._socket.settimeout(seconds)
                self._socket.sendall(self._line.pack(question))
                head = _receive(self._socket, HEAD.size + DIGEST)
                (size,) = HEAD.unpack_from(head)
                return self._line.unpack(head[HEAD.size :], _receive(self._socket, size))
            except OSError as error:
                # An answer that comes late would be taken for that to the next question.
                self._socket.close()
                what = f"{question[0]} {str(question[1])[:60]}"
                raise StoreError(
                    f"the store of rank 0 at {self._place} does not answer "
                    f"({error}; asked to {what})"
                ) from error

    def _connect(self, deadline: float) -> tuple[socket.socket, Line]:
        """Come in, by several tries: strangers at the door may keep one out for a while."""
        while True:
            try:
                return self._knock()
            except OSError as error:
                if time.monotonic() > deadline:
                    raise StoreError(
                        f"no connection to rank 0 at {self._place} ({error})"
                    ) from error
            time.sleep(RETRY)

    def _knock(self) -> tuple[socket.socket, Line]:
        connection = socket.socket(socket.AF_UNIX if self._place.is_local else socket.AF_INET)
        try:
            connection.settimeout(KNOCK_WAIT)
            if self._place.is_local:
                connection.connect(self._place.address)
            else:
                connection.connect(self._place)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(ADMISSION_WAIT)
            theirs, mine = _receive(connection, NONCE), secrets.token_bytes(NONCE)
            handshake = Handshake(self._secret, theirs, mine)
            connection.sendall(mine + handshake.proof_of_client)
            proof = _receive(connection, DIGEST)
            if not hmac.compare_digest(proof, handshake.proof_of_server):
                raise ConnectionError("who listens there is not this job's rank 0")
        except BaseException:
            connection.close()
            raise
        return connection, handshake.line_of_client()


def _receive(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 2**20))
        if not part:
            raise ConnectionResetError("the connection was closed")
        parts += part
    return bytes(parts)
