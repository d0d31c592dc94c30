"""How the two sides of a connection to the store know each other: proofs, then signed messages.

Both prove that they know the job's secret, before anything else that they send is looked at; every
message after that is signed (HMAC-SHA256) with a key of its connection. Sockets are `server`'s and
`connection`'s.
"""

from __future__ import annotations

import base64
import hmac
import json
import secrets
import struct
from typing import Any

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
    """What nobody can guess."""
    return secrets.token_bytes(DIGEST)


def sign(secret: bytes, *parts: bytes) -> bytes:
    """The HMAC-SHA256 of some parts, whose lengths matter, too."""
    code = hmac.new(secret, digestmod="sha256")
    for part in parts:
        code.update(len(part).to_bytes(8, "big"))
        code.update(part)
    return code.digest()


class Handshake:
    """What follows from the secret and the two numbers that the sides have thought of, (NONCE,)."""

    def __init__(self, secret: bytes, of_server: bytes, of_client: bytes) -> None:
        self._secret, self._numbers = secret, (of_server, of_client)

    @property
    def proof_of_client(self) -> bytes:
        """What only a client that knows the secret can say."""
        return self._sign(b"client")

    @property
    def proof_of_server(self) -> bytes:
        """What only a server that knows it can answer."""
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
        return HEAD.pack(len(body)) + signature + body

    def unpack(self, signature: bytes, body: bytes) -> Any:
        """What was sent; raises `StoreError` where it is not signed as the next message."""
        expected = self._sign(self._receives, self._received, body)
        if not hmac.compare_digest(signature, expected):
            raise StoreError("a message on the way between the ranks and their store was changed")
        self._received += 1
        return json.loads(body)

    def _sign(self, direction: bytes, number: int, body: bytes) -> bytes:
        return sign(self._key, direction, number.to_bytes(8, "big"), body)
