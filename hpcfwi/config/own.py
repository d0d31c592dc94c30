"""Names in an input of what is the user's own: "module:name", beside the names of a registry.

What such a name stands for is imported in `find_own`, before anything is computed.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpcfwi.errors import InputError
from hpcfwi.registry import find

_PLACE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def name_of(registry: Mapping[str, str], kind: str) -> Callable[[str], str]:
    """A check of names: in the registry or, as "module:name", of a kind of things outside of it."""
    known = ", ".join(f'"{name}"' for name in registry)

    def check(name: str) -> str:
        if name not in registry and not _PLACE.fullmatch(name):
            raise ValueError(f'expected {known} or "module:{kind}"')
        return name

    return check


def find_own(key: str, name: str, registry: Mapping[str, str]) -> Any:
    """What a name that was checked stands for.

    Modules are found as `python -m` finds them: from where the command is given. Raises
    `InputError` with the key where there is no such thing, or importing it fails.
    """
    if name in registry:
        return find(registry[name])
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise InputError(
            key,
            f'found "{name}", which cannot be imported ({type(error).__name__}: {error})',
            f"Give the command where Python finds the module (now {here}), or add its folder to "
            "PYTHONPATH.",
        ) from error
    if not callable(found):
        raise InputError(
            key,
            f'found "{name}", which is {found!r}',
            "Name something that can be called.",
        )
    return found
