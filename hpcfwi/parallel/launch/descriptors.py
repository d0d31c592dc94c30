"""How many files a rank may open: connections take one each.

Who connects is the business of `start`.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from contextlib import suppress

from hpcfwi.errors import InputError

# Descriptors of a rank that is alone, MPI's, the log's and those of data included: 28 were counted,
# and the largest run has some more.
FILES = 64
# For each rank: gloo's connection on all; on rank 0 two more to the store, of which one is for the
# watch, which has the other while the rank waits in it.
FILES_OF_ROOT = 3


def allow_many_files() -> None:
    """As many descriptors as this process may have: connections and files take one each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def count_files_allowed() -> int:
    """Descriptors that this process may have, once `allow_many_files` has been called."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if allowed == resource.RLIM_INFINITY else allowed


def check_files(allowed: Sequence[int]) -> None:
    """Raises `InputError` where a rank will need more descriptors than it may have.

    allowed: those of each rank, by rank. Told before ranks connect, which would else wait in vain.
    """
    for rank, found in enumerate(allowed):
        needed = FILES + len(allowed) * (FILES_OF_ROOT if rank == 0 else 1)
        if found < needed:
            raise InputError(
                f"rank {rank}",
                f"it may open {found} files, and takes {needed} among {len(allowed)} ranks, one "
                "for each connection",
                "Raise the limit of open files where jobs start (ulimit -n, LimitNOFILE of slurmd, "
                "/etc/security/limits.conf), or start fewer ranks.",
            )
