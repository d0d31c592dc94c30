"""Another user of this machine, for tests that need root and are skipped otherwise."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def give_away(path: Path) -> Path:
    """Give a path, or a link itself, to the other user and return it."""
    os.lchown(path, NOBODY, NOBODY)
    return path


def as_stranger(*arguments: object) -> list[str]:
    """Return the command that runs these arguments as the other user; skip without setpriv.

    That user may read every file, as the interpreter may be in a home directory.
    """
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    options = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    options += [f"--{kind}-caps=+dac_read_search" for kind in ("inh", "ambient")]
    return ["setpriv", *options, *map(str, arguments)]
