"""Names in an input of what is the user's own: "module:name", beside the names of a registry.

`find_own` imports what such a name stands for, before anything is computed with it and for nothing
else.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder, all_suffixes
from pathlib import Path
from typing import Any

from hpcfwi.errors import InputError
from hpcfwi.registry import find
from hpcfwi.system import why_exposed

_PLACE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def name_of(registry: Mapping[str, str], kind: str) -> Callable[[str], str]:
    """A check of names: in the registry or, as "module:name", of a kind of things outside of it."""
    known = ", ".join(f'"{name}"' for name in registry)

    def check(name: str) -> str:
        if name not in registry and not _PLACE.fullmatch(name):
            raise ValueError(f'expected {known} or "module:{kind}"')
        return name

    return check


def find_own(key: str, name: str, registry: Mapping[str, str], folder: str | None) -> Any:
    """Return what a checked name stands for; "module:name" is imported, which executes the module.

    Only commands that compute with it may call this: an input may be somebody else's.

    Parameters
    ----------
    key
        Key of the input that holds the name, for messages.
    name
        Name in the registry, or "module:name".
    registry
        Known names and their places.
    folder
        Folder in which the module is looked for after the places that Python knows.

    Raises
    ------
    InputError
        The module is in the folder, but somebody else can write there; it cannot be imported; or
        what it holds cannot be called.
    """
    if name in registry:
        return find(registry[name])
    module, _, path = name.partition(":")
    if folder is not None and PathFinder.find_spec(module.split(".")[0], [folder]):
        _check_folder(key, name, Path(folder))
        if folder not in sys.path:
            sys.path.append(folder)
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:
        beside = f"Put the module into {folder}" if folder else "Name its folder beside the key"
        raise InputError(
            key,
            f'found "{name}", which cannot be imported ({type(error).__name__}: {error})',
            f"{beside}, or add the module's folder to PYTHONPATH.",
        ) from error
    if not callable(found):
        raise InputError(
            key,
            f'found "{name}", which is {found!r}',
            "Name something that can be called.",
        )
    return found


def _check_folder(key: str, name: str, folder: Path) -> None:
    """Raise `InputError` if somebody else can write a module that lies below a folder.

    All modules beside it count, in whatever form Python would execute them: it may import them.
    """
    steps, inside = [folder], folder
    for part in (*name.partition(":")[0].split("."), None):
        caches = inside / "__pycache__"
        found = sorted((*inside.glob("*"), *caches.glob("*")))
        steps += [caches, *(path for path in found if path.name.endswith(tuple(all_suffixes())))]
        if part is not None:
            inside /= part
            steps.append(inside)
    for step in steps:
        exposed = why_exposed(step, may_read=True)
        if exposed is not None:
            raise InputError(
                key,
                f'found "{name}", which is code that is not executed, as {exposed}',
                "Copy the input and the module into a folder of your own in which nobody else may "
                "write (chmod go-w), and give the command with that input.",
            )
