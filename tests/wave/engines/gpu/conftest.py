"""A fixture that makes the interpreter of Triton faster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture(scope="package")
def quick_interpreter() -> Iterator[None]:
    """Make the interpreter faster in a package of tests."""
    with quickly_interpreted():
        yield


@contextmanager
def quickly_interpreted() -> Iterator[None]:
    """Avoid unused and repeated work of Triton's interpreter, which takes half of its time.

    The interpreter computes each sum of integers also in 64 bits to assert that it fits in 32, even
    if the assertion is disabled. For each launch and each function that a kernel calls, it patches
    the functions of the language again, and for each type it builds a table of all types.
    """
    # Some tests in this folder do not need Triton
    from triton.runtime import interpreter

    placed: dict[tuple[int, ...], Any] = {}
    types: dict[str, Any] = {}
    place, find_type = interpreter._patch_lang, interpreter._get_np_dtype

    def place_once(function: Any) -> Any:
        languages = tuple(
            id(value)
            for value in function.__globals__.values()
            if value is interpreter.tl or value is interpreter.tl.core
        )
        if languages not in placed:
            placed[languages] = place(function)
        return SimpleNamespace(restore=lambda: None)

    def find_type_once(kind: Any) -> Any:
        name = str(kind.scalar)
        if name not in types:
            types[name] = find_type(kind.scalar)
        return types[name]

    with pytest.MonkeyPatch.context() as patch:
        options = interpreter.interpreter_builder.options
        quick = replace(options, sanitize_overflow=options.debug)
        patch.setattr(interpreter.interpreter_builder, "options", quick)
        patch.setattr(interpreter, "_patch_lang", place_once)
        patch.setattr(interpreter, "_get_np_dtype", find_type_once)
        yield
    for scope in reversed(placed.values()):
        scope.restore()
