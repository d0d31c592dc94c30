"""Notes that ranks leave for each other: a dictionary on rank 0, for those who know a secret.

A thread of rank 0 serves it over sockets, so that it can be asked while the ranks compute or wait
in collectives. Whoever connects must prove that he knows the job's secret, before anything that he
sends is looked at, and every message is signed (HMAC-SHA256) with a key of its connection. What
the notes say is the business of `failure`, `watch`, `schedule`, and of torch.distributed, whose
groups find each other here. How the secret gets to the ranks is in `rendezvous`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import hmac
import json
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from socket import SO_PEERCRED, SOL_SOCKET
from typing import Any, NamedTuple

from torch.distributed.distributed_c10d import Store as TorchStore

HANDSHAKE_WAIT = 5.0  # s that somebody who has connected may take to prove that he belongs here
STRANGERS = 16  # who are proving it at a time; more wait outside
RETRY = 0.1  # s between two tries to connect
LARGEST = 2**28  # bytes of a message
BACKLOG = 1024  # who wait outside; the others try again

_HEAD = struct.Struct(">I")  # bytes of the body that follows
_NONCE = 32  # bytes
_DIGEST = 32  # bytes
_LOCAL = "\0"  # which makes Linux keep a name that is in no file system
_TO_SERVER, _TO_CLIENT = b"to server", b"to client"


class StoreError(RuntimeError):
    """The store has gone, has not answered in time, or knows another secret."""


class Place(NamedTuple):
    """Where a store is: an IPv4 address and a port; or a name on this host alone, and 0."""

    address: str
    port: int

    @property
    def is_local(self) -> bool:
        return self.address.startswith(_LOCAL)

    def __str__(self) -> str:
        return "this host" if self.is_local else f"{self.address}, port {self.port}"


def local_address() -> str:
    """A name for a store that only processes of this user on this host come to."""
    return f"{_LOCAL}hpcfwi-{secrets.token_hex(8)}"


def make_secret() -> bytes:
    """What nobody can guess."""
    return secrets.token_bytes(_DIGEST)


def sign(secret: bytes, *parts: bytes) -> bytes:
    """The HMAC-SHA256 of some parts, whose lengths matter, too."""
    code = hmac.new(secret, digestmod="sha256")
    for part in parts:
        code.update(len(part).to_bytes(8, "big"))
        code.update(part)
    return code.digest()


class _Line:
    """Signed messages on one connection, numbered, so that none can be said twice.

    What is said is anything that JSON knows.
    """

    def __init__(self, key: bytes, sends: bytes, receives: bytes) -> None:
        self._key = key
        self._sends, self._receives = sends, receives
        self._sent = self._received = 0

    def pack(self, message: Any) -> bytes:
        """The bytes to send, header included."""
        body = json.dumps(message).encode()
        signature = self._sign(self._sends, self._sent, body)
        self._sent += 1
        return _HEAD.pack(len(body)) + signature + body

    def unpack(self, signature: bytes, body: bytes) -> Any:
        """What was sent; raises `StoreError` where it is not signed as the next message."""
        expected = self._sign(self._receives, self._received, body)
        if not hmac.compare_digest(signature, expected):
            raise StoreError("a message on the way between the ranks and their store was changed")
        self._received += 1
        return json.loads(body)

    def _sign(self, direction: bytes, number: int, body: bytes) -> bytes:
        return sign(self._key, direction, number.to_bytes(8, "big"), body)


class Server:
    """The dictionary, served from a thread to whom knows `secret`, until it is closed.

    address: of the one interface that it listens on, at a free port that the system chooses; or a
    `local_address`, at which the system says who comes, and other users are not let in.
    """

    def __init__(self, address: str, secret: bytes) -> None:
        self._secret = secret
        self._notes: dict[str, str] = {}
        self.place = Place(address, 0)
        if self.place.is_local:
            self._door = socket.socket(socket.AF_UNIX)
            self._door.bind(address)
            self._door.listen(BACKLOG)
        else:
            self._door = socket.create_server((address, 0), backlog=BACKLOG)
            self.place = Place(address, self._door.getsockname()[1])
        self._door.setblocking(False)
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._strangers = asyncio.Semaphore(STRANGERS)
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()
        # A thread that the interpreter has left behind would keep its guests waiting.
        atexit.register(self.close)

    def close(self) -> None:
        """End it; whoever is connected learns so at once."""
        atexit.unregister(self.close)
        with contextlib.suppress(RuntimeError):  # closed before
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        # What a stranger makes go wrong is no news, and would fill the job's log.
        self._loop.set_exception_handler(lambda *_: None)
        welcoming = self._loop.create_task(self._welcome())
        self._loop.run_forever()
        welcoming.cancel()
        self._door.close()
        guests = asyncio.all_tasks(self._loop)
        for guest in guests:
            guest.cancel()
        self._loop.run_until_complete(asyncio.gather(*guests, return_exceptions=True))
        self._loop.close()

    async def _welcome(self) -> None:
        """Let in who waits at the door, a few strangers at a time: each takes a descriptor."""
        guests: set[asyncio.Task[None]] = set()
        while True:
            await self._strangers.acquire()
            try:
                connection, _ = await self._loop.sock_accept(self._door)
            except OSError:  # no descriptor is left, or the guest has gone
                self._strangers.release()
                await asyncio.sleep(RETRY)
                continue
            if self.place.is_local and _user_of(connection) != os.geteuid():
                self._strangers.release()
                connection.close()
                continue
            guest = self._loop.create_task(self._receive(connection))
            guests.add(guest)
            guest.add_done_callback(guests.discard)

    async def _receive(self, connection: socket.socket) -> None:
        """One connection, from its beginning to its end, whoever ends it."""
        writer: asyncio.StreamWriter | None = None
        try:
            try:
                reader, writer = await asyncio.open_connection(sock=connection)
                line = await self._admit(reader, writer)
            finally:
                self._strangers.release()
            while line is not None:
                operation, *arguments = line.unpack(*await _read_frame(reader))
                writer.write(line.pack(await self._answer(operation, arguments)))
                await writer.drain()
        except (OSError, EOFError, StoreError, TimeoutError, asyncio.CancelledError):
            pass  # it has gone, or is not to be listened to
        finally:
            if writer is None:
                connection.close()
            else:
                writer.close()

    async def _admit(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> _Line | None:
        """The line to one who knows the secret, to whom this side proves it as well."""
        mine = secrets.token_bytes(_NONCE)
        writer.write(mine)
        answer = await asyncio.wait_for(reader.readexactly(_NONCE + _DIGEST), HANDSHAKE_WAIT)
        theirs, proof = answer[:_NONCE], answer[_NONCE:]
        if not hmac.compare_digest(proof, sign(self._secret, b"client", mine, theirs)):
            return None
        writer.write(sign(self._secret, b"server", mine, theirs))
        return _Line(sign(self._secret, b"line", mine, theirs), _TO_CLIENT, _TO_SERVER)

    async def _answer(self, operation: str, arguments: list[Any]) -> Any:
        notes = self._notes
        match operation, arguments:
            case "set", [values]:
                notes.update(values)
                self._tell()
            case "get", [keys]:
                while not all(key in notes for key in keys):
                    await self._changed.wait()
                return [notes[key] for key in keys]
            case "look", [keys]:
                return [notes.get(key) for key in keys]
            case "compare and set", [key, expected, value]:
                if notes.get(key, "") == expected:
                    notes[key] = value
                    self._tell()
                return notes.get(key, expected)
            case "add", [key, amount]:
                notes[key] = str(int(notes.get(key, "0")) + amount)
                self._tell()
                return int(notes[key])
            case "delete", [key]:
                return notes.pop(key, None) is not None
        return None

    def _tell(self) -> None:
        """Wake those who wait for a note."""
        self._changed.set()
        self._changed = asyncio.Event()


def _user_of(connection: socket.socket) -> int:
    """Who is at the other end of a local connection, as the system knows it."""
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", connection.getsockopt(SOL_SOCKET, SO_PEERCRED, size))
    return int(uid)


async def _read_frame(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The signature and the body of a message."""
    head = await reader.readexactly(_HEAD.size + _DIGEST)
    (size,) = _HEAD.unpack_from(head)
    if size > LARGEST:
        raise StoreError(f"a message of {size} bytes")
    return head[_HEAD.size :], await reader.readexactly(size)


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

    def set(self, key: str, value: str | bytes) -> None:
        """Write a note, in place of one that is there."""
        self._ask("set", {key: _to_text(value)})

    def get(self, key: str) -> bytes:
        """A note; waits for one that is not there yet."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Several notes; waits until all are there."""
        return [_to_bytes(value) for value in self._ask("get", list(keys))]

    def multi_set(self, keys: list[str], values: list[bytes]) -> None:
        """Write several notes."""
        self._ask("set", dict(zip(keys, map(_to_text, values), strict=True)))

    def look(self, keys: Iterable[str]) -> list[bytes | None]:
        """Several notes as they are now; None for one that is not there."""
        return [v if v is None else _to_bytes(v) for v in self._ask("look", list(keys))]

    def check(self, keys: list[str]) -> bool:
        """Whether all these notes are there."""
        return None not in self.look(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all these notes are there."""
        self._ask("get", list(keys), timeout=timeout)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Write `desired` where the note is `expected`, "" for none; what the note is then."""
        return _to_bytes(self._ask("compare and set", key, _to_text(expected), _to_text(desired)))

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
        """The signature that only this job's ranks can make."""
        return sign(self._secret, *parts)

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
                head = _receive(self._socket, _HEAD.size + _DIGEST)
                (size,) = _HEAD.unpack_from(head)
                return self._line.unpack(head[_HEAD.size :], _receive(self._socket, size))
            except OSError as error:
                # An answer that comes late would be taken for that to the next question.
                self._socket.close()
                what = f"{question[0]} {str(question[1])[:60]}"
                raise StoreError(
                    f"the store of rank 0 at {self._place} does not answer "
                    f"({error}; asked to {what})"
                ) from error

    def _connect(self, deadline: float) -> tuple[socket.socket, _Line]:
        """Come in, with patience: strangers at the door may keep one out for a while."""
        while True:
            try:
                return self._knock(max(deadline - time.monotonic(), RETRY))
            except OSError as error:
                if time.monotonic() > deadline:
                    raise StoreError(
                        f"no connection to rank 0 at {self._place} ({error})"
                    ) from error
            time.sleep(RETRY)

    def _knock(self, timeout: float) -> tuple[socket.socket, _Line]:
        connection = socket.socket(socket.AF_UNIX if self._place.is_local else socket.AF_INET)
        try:
            connection.settimeout(timeout)
            if self._place.is_local:
                connection.connect(self._place.address)
            else:
                connection.connect(self._place)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            theirs = _receive(connection, _NONCE)
            mine = secrets.token_bytes(_NONCE)
            connection.sendall(mine + sign(self._secret, b"client", theirs, mine))
            proof = _receive(connection, _DIGEST)
            if not hmac.compare_digest(proof, sign(self._secret, b"server", theirs, mine)):
                raise ConnectionError("who listens there is not this job's rank 0")
        except BaseException:
            connection.close()
            raise
        line = _Line(sign(self._secret, b"line", theirs, mine), _TO_SERVER, _TO_CLIENT)
        return connection, line


def _receive(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 2**20))
        if not part:
            raise ConnectionResetError("the connection was closed")
        parts += part
    return bytes(parts)


def _to_text(value: str | bytes) -> str:
    """As JSON can carry it: a letter a byte."""
    return (value.encode() if isinstance(value, str) else bytes(value)).decode("latin-1")


def _to_bytes(text: str) -> bytes:
    return text.encode("latin-1")
