"""The layout of a SEG-Y or Seismic Unix file, and how far its headers are believed.

A SEG-Y file (SEG Technical Standards Committee, revisions 0 to 2.1) has 3200 bytes of text, 400
bytes of numbers (the file header), further text headers of 3200 bytes each, and traces of one
length, each after a header of 240 bytes, or of several times 240. Since revision 2 trailers of 3200
bytes may follow. A Seismic Unix file has traces only.

Trace headers are read at the positions of revision 1 (SEG Technical Standards Committee, 2002),
counted from 1, or where the request says. `geometry` and `choosing` say what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from hpcfwi.errors import InputError, refusing
from hpcfwi.system import open_regular

HEADER = 240  # bytes before the samples of each trace
TYPES = ("i2", "i4", "u2", "u4", "f4", "f8")


@dataclass(frozen=True)
class Field:
    """A number in each trace header. at: its first byte, from 1, or 0 for none; kind: NumPy's."""

    at: int
    kind: str = "i4"

    def __str__(self) -> str:
        return f"bytes {self.at}-{self.at + int(self.kind[1]) - 1}"


FIELDS = {
    "record": Field(9),
    "channel": Field(13),
    "shot_point": Field(17),
    "code": Field(29, "i2"),
    "offset": Field(37),
    "receiver_elevation": Field(41),
    "source_elevation": Field(45),
    "source_depth": Field(49),
    "receiver_depth": Field(0),  # the standard has none
    "elevation_scalar": Field(69, "i2"),
    "coordinate_scalar": Field(71, "i2"),
    "source_x": Field(73),
    "source_y": Field(77),
    "receiver_x": Field(81),
    "receiver_y": Field(85),
    "unit": Field(89, "i2"),
    "delay": Field(109, "i2"),
    "samples": Field(115, "u2"),
    "interval": Field(117, "u2"),
    "time_scalar": Field(215, "i2"),
    "cdp_x": Field(181),
    "cdp_y": Field(185),
    "inline": Field(189),
    "crossline": Field(193),
    # Of the file, whose header has its own places for them; here so that a value can be given
    "format": Field(0),
    "measurement": Field(0),
    "revision": Field(0),
    "texts": Field(0),
    "extra_headers": Field(0),
    "traces": Field(0),
}

# The first additional header of a trace, since revision 2: its name, and the fields of which it has
# a double, in m or feet without a scalar, that counts where it is not 0.
EXTENSION = Field(HEADER + 233, "S8")
EXTENSION_NAMES = tuple("SEG00001".encode(encoding) for encoding in ("ascii", "cp037"))
EXTENDED = {
    "receiver_elevation": Field(HEADER + 33, "f8"),
    "source_elevation": Field(HEADER + 49, "f8"),
    "source_depth": Field(HEADER + 57, "f8"),
    "receiver_depth": Field(HEADER + 41, "f8"),
    "source_x": Field(HEADER + 97, "f8"),
    "source_y": Field(HEADER + 105, "f8"),
    "receiver_x": Field(HEADER + 113, "f8"),
    "receiver_y": Field(HEADER + 121, "f8"),
}


@dataclass(frozen=True)
class Headers:
    """The way in which headers are read.

    fields: by name; constants: values that the user gives in place of a field; endian: ">" or "<"
    as in NumPy, "" to detect it.
    """

    fields: Mapping[str, Field]
    constants: Mapping[str, float]
    endian: str = ""

    def read(self, name: str, raw: NDArray[np.uint8], endian: str) -> NDArray:
        """A field of some trace headers (trace, 240); (trace,)."""
        if name in self.constants:
            return np.full(len(raw), self.constants[name])
        field = self.fields[name]
        if not field.at:
            return np.zeros(len(raw), dtype=np.int16)
        size = int(field.kind[1])
        part = np.ascontiguousarray(raw[:, field.at - 1 : field.at - 1 + size])
        kind = field.kind if field.kind[0] != "f" else f"f{size}"
        return part.view(endian + kind)[:, 0].astype(kind)

    def where(self, *names: str) -> str:
        """The places of fields, for a message."""
        return ", ".join(
            f"--value {name}" if name in self.constants else f"{self.fields[name]} ({name})"
            for name in names
        )

    def remedy(self, *names: str) -> str:
        """Return the beginning of a remedy: options for the place or the value of these fields."""
        return (
            f"Say where it is ({', '.join(f'--bytes {name}=POSITION' for name in names)}) or what "
            f"it is ({', '.join(f'--value {name}=NUMBER' for name in names)})"
        )


