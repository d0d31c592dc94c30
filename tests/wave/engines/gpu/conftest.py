"""What Triton's interpreter need not do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest


@pytest.fixture(scope="package")
def no_sums_twice() -> Iterator[None]:
    """A third of its time goes into sums of integers that nobody looks at.

    It computes each again in 64 bits, to assert that it fits in 32; but the assertion itself it
    leaves out, unless it is debugged.
    """
    # Tests of what needs no Triton are in this folder, too
    from triton.runtime.interpreter import interpreter_builder as interpreter

    before = interpreter.options
    interpreter.options = replace(before, sanitize_overflow=before.debug)
    yield
    interpreter.options = before
