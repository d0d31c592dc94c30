"""Measurements of files: reading of observed data, compared with a plain file, and checkpoints."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcfwi.bench.waves import median_ratio, time_in_turns
from hpcfwi.parallel.context import Context
from hpcfwi.storage.checkpoint import load_latest_checkpoint, save_checkpoint
from hpcfwi.storage.gathers import GatherReader, create_gathers
from hpcfwi.survey import Survey

SHOTS, RECEIVERS, SAMPLES = 32, 400, 1500
CELLS = 1_000_000


def compare_reading(folder: Path, repetitions: int) -> dict[str, Any]:
    """Measure the rates of reading all shots of a gathers file and of a plain file.

    Both have the same bytes, and are read in the same random order. After the first time both are
    in the system's cache, so that the overhead of the format is measured, not the disk.
    """
    rng = np.random.default_rng(0)
    data = rng.normal(size=(SHOTS, RECEIVERS, SAMPLES)).astype(np.float32)
    places = np.zeros((SHOTS, 2)), np.zeros((RECEIVERS, 2))
    survey = Survey(*places, np.ones(SAMPLES, np.float32), 1e-3)
    order = rng.permutation(SHOTS).astype(np.int64)
    with create_gathers(folder / "gathers.h5", survey, Context.alone()) as writer:
        writer.write(np.arange(SHOTS), data)
    plain = folder / "plain.bin"
    plain.write_bytes(data.tobytes())

    def read_plainly() -> None:
        traces = np.empty_like(data)
        with plain.open("rb", buffering=0) as file:
            for gather, shot in zip(traces, order, strict=True):
                file.seek(int(shot) * gather.nbytes)
                file.readinto(gather.data)

    with GatherReader(folder / "gathers.h5", Context.alone()) as reader:
        works: dict[str, Callable[[], object]] = {
            "gathers": lambda: reader.read(order),
            "plain": read_plainly,
        }
        seconds = time_in_turns(works, repetitions)
    return {
        "bytes": data.nbytes,
        "gathers_bytes_per_second": data.nbytes / statistics.median(seconds["gathers"]),
        "plain_bytes_per_second": data.nbytes / statistics.median(seconds["plain"]),
        "ratio": median_ratio(seconds["plain"], seconds["gathers"]),
    }


def measure_checkpoints(folder: Path, repetitions: int) -> dict[str, Any]:
    """Measure the seconds to write and to read the checkpoint of Adam for a million cells."""
    cells = torch.zeros(CELLS)
    payload = {"model": cells, "first": cells.clone(), "second": cells.clone()}
    works: dict[str, Callable[[], object]] = {
        "write": lambda: save_checkpoint(folder, 1, payload),
        "read": lambda: load_latest_checkpoint(folder),
    }
    seconds = time_in_turns(works, repetitions)
    return {
        "cells": CELLS,
        "bytes": (folder / "epoch_000001.ckpt").stat().st_size,
        **{name: statistics.median(taken) for name, taken in seconds.items()},
    }