TEXT, FILE_HEADER = 3200, 3600
IBM, IEEE = 1, 5
# NumPy's types of the formats of samples, by their codes
FORMATS = {IBM: "u4", 2: "i4", 3: "i2", IEEE: "f4", 6: "f8", 8: "i1", 10: "u4", 11: "u2", 16: "u1"}
NEWEST = 2  # revision of the standard
LARGEST_GAP = 2**20  # bytes of zeros before the first trace
ORDER = {b"\1\2\3\4": ">", b"\4\3\2\1": "<"}  # bytes 3297-3300 since revision 2
CHARACTERS = [
    {*range(32, 127), *b"\t\n\r\f"},
    {code for code in range(256) if bytes([code]).decode("cp037").isascii() and code >= 64}
    | {0x05, 0x0C, 0x0D, 0x15, 0x25},
]
"""Codes of ASCII's and EBCDIC's characters."""


@dataclass(frozen=True)
class Layout:
    """The places of everything in a SEG-Y file.

    Parameters
    ----------
    endian : str
        ">" or "<".
    code : int
        Format of the samples.
    n_samples : int
        Samples of each trace.
    first : int
        Byte, from 0, of the first trace.
    interval : float
        Microseconds; 0 where the file header has none.
    in_feet : bool
        The file header has lengths in feet.
    header : int
        Bytes of each trace's headers.
    revision : int
        Revision of the standard; 0 for a Seismic Unix file.
    interval_at : str
        Where the interval was read.
    """

    path: Path
    size: int
    endian: str
    code: int
    n_samples: int
    first: int
    n_traces: int
    interval: float
    in_feet: bool
    header: int = HEADER
    revision: int = 0
    interval_at: str = "bytes 3217-3218"

    @property
    def trace_size(self) -> int:
        return self.header + self.n_samples * np.dtype(FORMATS[self.code]).itemsize


def read_layout(path: Path, headers: Headers) -> Layout:
    """Read how a file is laid out.

    Raises
    ------
    InputError
        With the bytes that were read, for what cannot be meant.
    """
    with open_binary(path) as file:
        return _UnixFile(path, file, headers).find() or _StandardFile(path, file, headers).find()


def open_binary(path: Path) -> BinaryIO:
    """Open a file for reading; raises `InputError`."""
    with refusing(str(path), "it cannot be read", "Check the name and its permissions."):
        return open(path, "rb", buffering=0, opener=open_regular)


class _File:
    """A file that is looked into, and what the user knows of it."""

    def __init__(self, path: Path, file: BinaryIO, headers: Headers) -> None:
        self.path, self.file, self.headers = path, file, headers
        self.given = headers.constants
        self.size = file.seek(0, 2)

    def bytes_at(self, start: int, count: int) -> bytes:
        """Bytes from a position, counted from 0; fewer where the file ends."""
        with refusing(str(self.path), "it cannot be read", "See to its file system."):
            self.file.seek(start)
            return self.file.read(count)

    def samples_at(self, start: int, endian: str) -> int:
        """The number of samples in the header of a trace that begins at a byte; 0 for none."""
        field = self.headers.fields["samples"]
        found = self.bytes_at(start + field.at - 1, 2)
        return int(np.frombuffer(found, f"{endian}u2")[0]) if len(found) == 2 else 0


