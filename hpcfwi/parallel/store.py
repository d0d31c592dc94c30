"""The store: a dictionary on rank 0 that ranks read and write outside of collectives.

A thread of rank 0 serves it, so that it answers while the ranks compute or wait in collectives.
`watch`, `failure`, the schedule of shots and torch.distributed leave notes in it; `rendezvous`
tells the ranks the job's secret.

Both sides of a connection prove that they know the secret before anything else that they send is
looked at. Every message after that is signed (HMAC-SHA256) with a key of its connection.
"""

from __future__ import annotations

import asyncio
import atexit
import base64
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

HEAD = struct.Struct(">I")  # bytes of the body that follows
NONCE = 32  # bytes
DIGEST = 32  # bytes

_TO_SERVER, _TO_CLIENT = b"to server", b"to client"


class StoreError(RuntimeError):
    """The store has gone, has not answered in time, or knows another secret."""


def to_text(value: str | bytes) -> str:
    """A note as JSON can carry it: four letters for three bytes, whatever they are.

    A letter a byte would be six for most bytes of an address of gloo's, which are zero.
    """
    return base64.b64encode(value.encode() if isinstance(value, str) else bytes(value)).decode()


def to_bytes(text: str) -> bytes:
    """The note again."""
    return base64.b64decode(text)


def make_secret() -> bytes:
    """Return a new secret."""
    return secrets.token_bytes(DIGEST)


def sign(secret: bytes, *parts: bytes) -> bytes:
    """The HMAC-SHA256 of some parts, whose lengths matter, too."""
    code = hmac.new(secret, digestmod="sha256")
    for part in parts:
        code.update(len(part).to_bytes(8, "big"))
        code.update(part)
    return code.digest()


class Handshake:
    """The proofs that follow from the secret and the random numbers of both sides, (NONCE,)."""

    def __init__(self, secret: bytes, of_server: bytes, of_client: bytes) -> None:
        self._secret, self._numbers = secret, (of_server, of_client)

    @property
    def proof_of_client(self) -> bytes:
        """Return the proof that a client knows the secret."""
        return self._sign(b"client")

    @property
    def proof_of_server(self) -> bytes:
        """Return the proof that a server knows the secret."""
        return self._sign(b"server")

    def line_of_client(self) -> Line:
        """The client's end of what is said from now on."""
        return Line(self._sign(b"line"), _TO_SERVER, _TO_CLIENT)

    def line_of_server(self) -> Line:
        """The server's end of it."""
        return Line(self._sign(b"line"), _TO_CLIENT, _TO_SERVER)

    def _sign(self, what: bytes) -> bytes:
        return sign(self._secret, what, *self._numbers)


class Line:
    """Signed messages on one connection, numbered, so that none can be said twice.

    Messages are anything that JSON can represent.
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
        return HEAD.pack(len(body)) + signature + body

    def unpack(self, signature: bytes, body: bytes) -> Any:
        """Return a message; raises `StoreError` if it is not signed as the next one."""
        expected = self._sign(self._receives, self._received, body)
        if not hmac.compare_digest(signature, expected):
            raise StoreError("a message on the way between the ranks and their store was changed")
        self._received += 1
        return json.loads(body)

    def _sign(self, direction: bytes, number: int, body: bytes) -> bytes:
        return sign(self._key, direction, number.to_bytes(8, "big"), body)


RETRY = 0.1  # s between two tries to connect
KNOCK_WAIT = 0.3  # s that one try to connect takes at a door where many wait
ADMISSION_WAIT = 5.0  # s that whoever is connected waits to be let in


class Store(TorchStore):
    """A rank's connection to the store; also what torch.distributed asks of one.

    timeout: to wait for the connection, for an answer, and for notes that are not there yet;
    server: what serves it where that is this process, and is closed with it.
    Any thread may use it, but not while another waits in it: `clone` makes a connection more.
    A failure raises `StoreError`, and the connection is then lost.
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
        """Return True if all these keys have values."""
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
        """Tell torch that several values can be read at once."""
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


HANDSHAKE_WAIT = 5.0  # s that somebody who has connected may take to prove that he belongs here
HANDSHAKE_TURN = 0.05  # s, the same where others wait outside
STRANGERS = 64  # who are proving it at a time; more wait outside
ACCEPT_PAUSE = 0.1  # s, where nobody can be let in now
LARGEST = 2**28  # bytes of a message
BACKLOG = 1024  # who wait outside; the others try again

SESSION = "session"  # the note of what is different at each start

_LOCAL = "\0"  # which makes Linux keep a name that is in no file system


class Place(NamedTuple):
    """The address of a store: an IPv4 address and a port; or a name on this host alone, and 0."""

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


