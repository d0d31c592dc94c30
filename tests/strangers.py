"""Another user of this machine, for tests that run as root; without that they are skipped."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root alone can play other users")


def give_away(path: Path) -> Path:
    """The same path, which is the stranger's now; of a link, the link."""
    os.lchown(path, NOBODY, NOBODY)
    return path


def as_stranger(*arguments: object) -> list[str]:
    """The command by which that user runs these arguments; skips where there is no setpriv.

    He may read everything, as the interpreter may be in somebody's home directory.
    """
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    options = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    options += [f"--{kind}-caps=+dac_read_search" for kind in ("inh", "ambient")]
    return ["setpriv", *options, *map(str, arguments)]
