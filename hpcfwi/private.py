"""Directories in which nobody else can have put anything: for code, which is executed.

Numba unpickles what it finds in its cache, and Triton loads it. Which code is kept is the business
of the engines.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hpcfwi.errors import InputError
from hpcfwi.files import user_name

OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
OTHERS_MAY_ENTER = stat.S_IXGRP | stat.S_IXOTH


# Files that libraries read from the current directory, wherever they are told to look as well
SETTINGS = {"matplotlibrc": "Matplotlib", ".numba_config.yaml": "Numba"}


class Place(NamedTuple):
    """Where compiled code is kept; where it is not, path is None, and problem says why."""

    path: Path | None
    problem: str = ""


@cache
def find_place(variable: str, name: str) -> Place:
    """Where compiled code is kept, in this process: a directory of mode 700, made if missing.

    It lies in the directory that the environment variable names, or as `name` in the user's cache.
    Raises `InputError` where others may write in the one that is named, or replace it.
    """
    named = os.environ.get(variable)
    given = Path(named).absolute() if named else _find_cache()
    place = given / ("hpcfwi" if named else name)
    if not place.is_absolute():  # it begins with a "~" that stands for nothing
        return Place(None, "this user has no home directory")
    try:
        exposed = why_exposed(place)
        if exposed is None:
            make_private(place)
            # Others may have been faster in making what was missing
            exposed = why_exposed(place, is_made=True)
        if exposed is None:
            tempfile.TemporaryFile(dir=place).close()
            return Place(place)
    except OSError as error:
        return Place(None, f"{place} cannot be written ({error.strerror})")
    if named:
        raise InputError(
            f"{variable}: {named}",
            f"no place for code that will be executed, as {exposed}",
            f"Give it to its user alone (chmod 700), name another directory, or unset {variable}.",
        )
    return Place(None, exposed)


def _find_cache() -> Path:
    """The user's own; imported here, as waves run on bare machines, too, where a place is named."""
    import platformdirs

    return platformdirs.user_cache_path("hpcfwi")


def refuse_settings_of_others() -> None:
    """Raise `InputError` if a library would read settings that somebody else may have written.

    Some libraries read settings from the current directory. Settings say, among others, where
    compiled code is kept, which is executed.
    """
    for name, library in SETTINGS.items():
        with suppress(OSError):
            path = Path.cwd() / name
            exposed = why_exposed(path, may_read=True) if os.path.lexists(path) else None
            if exposed is not None:
                raise InputError(
                    str(path),
                    f"{library} would take settings from this file, and {exposed}",
                    "Give the command in another directory.",
                )


def make_private(directory: Path) -> None:
    """Make a directory, and the parents that it lacks, for this user alone; raises OSError."""
    for folder in (*reversed(directory.parents), directory):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)


def why_exposed(directory: Path, is_made: bool = False, may_read: bool = False) -> str | None:
    """How somebody else could put a file there, or something else in its place; None for no way.

    It must be closed to all others, and of this user; on the way there, only root and this user
    may be able to replace anything. What is yet to be made is as it will be made; is_made: nothing
    is, and what is missing has been taken away; may_read: others may read it, and root may own it,
    be it a directory or a file. Raises OSError.
    """
    closed = False
    for step in (*reversed(directory.parents), directory):
        try:
            found = step.lstat()
        except FileNotFoundError:
            return f"somebody has taken {step} away" if is_made else None
        if stat.S_ISLNK(found.st_mode):
            if found.st_uid not in _trusted():
                return f"{step} is a link of {user_name(found.st_uid)}"
            step.stat()  # which raises where it leads nowhere, or in a circle
            target = step.parent / step.readlink() / directory.relative_to(step)
            return why_exposed(target, is_made, may_read)
        if found.st_uid not in _trusted():
            return f"{step} belongs to {user_name(found.st_uid)}"
        mode = stat.S_IMODE(found.st_mode)
        # On the way others can replace what is not theirs, unless the directory is like /tmp
        is_sticky = mode & stat.S_ISVTX and step != directory
        if mode & OTHERS_MAY_WRITE and not is_sticky and not closed:
            return f"others may write in {step} (mode {mode:o})"
        closed = closed or not mode & OTHERS_MAY_ENTER
    if may_read:
        return None
    if found.st_uid != os.geteuid():
        return f"{directory} belongs to {user_name(found.st_uid)}"
    if mode & 0o077:
        return f"{directory} is open to others (mode {mode:o})"
    return None


def _trusted() -> set[int]:
    """Who may do as he likes anyway: this user, root, and in a container the owner of all of it."""
    return {os.geteuid(), 0, Path("/").stat().st_uid}
