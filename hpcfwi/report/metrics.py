"""The run's numbers, one JSON object a line, one line an epoch (`metrics.jsonl`).

What the numbers are is decided where they are measured, in `inversion`; here they are only kept.
The line of an epoch holds its number as "epoch". A value that takes long to find may be a function,
which is called where a line is written.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcfwi.errors import InputError, WriteFailure
from hpcfwi.system import open_own, open_regular, written_whole

# In place of what a function finds: no text that is written has this character
_LATER = "\0"
_NUMBERS = re.compile(rb"\[[0-9, ]*\]")


def append_metrics(path: Path, record: Mapping[str, Any]) -> None:
    """Add one line to the file, which is made where it is missing.

    Numbers that are not finite become null: JSON has no word for them. After a crash the file may
    end within a line; `mend_metrics` sees to that before the first line is appended.
    Raises `WriteFailure`, and `InputError` for what is no file of its own, as a link.
    """
    try:
        with open(path, "ab", opener=open_own) as file:
            file.write(_line(record))
    except OSError as error:
        raise WriteFailure.of(path, error) from error


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records in the order written; none where there is no file yet.

    A last line that a crash cut short is left out. Raises `InputError` where a line before the last
    is not a JSON object.
    """
    try:
        with open(path, encoding="utf-8", errors="replace", opener=open_regular) as file:
            lines = [line for line in file.read().split("\n") if line]
    except FileNotFoundError:
        return []
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict):
            records.append(record)
        elif number < len(lines):
            raise InputError(
                f"{path}, line {number}",
                f"is not a JSON object: {line[:40]!r}",
                "Mend or delete this line.",
            )
    return records


def mend_metrics(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Have the file hold these records, as a run does that goes on from a checkpoint's history.

    Its lines stay as far as they agree with the records, and what functions of these would find, a
    list of whole numbers, is not found again. What comes after them is cut off, and what is missing
    is written. Where none agrees the file is made anew: at any time, and after a power cut, the old
    one or the new one is whole then. Raises `WriteFailure`.
    """
    records = [*records]
    size, count = _measure_agreeing(path, records)
    missing = map(_line, records[count:])
    if not count:
        with written_whole(path) as file:
            file.writelines(missing)
        return
    try:
        with open(path, "r+b", opener=open_own) as file:
            file.truncate(size)
            file.seek(size)
            file.writelines(missing)
    except OSError as error:
        raise WriteFailure.of(path, error) from error


def _measure_agreeing(path: Path, records: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """Bytes and number of the file's lines that agree with the first of the records."""
    size = count = 0
    try:
        with open(path, "rb", opener=open_own) as file:
            for record in records:
                line = file.readline()
                if not _agrees(line, record):
                    break
                size, count = size + len(line), count + 1
    except (OSError, InputError):  # missing, or no file of its own
        return 0, 0
    return size, count


def _agrees(line: bytes, record: Mapping[str, Any]) -> bool:
    known = {key: _LATER if callable(value) else value for key, value in record.items()}
    begin, later, end = _line(known).partition(json.dumps(_LATER).encode("ascii"))
    if not later:
        return line == begin
    found = line[len(begin) : len(line) - len(end)]
    return line.startswith(begin) and line.endswith(end) and bool(_NUMBERS.fullmatch(found))


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(_plain(record), allow_nan=False).encode("ascii") + b"\n"


def _plain(value: Any) -> Any:
    """The value as JSON can say it: NumPy's numbers and arrays as Python's, not finite as None.

    Of a function what it finds.
    """
    if callable(value):
        return _plain(value())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
