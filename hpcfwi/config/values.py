"""What values a key may have, and the units that numbers count; a table of keys is a `Section`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ByteSize,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    model_validator,
)
from pydantic_core import PydanticCustomError

_T = TypeVar("_T")


# In an error's path these stand among the keys, to say which of several types was tried.
TAGS = ("a name", "a table", "a number", "a pair")


def tag_pair(value: object) -> str:
    return "a pair" if isinstance(value, list | tuple) else "a number"


OneOrPair = Annotated[
    Annotated[_T, Tag("a number")] | Annotated[tuple[_T, _T], Field(strict=False), Tag("a pair")],
    Discriminator(tag_pair),
]
"""One number or two: along x, or along y and x; for all epochs, or for the first and the last."""


def _check_name(name: str) -> str:
    try:
        possible = bool(name) and b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise PydanticCustomError("name", "the name of a file or directory")
    return name


@dataclass(frozen=True)
class Unit:
    """What a number counts, beside its type."""

    name: str


# Larger numbers are slips of the pen, and what is computed from them would overflow.
Count = Annotated[int, Field(gt=0, le=10**9)]
Position = Annotated[float, Field(ge=-1e9, le=1e9), Unit("m")]
Length = Annotated[float, Field(gt=0.0, le=1e9), Unit("m")]
Time = Annotated[float, Field(ge=-1e9, le=1e9), Unit("s")]
Seconds = Annotated[float, Field(gt=0.0, le=1e9), Unit("s")]
Hertz = Annotated[float, Field(gt=0.0, le=1e12), Unit("Hz")]
FileName = Annotated[str, AfterValidator(_check_name)]


class Section(BaseModel):
    """A table of the file: unknown keys are errors, "2" is no number, and nan is none either."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def count_bytes(size: str) -> int:
    """Bytes of a size with its unit, such as "12 GB" (1e9 bytes each) or "12 GiB" (2^30).

    Raises ValueError for any other text.
    """
    if size.strip()[-1:].upper() != "B":
        raise ValueError(f"{size!r} has no unit")
    return int(TypeAdapter(ByteSize).validate_python(size))


def check_size(size: object) -> object:
    try:
        possible = isinstance(size, str) and count_bytes(size) > 0
    except (ValueError, OverflowError):
        possible = False
    if not possible:
        raise PydanticCustomError("size", 'a size with its unit, such as "12 GB" or "500 MiB"')
    return size


def exactly_one(*keys: str) -> Any:
    """A check of a section: it has one of these keys."""

    def check(section: Section) -> Section:
        if sum(getattr(section, key) is not None for key in keys) != 1:
            raise ValueError(f"expected exactly one of {', '.join(keys[:-1])} and {keys[-1]}")
        return section

    return model_validator(mode="after")(check)
