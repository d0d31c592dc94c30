"""The dictionary of notes, served by a thread of rank 0.

It can be asked while the ranks compute or wait in collectives. Whoever connects must prove that he
knows the job's secret, as `messages` has it, before anything that he sends is looked at. What the
notes say is the business of those who write them.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import hmac
import os
import secrets
import socket
import struct
import threading
from socket import SO_PEERCRED, SOL_SOCKET
from typing import Any, NamedTuple

from hpcfwi.parallel.store.messages import DIGEST, HEAD, NONCE, Handshake, Line, StoreError

HANDSHAKE_WAIT = 5.0  # s that somebody who has connected may take to prove that he belongs here
STRANGERS = 16  # who are proving it at a time; more wait outside
ACCEPT_PAUSE = 0.1  # s, where nobody can be let in now
LARGEST = 2**28  # bytes of a message
BACKLOG = 1024  # who wait outside; the others try again

_LOCAL = "\0"  # which makes Linux keep a name that is in no file system


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
                await asyncio.sleep(ACCEPT_PAUSE)
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
    head = await reader.readexactly(HEAD.size + DIGEST)
    (size,) = HEAD.unpack_from(head)
    if size > LARGEST:
        raise StoreError(f"a message of {size} bytes")
    return head[HEAD.size :], await reader.readexactly(size)
