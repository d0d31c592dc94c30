"""What holds for all tests.

Where there is no GPU, Triton interprets its kernels, and wants to know before it is imported.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import torch

from hpcfwi.parallel.stop import SIGNALS

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def same_signals() -> Iterator[None]:
    """What a command that runs in this process does with signals ends with its test."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
