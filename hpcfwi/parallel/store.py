"""The store: a dictionary on rank 0 that ranks read and write outside of collectives.

A thread of rank 0 serves it, so that it answers while the ranks compute or wait in collectives.
`watch`, `failure`, the schedule of shots and torch.distributed store values in it; `rendezvous`
gives the job's secret to the ranks.

Other users of the node or of the network can connect to its port. Through a store without
authentication they could stop the job, or run their code by a pickle (docs/decisions/027).
Therefore both sides of a connection prove that they know the secret before they read anything else
from it. Every message after that is signed (HMAC-SHA256) with a key of its connection.
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
    """The store has ended, has not answered in time, or has another secret."""


def to_text(value: str | bytes) -> str:
    """Encode a value in base64, for JSON.

    A string with one character for each byte would be longer, because JSON writes a zero byte as
    six characters, and most bytes of gloo's addresses are zeros.
    """
    return base64.b64encode(value.encode() if isinstance(value, str) else bytes(value)).decode()


def to_bytes(text: str) -> bytes:
    """Decode a result of `to_text`."""
    return base64.b64decode(text)


def make_secret() -> bytes:
    """Return a new secret."""
    return secrets.token_bytes(DIGEST)


def sign(secret: bytes, *parts: bytes) -> bytes:
    """Return the HMAC-SHA256 of some parts and their lengths."""
    code = hmac.new(secret, digestmod="sha256")
    for part in parts:
        code.update(len(part).to_bytes(8, "big"))
        code.update(part)
    return code.digest()


def prove(secret: bytes, of_server: bytes, of_client: bytes) -> list[bytes]:
    """Return the client's and the server's proof that they know the secret, and a key of messages.

    of_server, of_client: random numbers of NONCE bytes.
    """
    return [sign(secret, what, of_server, of_client) for what in (b"client", b"server", b"line")]


class Channel:
    """Signed messages of one connection, which are numbered so that none can be replayed.

    A message is any value that JSON can represent.
    """

    def __init__(self, key: bytes, sends: bytes, receives: bytes) -> None:
        self._key = key
        self._sends, self._receives = sends, receives
        self._sent = self._received = 0

    def pack(self, message: Any) -> bytes:
        """Return the bytes of a message, including the header."""
        body = json.dumps(message).encode()
        signature = self._sign(self._sends, self._sent, body)
        self._sent += 1
        return HEAD.pack(len(body)) + signature + body

    def unpack(self, signature: bytes, body: bytes) -> Any:
        """Return a message; raises `StoreError` if its signature is not that of the next one."""
        expected = self._sign(self._receives, self._received, body)
        if not hmac.compare_digest(signature, expected):
            raise StoreError("a message between the ranks and their store was changed in transit")
        self._received += 1
        return json.loads(body)

    def _sign(self, direction: bytes, number: int, body: bytes) -> bytes:
        return sign(self._key, direction, number.to_bytes(8, "big"), body)


RETRY = 0.1  # s between two tries to connect
CONNECT_WAIT = 0.3  # time limit of one try to connect, s; it is reached if many others wait
PROOF_WAIT = 5.0  # s that a connected client waits for the server's proof


class Store(TorchStore):
    """A rank's connection to the store, with the interface of stores of torch.distributed.

    timeout: for the connection, for an answer, and for values that do not exist yet; server: the
    server if this process serves the store; it is closed with the connection. A thread that uses
    the connection waits while another one waits in it; `clone` makes another connection. A failure
    raises `StoreError`. The connection is then lost, as it is after an exception of a signal.
    """

    def __init__(
        self, place: Address, secret: bytes, timeout: timedelta, server: Server | None = None
    ) -> None:
        super().__init__()
        self._place, self._secret, self._timeout, self._server = place, secret, timeout, server
        self._turn = threading.Lock()
        self._socket, self._channel = self._connect(time.monotonic() + timeout.total_seconds())
        self._session = self.get(SESSION)

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", {key: to_text(value)})

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return several values, as soon as all exist."""
        return [to_bytes(value) for value in self._ask("get", list(keys))]

    def multi_set(self, keys: list[str], values: list[bytes]) -> None:
        self._ask("set", dict(zip(keys, map(to_text, values), strict=True)))

    def look(self, keys: Iterable[str]) -> list[bytes | None]:
        """Return several values without waiting; None for values that do not exist."""
        return [v if v is None else to_bytes(v) for v in self._ask("look", list(keys))]

    def check(self, keys: list[str]) -> bool:
        return None not in self.look(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._ask("wait", list(keys), timeout=timeout)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Set `desired` if the value is `expected` ("" for none); return the resulting value."""
        return to_bytes(self._ask("compare and set", key, to_text(expected), to_text(desired)))

    def add(self, key: str, amount: int) -> int:
        """Add to a number and return the sum; a number that does not exist counts as 0."""
        return int(self._ask("add", key, amount))

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete", key))

    def has_extended_api(self) -> bool:
        return True  # several values can be read at once

    def clone(self) -> Store:
        """Return another connection to the same store, for another thread."""
        return Store(self._place, self._secret, self._timeout)

    def sign(self, *parts: bytes) -> bytes:
        """Return a signature that only ranks of this start of the job can make."""
        return sign(self._secret, self._session, *parts)

    def close(self) -> None:
        """Close the connection, even if a thread waits in it, and the server of this process."""
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
                self._socket.sendall(self._channel.pack(question))
                head = _receive(self._socket, HEAD.size + DIGEST)
                (size,) = HEAD.unpack_from(head)
                return self._channel.unpack(head[HEAD.size :], _receive(self._socket, size))
            except BaseException as error:
                # A late answer would be taken for the answer to the next question.
                self._socket.close()
                if not isinstance(error, OSError):
                    raise
                what = f"{question[0]} {str(question[1])[:60]}"
                raise StoreError(
                    f"the store of rank 0 at {self._place} does not answer "
                    f"({error}; the request was: {what})"
                ) from error

    def _connect(self, deadline: float) -> tuple[socket.socket, Channel]:
        """Connect, in several tries, because other connections may fill the queue for a while."""
        while True:
            try:
                return self._try_to_connect()
            except OSError as error:
                if time.monotonic() > deadline:
                    raise StoreError(
                        f"no connection to rank 0 at {self._place} ({error})"
                    ) from error
            time.sleep(RETRY)

    def _try_to_connect(self) -> tuple[socket.socket, Channel]:
        connection = socket.socket(socket.AF_UNIX if self._place.is_local else socket.AF_INET)
        try:
            connection.settimeout(CONNECT_WAIT)
            if self._place.is_local:
                connection.connect(self._place.address)
            else:
                connection.connect(self._place)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(PROOF_WAIT)
            theirs, mine = _receive(connection, NONCE), secrets.token_bytes(NONCE)
            own_proof, their_proof, key = prove(self._secret, theirs, mine)
            connection.sendall(mine + own_proof)
            if not hmac.compare_digest(_receive(connection, DIGEST), their_proof):
                raise ConnectionError("the server at this address is not this job's rank 0")
        except BaseException:
            connection.close()
            raise
        return connection, Channel(key, _TO_SERVER, _TO_CLIENT)


def _receive(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 2**20))
        if not part:
            raise ConnectionResetError("the connection was closed")
        parts += part
    return bytes(parts)


HANDSHAKE_WAIT = 5.0  # s that a client may take to prove that it knows the secret
HANDSHAKE_TURN = 0.05  # s that it may take if other clients wait
MOST_UNPROVEN = 64  # connections without a proof at a time; more wait in the queue
ACCEPT_PAUSE = 0.1  # s, if no connection can be accepted now
LARGEST = 2**28  # bytes of a message
BACKLOG = 1024  # connections in the queue; others try again

SESSION = "session"  # key of a value that is different in each start of the job

_LOCAL = "\0"  # on Linux, a socket whose name begins with it is in no file system


class Address(NamedTuple):
    """The place of a store: an IPv4 address and a port, or a name on this host and port 0."""

    address: str
    port: int

    @property
    def is_local(self) -> bool:
        return self.address.startswith(_LOCAL)

    def __str__(self) -> str:
        return "this host" if self.is_local else f"{self.address}, port {self.port}"


def local_address() -> str:
    """Return a name for a store to which only this user's processes on this host can connect."""
    return f"{_LOCAL}hpcfwi-{secrets.token_hex(8)}"


class Server:
    """A thread that serves the dictionary to clients that know a secret, until it is closed.

    address: the address of the interface on which it listens, at a free port that the system
    chooses; or a `local_address`, for which clients of other users are rejected.
    """

    def __init__(self, address: str, secret: bytes) -> None:
        self._secret = secret
        # Values are stored in base64, which clients encode and decode.
        self._values = {SESSION: to_text(secrets.token_hex(NONCE))}
        self.place = Address(address, 0)
        if self.place.is_local:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(address)
            self._listener.listen(BACKLOG)
        else:
            self._listener = socket.create_server((address, 0), backlog=BACKLOG)
            self.place = Address(address, self._listener.getsockname()[1])
        self._listener.setblocking(False)
        self._loop = asyncio.new_event_loop()
        # An event for each value that does not exist yet and for which clients wait.
        self._awaited: dict[str, asyncio.Event] = {}
        # Connections without a proof, with the times at which they began, the oldest first.
        self._unproven: dict[asyncio.Task[None], float] = {}
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()
        # The thread must end with the interpreter; otherwise its clients would wait.
        atexit.register(self.close)

    def close(self) -> None:
        """End the thread; the connections of clients are closed at once."""
        atexit.unregister(self.close)
        with contextlib.suppress(RuntimeError):  # it is already closed
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        # Errors of unproven clients are not reported, because they could fill the job's log.
        self._loop.set_exception_handler(lambda *_: None)
        accepting = self._loop.create_task(self._accept())
        self._loop.run_forever()
        accepting.cancel()
        self._listener.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _accept(self) -> None:
        """Accept connections, few without a proof at a time, as each takes a file descriptor."""
        tasks: set[asyncio.Task[None]] = set()
        while True:
            await self._limit_unproven()
            try:
                connection, _ = await self._loop.sock_accept(self._listener)
            except OSError:  # no descriptor is left, or the client has disconnected
                await asyncio.sleep(ACCEPT_PAUSE)
                continue
            if self.place.is_local and _user_of(connection) != os.geteuid():
                connection.close()
                continue
            task = self._loop.create_task(self._serve(connection))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            self._unproven[task] = self._loop.time()
            task.add_done_callback(lambda task: self._unproven.pop(task, None))

    async def _limit_unproven(self) -> None:
        """Wait until another unproven connection is allowed, and end those that took too long.

        Otherwise clients that connect repeatedly and send nothing would block all others.
        """
        await asyncio.sleep(0)  # let other tasks run, which accepting does not ensure
        while len(self._unproven) >= MOST_UNPROVEN:
            task, began = next(iter(self._unproven.items()))
            if self._loop.time() - began > HANDSHAKE_TURN:
                del self._unproven[task]
                task.cancel()
            else:
                await asyncio.sleep(HANDSHAKE_TURN / 10)

    async def _serve(self, connection: socket.socket) -> None:
        """Serve one connection until either side ends it."""
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_connection(sock=connection)
            channel = await self._authenticate(reader, writer)
            task = asyncio.current_task()
            assert task is not None, "this runs in a task"
            self._unproven.pop(task, None)
            while channel is not None:
                operation, *arguments = channel.unpack(*await _read_frame(reader))
                writer.write(channel.pack(await self._answer(operation, arguments)))
                await writer.drain()
        except (OSError, EOFError, StoreError, TimeoutError, asyncio.CancelledError):
            pass  # the client has disconnected, or has not proved that it knows the secret
        finally:
            if writer is None:
                connection.close()
            else:
                writer.close()

    async def _authenticate(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Channel | None:
        """Return the channel to a client that knows the secret, None for any other client."""
        mine = secrets.token_bytes(NONCE)
        writer.write(mine)
        answer = await asyncio.wait_for(reader.readexactly(NONCE + DIGEST), HANDSHAKE_WAIT)
        their_proof, own_proof, key = prove(self._secret, mine, answer[:NONCE])
        if not hmac.compare_digest(answer[NONCE:], their_proof):
            return None
        writer.write(own_proof)
        return Channel(key, _TO_CLIENT, _TO_SERVER)

    async def _answer(self, operation: str, arguments: list[Any]) -> Any:
        known = self._values
        match operation, arguments:
            case "set", [values]:
                known.update(values)
                self._notify(values)
            case "get", [keys]:
                await self._wait_for(keys)
                return [known[key] for key in keys]
            case "wait", [keys]:
                await self._wait_for(keys)
            case "look", [keys]:
                return [known.get(key) for key in keys]
            case "compare and set", [key, expected, value]:
                if known.get(key, "") == expected:
                    known[key] = value
                    self._notify([key])
                return known.get(key, expected)
            case "add", [key, amount]:
                number = amount + (int(to_bytes(known[key])) if key in known else 0)
                known[key] = to_text(str(number))
                self._notify([key])
                return number
            case "delete", [key]:
                return known.pop(key, None) is not None
        return None

    async def _wait_for(self, keys: list[str]) -> None:
        """Wait until all these values exist."""
        while missing := [key for key in keys if key not in self._values]:
            for key in missing:
                while key not in self._values:
                    await self._awaited.setdefault(key, asyncio.Event()).wait()

    def _notify(self, keys: Iterable[str]) -> None:
        """Wake the tasks that wait for one of these values."""
        for key in keys:
            if key in self._awaited:
                self._awaited.pop(key).set()


def _user_of(connection: socket.socket) -> int:
    """Return the uid at the other end of a local connection, as the system knows it."""
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", connection.getsockopt(SOL_SOCKET, SO_PEERCRED, size))
    return int(uid)


async def _read_frame(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read the signature and the body of a message."""
    head = await reader.readexactly(HEAD.size + DIGEST)
    (size,) = HEAD.unpack_from(head)
    if size > LARGEST:
        raise StoreError(f"a message of {size} bytes")
    return head[HEAD.size :], await reader.readexactly(size)
