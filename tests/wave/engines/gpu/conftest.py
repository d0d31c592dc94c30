"""What Triton's interpreter need not do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest


@pytest.fixture(scope="package", autouse=True)
def no_sums_twice() -> Iterator[None]:
    """A third of its time goes into sums of integers that nobody looks at.

    It computes each again in 64 bits, to assert that it fits in 32; but the assertion itself it
    leaves out, unless it is debugged.
    """
    interpreter = pytest.importorskip("triton.runtime.interpreter").interpreter_builder
    before = interpreter.options
    interpreter.options = replace(before, sanitize_overflow=before.debug)
    yield
    interpreter.options = before
