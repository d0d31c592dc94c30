"""Compiled kernels on disk, so that they are compiled once for a card.

Where they may be, and where not, is decided in `hpcfwi.private`.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from functools import cache

from hpcfwi.private import Place, find_place

VARIABLE = "TRITON_CACHE_DIR"

log = logging.getLogger(__name__)


def find_disk() -> Place:
    """Where the kernels are kept; raises `InputError` as `find_place` does."""
    return find_place(VARIABLE, "triton")


@cache
def keep_kernels() -> None:
    """Have the kernels kept, from now on; says so once where that cannot be.

    Triton compiles into a directory in any case, and knows it by the environment variable alone.
    """
    folder, problem = find_disk()
    if folder is None:
        log.warning(
            "The gpu engine is compiled for this process only, as %s; "
            "%s may name a directory that is yours alone",
            problem,
            VARIABLE,
        )
        temporary = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    os.environ[VARIABLE] = str(folder or temporary)
