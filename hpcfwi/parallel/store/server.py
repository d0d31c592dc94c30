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
from collections.abc import Iterable
from socket import SO_PEERCRED, SOL_SOCKET
from typing import Any, NamedTuple

from hpcfwi.parallel.store.messages import (
    DIGEST,
    HEAD,
    NONCE,
    Handshake,
    Line,
    StoreError,
    to_bytes,
    to_text,
)

HANDSHAKE_WAIT = 5.0  # s that somebody who has connected may take to prove that he belongs here
HANDSHAKE_TURN = 0.05  # s, the same where others wait outside
STRANGERS = 64  # who are proving it at a time; more wait outside
ACCEPT_PAUSE = 0.1  # s, where nobody can be let in now
LARGEST = 2**28  # bytes of a message
BACKLOG = 1024  # who wait outside; the others try again

SESSION = "session"  # the note of what is different at each start

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
