"""The layout of a SEG-Y or Seismic Unix file, and the check of its headers against its contents.

A SEG-Y file (SEG Technical Standards Committee, revisions 0 to 2.1) has 3200 bytes of text, 400
bytes of numbers (the file header), further text headers of 3200 bytes each, and traces of one
length, each after a header of 240 bytes or a multiple of it. Since revision 2 text trailers of 3200
bytes may follow. A Seismic Unix file has traces only.

Trace headers are read at the positions of revision 1 (SEG Technical Standards Committee, 2002),
counted from 1, or at those of the request. `segy` and `choosing` interpret the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from hpcfwi.errors import InputError, refusing
from hpcfwi.system import open_regular

HEADER = 240  # bytes of a standard trace header
TYPES = ("i2", "i4", "u2", "u4", "f4", "f8")


@dataclass(frozen=True)
class Field:
    """The place of a number in each trace header.

    at: its first byte, counted from 1, or 0 if the headers do not have it; kind: NumPy type.
    """

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
    # Fields of the file header, listed here so that `--value` accepts them
    "format": Field(0),
    "measurement": Field(0),
    "revision": Field(0),
    "texts": Field(0),
    "extra_headers": Field(0),
    "traces": Field(0),
}

# The first additional header of a trace, since revision 2: its name, and its fields, which are
# doubles in m or feet without a scalar and are used where they are not 0.
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
    """The rules by which headers are read.

    fields: by name; constants: values that the user gives in place of fields; endian: ">" or "<"
    as in NumPy, or "" to detect it.
    """

    fields: Mapping[str, Field]
    constants: Mapping[str, float]
    endian: str = ""

    def read(self, name: str, raw: NDArray[np.uint8], endian: str) -> NDArray:
        """Return a field (trace,) of raw trace headers (trace, byte)."""
        if name in self.constants:
            return np.full(len(raw), self.constants[name])
        place = self.fields[name]
        if not place.at:
            return np.zeros(len(raw), dtype=np.int16)
        size = int(place.kind[1])
        part = np.ascontiguousarray(raw[:, place.at - 1 : place.at - 1 + size])
        return part.view(endian + place.kind)[:, 0].astype(place.kind)

    def where(self, *names: str) -> str:
        """Return the places of fields as a text for messages."""
        return ", ".join(
            f"--value {name}" if name in self.constants else f"{self.fields[name]} ({name})"
            for name in names
        )


TEXT, FILE_HEADER = 3200, 3600
IBM, IEEE = 1, 5
# NumPy types of the sample formats, by code; IBM floats are decoded from their bits
FORMATS = {IBM: "u4", 2: "i4", 3: "i2", IEEE: "f4", 6: "f8", 8: "i1", 10: "u4", 11: "u2", 16: "u1"}
NEWEST = 2  # major revision of the standard
LARGEST_GAP = 2**20  # bytes of zeros before the first trace
ORDER = {b"\1\2\3\4": ">", b"\4\3\2\1": "<"}  # bytes 3297-3300 since revision 2
# Bytes that are characters of a text in ASCII, and in EBCDIC
CHARACTERS = [
    {*range(32, 127), *b"\t\n\r\f"},
    {code for code in range(256) if bytes([code]).decode("cp037").isascii() and code >= 64}
    | {0x05, 0x0C, 0x0D, 0x15, 0x25},
]


@dataclass(frozen=True)
class FileLayout:
    """The layout of a SEG-Y or Seismic Unix file.

    headers: the rules by which it was read; size: of the file, bytes; endian: ">" or "<"; code: of
    the sample format; first: position of the first trace, in bytes from 0; interval: sampling
    interval of the file header, microseconds, 0 if it has none; header: bytes of all headers of a
    trace; revision: major revision of the standard, 0 for Seismic Unix; interval_at: bytes from
    which the interval was read, for messages.
    """

    path: Path
    headers: Headers = field(repr=False)
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

    def where(self, *names: str) -> str:
        """Return the file and the places of fields of trace headers as a text for messages."""
        return f"{self.path}, {self.headers.where(*names)}"


def read_layout(path: Path, headers: Headers) -> FileLayout:
    """Read the layout of a SEG-Y or Seismic Unix file.

    Raises `InputError` if headers have impossible values or contradict the contents.
    """
    with open_binary(path) as file:
        opened = _File(path, file, headers)
        return opened.find_unix() or opened.find_standard()


def open_binary(path: Path) -> BinaryIO:
    """Open a file for unbuffered reading; raises `InputError`."""
    with refusing(str(path), "it cannot be read", "Check the name and its permissions."):
        return open(path, "rb", buffering=0, opener=open_regular)


class _File:
    """An open file whose layout is to be found, and the values that the user gives for it.

    Fields of the file header of SEG-Y are used from the revision on that defines them.
    """

    endian = ">"

    def __init__(self, path: Path, file: BinaryIO, headers: Headers) -> None:
        self.path, self.file, self.headers = path, file, headers
        self.given = headers.constants
        self.size = file.seek(0, 2)
        self.make_layout = partial(FileLayout, path, headers, self.size)

    def bytes_at(self, start: int, count: int) -> bytes:
        """Read bytes from a position counted from 0, fewer if the file ends before."""
        with refusing(str(self.path), "it cannot be read", "Check its file system."):
            self.file.seek(start)
            return self.file.read(count)

    def samples_at(self, start: int, endian: str) -> int:
        """Read the number of samples from the header of the trace at byte `start`; 0 if missing."""
        at = self.headers.fields["samples"].at
        found = self.bytes_at(start + at - 1, 2)
        return int(np.frombuffer(found, f"{endian}u2")[0]) if len(found) == 2 else 0

    def find_unix(self) -> FileLayout | None:
        """Return the layout of a Seismic Unix file: IEEE floats from the first byte on.

        It is None if neither the contents nor the name are of this kind.
        """
        named = self.path.suffix.lower() == ".su"
        found = []
        for endian in [self.headers.endian] if self.headers.endian else ["<", ">"]:
            stated = self.samples_at(0, endian)
            samples = int(self.given.get("samples", stated)) if named else stated
            trace = HEADER + 4 * samples
            if samples < 1 or self.size < trace or self.size % trace:
                continue
            n_traces = self.size // trace
            others = {1 % n_traces, n_traces // 2, n_traces - 1}
            if samples == stated and any(
                self.samples_at(n * trace, endian) != samples for n in others
            ):
                continue
            layout = self.make_layout(
                endian=endian,
                code=IEEE,
                n_samples=samples,
                first=0,
                n_traces=n_traces,
                interval=0,
                in_feet=False,
                interval_at="",
            )
            interval = np.frombuffer(self.bytes_at(116, 2), f"{endian}u2")[0]
            found.append((int(interval), layout))
        if found:
            # Some numbers of samples, such as 257, are the same in both byte orders. The interval
            # then determines the order: 4000 microseconds are 40975 in the other one.
            return min(found, key=lambda pair: pair[0])[1]
        if named:
            stated = self.samples_at(0, self.headers.endian or "<")
            samples = int(self.given.get("samples", stated))
            raise InputError(
                f"{self.path}, {self.headers.where('samples')}",
                f"{self.size} bytes are not a whole number of traces of {samples} samples, each "
                f"after a header of {HEADER} bytes, as in a Seismic Unix file",
                "Copy it again if it is cut short, give --value samples=NUMBER if the number of "
                "samples is wrong, or change the suffix to .sgy if it is SEG-Y.",
            )
        return None

    def find_standard(self) -> FileLayout:
        """Return the layout of a SEG-Y file; raises `InputError`."""
        self.start = self.bytes_at(0, FILE_HEADER)
        if len(self.start) < FILE_HEADER:
            raise InputError(
                str(self.path),
                f"it has {self.size} bytes, but SEG-Y has {FILE_HEADER} before the first trace",
                "Give a SEG-Y file, and copy it again if this one is cut short.",
            )
        self.revision, minor = self._find_revision()
        self.endian, self.code = self._find_format()
        second = self.revision >= 2
        # The field has four bytes in revision 2.0, and only the first two of these in 2.1
        self.extra_at, kind = ("3507-3510", "u4") if not minor else ("3507-3508", "i2")
        stated = self.number(3507, kind) if second else 0
        self.extra = int(self.given.get("extra_headers", stated))
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
        stated = self.number(3269, "u4") if wide else self.number(3221, "u2")
        samples = int(self.given.get("samples", stated))
        self.width = np.dtype(FORMATS[self.code]).itemsize
        if samples < 1:
            raise InputError(
                f"{self.path}, bytes {at}",
                f"found {samples} samples per trace",
                f"Give their number with --value samples={self._guess_samples() or 'NUMBER'}.",
            )
        n_traces = self._count_traces(samples, at)
        exact = second and float(np.frombuffer(self.start, f"{self.endian}f8", 1, 3272)[0])
        return self.make_layout(
            endian=self.endian,
            code=self.code,
            n_samples=samples,
            first=self.first,
            n_traces=n_traces,
            interval=exact or self.number(3217, "u2"),
            in_feet=self.given.get("measurement", self.number(3255, "i2")) == 2,
            header=self.header,
            revision=self.revision,
            interval_at="bytes 3273-3280" if exact else "bytes 3217-3218",
        )

    def number(self, at: int, kind: str) -> int:
        """Return the integer of the file header at a byte counted from 1."""
        return int(np.frombuffer(self.start, self.endian + kind, 1, at - 1)[0])

    def _find_revision(self) -> tuple[int, int]:
        """Return the major and the minor revision.

        Some files have the major revision in the second byte, after a 0.
        """
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
                "Give --value revision=0 to ignore all bytes from 3261 on, or 1 or 2 if the file "
                "has that revision.",
            )
        return major, minor

    def _find_format(self) -> tuple[str, int]:
        """Return the byte order and the code of the sample format."""
        marked = ORDER.get(self.start[3296:3300]) if self.revision >= 2 else None
        order = self.headers.endian or marked
        orders = [order] if order else [">", "<"]
        codes = {
            order: int(np.frombuffer(self.start, f"{order}u2", 1, 3224)[0]) for order in orders
        }
        # If neither order gives a valid code, the order is big-endian, as in most files.
        order = next((order for order, code in codes.items() if code in FORMATS), orders[0])
        code, where = codes[order], f"{self.path}, bytes 3225-3226"
        if "format" in self.given:
            code, where = int(self.given["format"]), "--value format"
        if code not in FORMATS:
            raise InputError(
                where,
                f"found {code} as the sample format of {self.path}, expected one of "
                f"{', '.join(map(str, FORMATS))} (1: IBM, 5: IEEE floats), in either byte order",
                "Give a SEG-Y file, or the format with --value format=CODE and --endian big or "
                "little.",
            )
        return order, code

    def _find_first(self) -> int:
        """Return the position of the first trace, in bytes from 0, after all text headers."""
        if "texts" in self.given:
            return min(self.size, FILE_HEADER + TEXT * max(0, int(self.given["texts"])))
        there = next(n for n in count() if not _is_text(self._text(n)))
        texts, offset = self.number(3505, "i2"), 0
        if not self.revision and texts != there:
            texts = 0  # revision 0 does not define these bytes
        where, problem = "3505-3506", f"found {texts} additional text headers"
        if self.revision >= 2:
            offset = self.number(3521, "u8")
        if offset:
            where, problem = "3521-3528", f"found byte {offset} as the start of the traces"
            before = FILE_HEADER + TEXT * there
            gap = offset - before
            if 0 <= gap <= LARGEST_GAP and not any(self.bytes_at(before, gap)):
                return offset
        elif texts == -1:
            blocks = (self._text(n) for n in range(there))
            ends = [n for n, block in enumerate(blocks, 1) if _is_last_stanza(block)]
            if ends:
                return FILE_HEADER + TEXT * ends[0]
            problem += ", which means up to ((SEG: EndText)), which the file does not have"
        elif texts == there:
            return FILE_HEADER + TEXT * texts
        raise InputError(
            f"{self.path}, bytes {where}",
            f"{problem} (revision {self.revision} of SEG-Y), but {there} blocks of {TEXT} bytes "
            "of text follow the file header",
            f"Give --value texts={there}, or another number if that is wrong.",
        )

    def _text(self, number: int) -> bytes:
        return self.bytes_at(FILE_HEADER + TEXT * number, TEXT)

    def _guess_samples(self) -> int:
        """Return the number of samples in the first trace header, or 0 if the size does not fit."""
        samples = self.samples_at(self.first, self.endian)
        rest = (self.size - self.first) % (self.header + samples * self.width)
        return 0 if rest else samples

    def _count_traces(self, samples: int, at: str) -> int:
        """Return the number of traces with so many samples each, which bytes `at` of the file hold.

        Raises `InputError` if the size of the file, or the numbers of traces and trailers in the
        file header, disagree.
        """
        trace, room = self.header + samples * self.width, max(0, self.size - self.first)
        given = self.given.get("traces")
        if given is not None:
            if not 1 <= given <= room // trace:
                raise InputError(
                    "--value traces",
                    f"found {given:g}, but {self.path} has {room // trace} whole traces of {trace} "
                    f"bytes, from byte {self.first} on",
                    "Give a number from 1 to this one.",
                )
            return int(given)
        stated, trailers = 0, 0
        if self.revision >= 2:
            stated, trailers = self.number(3513, "u8"), self.number(3529, "i4")
        texts = 0
        while TEXT * (texts + 1) <= room and _is_text(
            self.bytes_at(self.size - TEXT * (texts + 1), TEXT)
        ):
            texts += 1
        n_traces, rest = divmod(room - TEXT * texts, trace)
        if n_traces and not rest and stated in (0, n_traces) and trailers in (-1, texts):
            return n_traces
        problem = f"it ends within trace {n_traces + 1}" if rest else f"it has {n_traces} traces"
        problem += (
            f": {room} bytes follow from byte {self.first} on, and each trace has {trace}, with "
            f"{samples} samples (bytes {at}) of format {self.code} (bytes 3225-3226)"
        )
        if self.extra:
            problem += f" and {self.extra} additional headers (bytes {self.extra_at})"
        if texts or trailers:
            problem += f"; it has {texts} text trailers, and bytes 3529-3532 give {trailers}"
        if stated:
            problem += f"; bytes 3513-3520 give {stated} traces"
        # A record with another number of samples than the first trace is not a trace.
        samples_first = self.samples_at(self.first, self.endian)
        while (
            samples_first
            and n_traces
            and samples_first != self.samples_at(self.first + (n_traces - 1) * trace, self.endian)
        ):
            n_traces -= 1
        remedy = "Copy it again if it is cut short; "
        if n_traces:
            remedy += (
                f"if all traces are there, give --value traces={n_traces} to ignore the rest; "
            )
        remedy += (
            "if a header is wrong, give the right number with --value samples=NUMBER, "
            "format=CODE, texts=NUMBER or extra_headers=NUMBER."
        )
        guess = self._guess_samples()
        if guess not in (0, samples):
            remedy = f"Give --value samples={guess}, as bytes 115-116 of the first trace say."
        raise InputError(str(self.path), problem, remedy)


def _is_text(block: bytes) -> bool:
    """Return True if a block has full length and only characters of ASCII or of EBCDIC."""
    return len(block) == TEXT and any(characters.issuperset(block) for characters in CHARACTERS)


def _is_last_stanza(block: bytes) -> bool:
    """Return True if a block of text begins with the stanza that marks the last text header."""
    texts = (block.decode(encoding, "replace") for encoding in ("ascii", "cp037"))
    return any("".join(t.split()).upper().startswith("((SEG:ENDTEXT))") for t in texts)
