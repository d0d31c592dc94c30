"""What is wrong with an input file, in words: the file, the key, what was found, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from pydantic import BaseModel, ValidationError

from hpcfwi.config.values import TAGS
from hpcfwi.config.words import meaning
from hpcfwi.errors import InputError, quote


def explain(
    path: Path, error: ValidationError, table: type[BaseModel], keys: Sequence[str] = ()
) -> InputError:
    """The first thing that is wrong with a table, to which these keys lead, in one sentence."""
    first = error.errors()[0]
    # Where a value may have one of several types, pydantic appends the type that it tried.
    # Stages count from 1.
    *parents, last = (
        str(part + 1 if parent == "stage" and isinstance(part, int) else part)
        for parent, part in pairwise(("", *(first["loc"] or ("the file",))))
    )
    sections = [part for part in parents if part not in TAGS]
    kind, found = first["type"], first["input"]
    if kind == "extra_forbidden":
        name, section = quote(last)[1:-1], ".".join([*keys, *sections])
        known = ", ".join(sorted(_table(sections, table).model_fields))
        return InputError(
            f"{path}: {'.'.join([*keys, *sections, name])}",
            "unknown key",
            f"{section or 'The file'} has the keys {known}.",
        )
    key = ".".join([*keys, *sections, *([] if last in TAGS else [last])])
    if kind == "missing":
        return InputError(
            f"{path}: {key}", "missing", f"Add the key.{_meaning(sections, last, table)}"
        )
    message = first["msg"]
    for start in ("Value error, ", "Input should be ", "Tuple should have "):
        message = message.removeprefix(start)
    if kind == "value_error":
        return InputError(f"{path}: {key}", message, "Change the section.")
    return InputError(
        f"{path}: {key}", f"found {quote(found)}, expected {message}", "Change the value."
    )


def _meaning(sections: list[str], key: str, table: type[BaseModel]) -> str:
    """What the schema says of a key first, if it is one and has words of its own."""
    section = _table(sections, table)
    words = meaning(section, key) if key in section.model_fields else None
    return f" {key}: {words.splitlines()[0]}" if words else ""


def _table(sections: list[str], table: type[BaseModel]) -> type[BaseModel]:
    for key in sections:
        if key.isdigit():  # the place of a table in a list
            continue
        kinds = [table.model_fields[key].annotation]
        while kinds:
            kind = kinds.pop()
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                table = kind
                break
            kinds.extend(getattr(kind, "__args__", ()))
    return table