class _UnixFile(_File):
    """A Seismic Unix file: traces of IEEE floats from the first byte on."""

    def find(self) -> Layout | None:
        """Return its layout, None if neither the file nor its name is of this kind."""
        named = self.path.suffix.lower() == ".su"
        found = []
        for endian in [self.headers.endian] if self.headers.endian else ["<", ">"]:
            told = self.samples_at(0, endian)
            samples = int(self.given.get("samples", told)) if named else told
            trace = HEADER + 4 * samples
            n_traces, rest = divmod(self.size, trace)
            others = {1 % max(n_traces, 1), n_traces // 2, max(n_traces - 1, 0)}
            if samples < 1 or n_traces < 1 or rest:
                continue
            if samples == told and any(
                self.samples_at(n * trace, endian) != samples for n in others
            ):
                continue
            layout = Layout(
                self.path, self.size, endian, IEEE, samples, 0, n_traces, 0, False, interval_at=""
            )
            interval = np.frombuffer(self.bytes_at(116, 2), f"{endian}u2")[0]
            found.append((int(interval), layout))
        if found:
            # 257 samples are the same number in both orders, and 4000 microseconds are not
            return min(found, key=lambda pair: pair[0])[1]
        if named:
            told = self.samples_at(0, self.headers.endian or "<")
            raise InputError(
                f"{self.path}, {self.headers.where('samples')}",
                f"{self.size} bytes are no whole traces of {told} samples, each after a header of "
                f"{HEADER} bytes, as a Seismic Unix file has them",
                "Copy it again if it is cut short, give --value samples=NUMBER if that is wrong, "
                "or let its name end with .sgy if it is SEG-Y.",
            )
        return None


class _StandardFile(_File):
    """A SEG-Y file, whose file header is believed as far as its revision goes."""

    endian = ">"

    def find(self) -> Layout:
        """Return its layout."""
        self.start = self.bytes_at(0, FILE_HEADER)
        if len(self.start) < FILE_HEADER:
            raise InputError(
                str(self.path),
                f"it has {self.size} bytes, and a SEG-Y file {FILE_HEADER} before its first trace",
                "Give a SEG-Y file, and copy it again if this one is cut short.",
            )
        self.revision, minor = self._find_revision()
        self.endian, self.code = self._find_format()
        second = self.revision >= 2
        # Four bytes in revision 2.0, of which 2.1 gives the last two to something else
        self.extra_at, kind = ("3507-3510", "u4") if not minor else ("3507-3508", "i2")
        self.extra = self._take("extra_headers", self.number(3507, kind) if second else 0)
        self.header = HEADER * (1 + self.extra)
        if not 0 <= self.extra <= 255:
            raise InputError(
                f"{self.path}, bytes {self.extra_at}",
                f"found {self.extra} additional headers of each trace, expected up to 255",
                "Give --value extra_headers=0, or their number.",
            )
        self.first = self._find_first()
        wide = second and self.number(3269, "u4") and "samples" not in self.given
        at = "3269-3272" if wide else "3221-3222"
        samples = self._take("samples", self.number(*((3269, "u4") if wide else (3221, "u2"))))
        self.width = np.dtype(FORMATS[self.code]).itemsize
        if samples < 1:
            raise InputError(
                f"{self.path}, bytes {at}",
                f"found {samples} samples a trace",
                f"Give their number with --value samples={self._guess_samples() or 'NUMBER'}.",
            )
        n_traces = self._count_traces(samples, at)
        exact = second and float(np.frombuffer(self.start, f"{self.endian}f8", 1, 3272)[0])
        return Layout(
            self.path,
            self.size,
            self.endian,
            self.code,
            samples,
            self.first,
            n_traces,
            exact or self.number(3217, "u2"),
            self.given.get("measurement", self.number(3255, "i2")) == 2,
            self.header,
            self.revision,
            "bytes 3273-3280" if exact else "bytes 3217-3218",
        )

    def number(self, at: int, kind: str) -> int:
        """A whole number of the file header at a byte, counted from 1."""
        return int(np.frombuffer(self.start, self.endian + kind, 1, at - 1)[0])

    def _take(self, name: str, read: int) -> int:
        return int(self.given.get(name, read))

    def _find_revision(self) -> tuple[int, int]:
        """The revision and its second number, of which some files have the first only, as 0, 1."""
        major, minor = self.start[3500:3502]
        if not major:
            major, minor = minor, 0
        if "revision" in self.given:
            return int(self.given["revision"]), minor
        if major > NEWEST:
            raise InputError(
                f"{self.path}, bytes 3501-3502",
                f"found revision {self.start[3500]}.{self.start[3501]} of SEG-Y, expected 0 to "
                f"{NEWEST}.1",
                "Give --value revision=0, for which all bytes from 3261 on mean nothing, or 1 or "
                "2 if it is one of these.",
            )
        return major, minor

    def _find_format(self) -> tuple[str, int]:
        """The byte order, and the code of the samples' format."""
        told = ORDER.get(self.start[3296:3300]) if self.revision >= 2 else None
        order = self.headers.endian or told
        orders = [order] if order else [">", "<"]
        codes = {
            order: int(np.frombuffer(self.start, f"{order}u2", 1, 3224)[0]) for order in orders
        }
        # Where the code tells no order it is that of most files
        order = next((order for order, code in codes.items() if code in FORMATS), orders[0])
        code, where = codes[order], f"{self.path}, bytes 3225-3226"
        if "format" in self.given:
            code, where = int(self.given["format"]), "--value format"
        if code not in FORMATS:
            raise InputError(
                where,
                f"found {code} as format of the samples of {self.path}, expected one of "
                f"{', '.join(map(str, FORMATS))} (1: IBM, 5: IEEE floats), in either byte order",
                "Give a SEG-Y file, or the format with --value format=CODE and --endian big or "
                "little.",
            )
        return order, code

    def _find_first(self) -> int:
        """The byte, from 0, of the first trace, behind all text headers."""
        if "texts" in self.given:
            return FILE_HEADER + TEXT * max(0, int(self.given["texts"]))
        there = self._count_texts()
        texts, offset = self.number(3505, "i2"), 0
        if not self.revision and texts != there:
            texts = 0  # bytes without a meaning
        where, problem = "3505-3506", f"found {texts} more text headers"
        if self.revision >= 2:
            offset = self.number(3521, "u8")
        if offset:
            where, problem = "3521-3528", f"found byte {offset} as the first of the traces"
            before = FILE_HEADER + TEXT * there
            gap = offset - before
            if 0 <= gap <= LARGEST_GAP and not any(self.bytes_at(before, gap)):
                return offset
        elif texts == -1:
            blocks = (self._text(n) for n in range(there))
            ends = [n for n, block in enumerate(blocks, 1) if _is_last_stanza(block)]
            if ends:
                return FILE_HEADER + TEXT * ends[0]
            problem += ", all up to ((SEG: EndText)), which is not there"
        elif texts == there:
            return FILE_HEADER + TEXT * texts
        raise InputError(
            f"{self.path}, bytes {where}",
            f"{problem} (revision {self.revision} of SEG-Y), and {there} blocks of {TEXT} bytes "
            "of text follow the file header",
            f"Give --value texts={there}, or another number if that is wrong.",
        )

    def _count_texts(self) -> int:
        """Blocks of text that follow the file header."""
        count = 0
        while _is_text(self._text(count)):
            count += 1
        return count

    def _text(self, number: int) -> bytes:
        return self.bytes_at(FILE_HEADER + TEXT * number, TEXT)

    def _guess_samples(self) -> int:
        """Samples a trace as the first trace's header has them; 0 where the file's size differs."""
        told = self.samples_at(self.first, self.endian)
        rest = (self.size - self.first) % (self.header + told * self.width)
        return 0 if rest else told

    def _count_traces(self, samples: int, at: str) -> int:
        """The number of traces, each with so many samples, as the bytes `at` have them."""
        trace, room = self.header + samples * self.width, max(0, self.size - self.first)
        given = self.given.get("traces")
        if given is not None:
            if not 1 <= given <= room // trace:
                raise InputError(
                    "--value traces",
                    f"found {given:g}, and {self.path} has {room // trace} whole traces of {trace} "
                    f"bytes, from byte {self.first} on",
                    "Give a number from 1 to that.",
                )
            return int(given)
        told, trailers = 0, 0
        if self.revision >= 2:
            told, trailers = self.number(3513, "u8"), self.number(3529, "i4")
        there = 0
        while TEXT * (there + 1) <= room and _is_text(
            self.bytes_at(self.size - TEXT * (there + 1), TEXT)
        ):
            there += 1
        n_traces, rest = divmod(room - TEXT * there, trace)
        if n_traces and not rest and told in (0, n_traces) and trailers in (-1, there):
            return n_traces
        problem = (
            f"it ends within trace {n_traces + 1}" if rest else f"it has {n_traces} traces"
        ) + (
            f": {room} bytes from byte {self.first} on, of which each trace has {trace}, with "
            f"{samples} samples (bytes {at}) of format {self.code} (bytes 3225-3226)"
        )
        if self.extra:
            problem += f" and {self.extra} additional headers (bytes {self.extra_at})"
        if there or trailers:
            problem += f"; {there} trailers of text, of which bytes 3529-3532 say {trailers}"
        if told:
            problem += f"; bytes 3513-3520 say {told} traces"
        # What has another number of samples is no trace
        told_first = self.samples_at(self.first, self.endian)
        while (
            told_first
            and n_traces
            and told_first != self.samples_at(self.first + (n_traces - 1) * trace, self.endian)
        ):
            n_traces -= 1
        remedy = "Copy it again if it is cut short; "
        if n_traces:
            remedy += (
                f"if all traces are there, --value traces={n_traces} leaves out what follows; "
            )
        remedy += (
            "if a header is wrong, --value samples=NUMBER, format=CODE, texts=NUMBER or "
            "extra_headers=NUMBER tells better."
        )
        guess = self._guess_samples()
        if guess not in (0, samples):
            remedy = f"Give --value samples={guess}, as bytes 115-116 of the first trace say."
        raise InputError(str(self.path), problem, remedy)


def _is_text(block: bytes) -> bool:
    """A whole block holds nothing but characters, in ASCII or EBCDIC."""
    return len(block) == TEXT and any(characters.issuperset(block) for characters in CHARACTERS)


def _is_last_stanza(block: bytes) -> bool:
    """A block of text begins with the stanza that ends a variable number of them."""
    texts = (block.decode(encoding, "replace") for encoding in ("ascii", "cp037"))
    return any("".join(t.split()).upper().startswith("((SEG:ENDTEXT))") for t in texts)
