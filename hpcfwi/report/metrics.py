"""The run's numbers, one JSON object a line, one line an epoch (`metrics.jsonl`).

What the numbers are is decided where they are measured, in `inversion`; here they are only kept.
The line of an epoch holds its number as "epoch".
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcfwi.errors import InputError, WriteFailure
from hpcfwi.files import open_own, open_regular, written_whole


def append_metrics(path: Path, record: Mapping[str, Any]) -> None:
    """Add one line to the file, which is made where it is missing.

    Numbers that are not finite become null: JSON has no word for them. After a crash the file may
    end within a line; `write_metrics` mends it before the first line is appended.
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


def write_metrics(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Make the file anew, as a run does that goes on from a checkpoint and its history.

    At any time, and after a power cut, the old file or the new one is whole. Raises `WriteFailure`.
    """
    with written_whole(path) as file:
        file.writelines(map(_line, records))


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(_plain(record), allow_nan=False).encode("ascii") + b"\n"


def _plain(value: Any) -> Any:
    """The value as JSON can say it: NumPy's numbers and arrays as Python's, not finite as None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
