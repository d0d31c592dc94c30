"""What holds for all tests.

Where there is no GPU, Triton interprets its kernels, and wants to know before it is imported.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hpcfwi.parallel.faults.stop import SIGNALS

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other users may enter, as they may not pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


HANDLERS = {number: signal.getsignal(number) for number in SIGNALS}


@pytest.fixture(autouse=True)
def same_signals() -> Iterator[None]:
    """What a command that runs in this process does with signals ends with its test."""
    yield
    for number, handler in HANDLERS.items():
        signal.signal(number, handler)
