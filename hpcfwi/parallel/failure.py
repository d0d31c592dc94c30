"""The end of a job when a rank fails: promptly, on all ranks, with one message.

Ranks that fail for the same reason, such as a bad input that all of them have read, leave
together with an ordinary exit. A rank that fails by itself, while others may wait for it in a
collective for ever, takes the job down with it. If all have raised an error together, the
context knows. Otherwise the two cases are told apart by the note that the first rank leaves in its
store, and by how many ranks report the same. The first one speaks, because the others' troubles
are likely to be consequences of it. `recovery` is how ranks go on without one that has died; this
module ends the job where they cannot.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from hpcfwi.errors import InputError, InversionFailure, StepFailure, Stopped, WriteFailure
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.launchers import find_launcher
from hpcfwi.parallel.store import Store
from hpcfwi.parallel.transport import hears_of_death

if TYPE_CHECKING:
    from mpi4py import MPI


COMPANY_WAIT = 2.0  # s that the first rank to fail waits for all others to fail alike
END_WAIT = 6.0  # s that any other waits for the end that the first one brings
LATE = 60.0  # s that ranks which end alike may come after one another: hosts may be busy
DEATH_WAIT = 2.0  # s that MPI may need to learn of a death that has made a collective fail
POLL = 0.02  # s
DEATH_POLL = 0.001  # s


def run_guarded(context: Context, main: Callable[[], int]) -> int:
    """The exit code of `main`, run on every rank, whatever it raises; closes the context.

    It returns where the ranks end in the same way, and ends the whole job by itself where
    one of them fails alone.
    """
    try:
        code = main()
    except BaseException as error:
        code = end_job(context, error)
    # Not left to the interpreter's end, which the threads of the process group may not survive.
    context.close()
    if context.fault_tolerant:
        _leave(context, code)
    return code


def exit_code(error: BaseException) -> int:
    """2 where only another input helps, 3 for a stop on request, 1 for anything else."""
    if isinstance(error, InputError | StepFailure):
        return 2
    return 3 if isinstance(error, Stopped) else 1


def tell(error: BaseException, who: str | None = None) -> None:
    """Print the error to stderr; defects of the program keep their traceback."""
    if isinstance(error, InputError | Stopped | InversionFailure | WriteFailure):
        text = str(error)
    elif isinstance(error, KeyboardInterrupt):
        text = "interrupted"
    elif isinstance(error, MemoryError):
        text = f"{error or 'memory has run out'}. Give more memory, or start fewer ranks a node."
    else:
        text = "an unexpected error\n" + "".join(traceback.format_exception(error)).rstrip()
    head = f"hpcfwi: {who}: " if who else "hpcfwi: "
    sys.stdout.flush()
    sys.stderr.write(head + text + "\n")
    sys.stderr.flush()


def abort(comm: MPI.Comm | None, code: int) -> NoReturn:
    """End every rank of the job at once with an exit code.

    Without MPI this rank leaves, and its launcher ends the others.
    """
    if comm is not None:
        comm.Abort(code)
    os._exit(code)


def end_job(context: Context, error: BaseException) -> int:
    """Say what happened, once, and end this rank and all others; return the exit code.

    Returns after all ranks have failed alike (rank 0 has spoken), or if there is only one.
    Otherwise the first rank that failed speaks and the job is aborted with its code.
    """
    if isinstance(error, Exception) and follows_death(error, context):
        error = _name_dead(context)
    code = exit_code(error)
    if context.size == 1:
        tell(error)
        return code
    is_first, all_alike = False, getattr(error, "raised_alike", False)
    if not all_alike:
        is_first, all_alike = _compare(context, error)
    if all_alike:
        _tell_from_root(context, error)
        return code
    if not is_first:
        time.sleep(END_WAIT)
    tell(error, f"rank {context.rank} on {context.host}")
    abort(context.comm, code)


def end_launch(error: InputError) -> int:
    """Say why the ranks could not start, once for the job, and return the exit code.

    `launch` raises on every process, and those whose MPI went wrong cannot know each other:
    the one speaks that the launcher calls rank 0.
    """
    launcher = find_launcher(os.environ)
    if launcher is None or launcher.rank == 0:
        tell(error)
    else:
        # Some launchers end a job as soon as one process leaves: not before the one has spoken.
        time.sleep(COMPANY_WAIT)
    return exit_code(error)


def follows_death(error: Exception, context: Context) -> bool:
    """Return True if a rank has died, and the error may be a consequence.

    MPI, torch and its stores raise a RuntimeError then. False if jobs do not survive a death.
    """
    if not context.fault_tolerant or not isinstance(error, RuntimeError):
        return False
    assert context.comm is not None, "ranks that survive are MPI's"
    deadline = time.monotonic() + DEATH_WAIT
    while not hears_of_death(context.comm):
        if time.monotonic() > deadline:
            return False
        time.sleep(DEATH_POLL)
    return True


def _name_dead(context: Context) -> InversionFailure:
    """Return an error that names the dead ranks, if the others cannot continue."""
    assert context.comm is not None, "ranks that survive are MPI's"
    context.comm.Ack_failed()
    dead = context.comm.Get_failed()
    ranks = dead.Translate_ranks(range(dead.size), context.comm.group)
    names = ", ".join(f"rank {rank} on {context.hosts[rank]}" for rank in ranks)
    return InversionFailure(
        f"{names or 'a rank'} died, at a point where the others cannot go on; the same command "
        "continues from what is on disk"
    )


def _leave(context: Context, code: int) -> NoReturn:
    """End this process without MPI_Finalize, which may wait for ranks that have died."""
    from mpi4py import MPI

    assert context.comm is not None, "ranks that survive are MPI's"
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # All together: the launcher counts a rank that leaves early among the dead.
    with contextlib.suppress(MPI.Exception):
        context.comm.Agree(1)
    os._exit(code)


def _compare(context: Context, error: BaseException) -> tuple[bool, bool]:
    """Is this rank the first to fail, and have all ranks failed with the same error?"""
    note = f"{type(error).__name__}: {error}"
    try:
        store = _store(context)
        # One note for all: a look at those of all others would be many times as much
        if store.compare_set("failure", "", note) == note.encode():
            store.add("alike", 1)
        is_first = store.add("failed", 1) == 1
        deadline = time.monotonic() + COMPANY_WAIT
        while store.add("failed", 0) < context.size:
            if time.monotonic() > deadline:
                return is_first, False
            time.sleep(POLL)
        return is_first, store.add("alike", 0) == context.size
    except RuntimeError:  # the rank that kept the notes has gone
        return False, False


def _tell_from_root(context: Context, error: BaseException) -> None:
    """Let rank 0 speak, and keep the others until it has: a launcher may end the job after.

    Rank 0 stays for as long as the others look at the notes that it keeps.
    """
    if context.is_root:
        tell(error)
    with contextlib.suppress(RuntimeError):  # rank 0 has spoken and gone
        store = _store(context)
        if context.is_root:
            store.set("told", "")
            _wait_for(lambda: store.add("heard", 0) == context.size - 1)
        else:
            _wait_for(lambda: store.check(["told"]))
            store.add("heard", 1)


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LATE
    while not condition() and time.monotonic() < deadline:
        time.sleep(POLL)


def _store(context: Context) -> Store:
    assert context.store is not None, "several ranks have a store"
    return context.store
