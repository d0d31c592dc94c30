"""Where the trace headers of a SEG-Y file hold what is needed, and how to read it from there.

What the numbers mean is in `geometry` and `shots`; the file as a whole is in `segy`. Positions are
those of SEG-Y revision 1 (SEG Technical Standards Committee, 2002), counted from 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    """How headers are read.

    fields: by name; constants: what takes the place of a field, as the user knows better; endian:
    ">" or "<" as NumPy has it, "" where the file is to tell.
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
        """How to say where these fields are, or what they hold, as the beginning of a sentence."""
        return (
            f"Say where it is ({', '.join(f'--bytes {name}=POSITION' for name in names)}) or what "
            f"it is ({', '.join(f'--value {name}=NUMBER' for name in names)})"
        )