class Server:
    """The dictionary, served from a thread to whom knows `secret`, until it is closed.

    address: of the one interface that it listens on, at a free port that the system chooses; or a
    `local_address`, at which the system says who comes, and other users are not let in.
    """

    def __init__(self, address: str, secret: bytes) -> None:
        self._secret = secret
        # As they came and go, in base64: it is made and read by those who ask
        self._notes = {SESSION: to_text(secrets.token_hex(NONCE))}
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
        # By note, what those wait for who have asked for one that is not there
        self._awaited: dict[str, asyncio.Event] = {}
        # Who has come and has not proved anything yet, and when, the first one first
        self._strangers: dict[asyncio.Task[None], float] = {}
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
            await self._make_room()
            try:
                connection, _ = await self._loop.sock_accept(self._door)
            except OSError:  # no descriptor is left, or the guest has gone
                await asyncio.sleep(ACCEPT_PAUSE)
                continue
            if self.place.is_local and _user_of(connection) != os.geteuid():
                connection.close()
                continue
            guest = self._loop.create_task(self._receive(connection))
            guests.add(guest)
            guest.add_done_callback(guests.discard)
            self._strangers[guest] = self._loop.time()
            guest.add_done_callback(lambda guest: self._strangers.pop(guest, None))

    async def _make_room(self) -> None:
        """Wait for a place at the door; who has had his turn gives up his.

        Else some who say nothing would keep all others out, as they can come again and again.
        """
        await asyncio.sleep(0)  # accepting alone would not let the others do anything
        while len(self._strangers) >= STRANGERS:
            guest, came = next(iter(self._strangers.items()))
            if self._loop.time() - came > HANDSHAKE_TURN:
                del self._strangers[guest]
                guest.cancel()
            else:
                await asyncio.sleep(HANDSHAKE_TURN / 10)

    async def _receive(self, connection: socket.socket) -> None:
        """One connection, from its beginning to its end, whoever ends it."""
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_connection(sock=connection)
            line = await self._admit(reader, writer)
            guest = asyncio.current_task()
            assert guest is not None, "this runs in a task"
            self._strangers.pop(guest, None)
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
    ) -> Line | None:
        """The line to one who knows the secret, to whom this side proves it as well."""
        mine = secrets.token_bytes(NONCE)
        writer.write(mine)
        answer = await asyncio.wait_for(reader.readexactly(NONCE + DIGEST), HANDSHAKE_WAIT)
        theirs, proof = answer[:NONCE], answer[NONCE:]
        handshake = Handshake(self._secret, mine, theirs)
        if not hmac.compare_digest(proof, handshake.proof_of_client):
            return None
        writer.write(handshake.proof_of_server)
        return handshake.line_of_server()

    async def _answer(self, operation: str, arguments: list[Any]) -> Any:
        notes = self._notes
        match operation, arguments:
            case "set", [values]:
                notes.update(values)
                self._tell_of(values)
            case "get", [keys]:
                await self._wait_for(keys)
                return [notes[key] for key in keys]
            case "wait", [keys]:
                await self._wait_for(keys)
            case "look", [keys]:
                return [notes.get(key) for key in keys]
            case "compare and set", [key, expected, value]:
                if notes.get(key, "") == expected:
                    notes[key] = value
                    self._tell_of([key])
                return notes.get(key, expected)
            case "add", [key, amount]:
                number = amount + (int(to_bytes(notes[key])) if key in notes else 0)
                notes[key] = to_text(str(number))
                self._tell_of([key])
                return number
            case "delete", [key]:
                return notes.pop(key, None) is not None
        return None

    async def _wait_for(self, keys: list[str]) -> None:
        """Until all these notes are there."""
        while missing := [key for key in keys if key not in self._notes]:
            for key in missing:
                while key not in self._notes:
                    await self._awaited.setdefault(key, asyncio.Event()).wait()

    def _tell_of(self, keys: Iterable[str]) -> None:
        """Wake those who wait for one of these notes, and nobody else."""
        for key in keys:
            if key in self._awaited:
                self._awaited.pop(key).set()


def _user_of(connection: socket.socket) -> int:
    """Return the uid at the other end of a local connection, as the system knows it."""
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", connection.getsockopt(SOL_SOCKET, SO_PEERCRED, size))
    return int(uid)


async def _read_frame(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The signature and the body of a message."""
    head = await reader.readexactly(HEAD.size + DIGEST)
    (size,) = HEAD.unpack_from(head)
    if size > LARGEST:
        raise StoreError(f"a message of {size} bytes")
    return head[HEAD.size :], await reader.readexactly(size)
