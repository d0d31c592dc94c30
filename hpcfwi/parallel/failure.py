"""The end of a job when a rank fails: promptly, on all ranks, with one message.

Ranks that fail for the same reason, such as a bad input that all of them have read, exit together
in the ordinary way. A rank that fails alone aborts the job, because the others may wait for it in a
collective for ever. An error of `Context.raise_on_all_ranks` is known to be on all ranks. Otherwise
the first rank leaves a note in the store, and the number of ranks that report the same
error distinguishes the two cases. The first rank prints its message, because the errors of the
others are probably consequences. `recovery` lets ranks continue without one that has died; this
module ends the job if they cannot.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from hpcfwi.errors import InputError, InversionFailure, StepFailure, Stopped, WriteFailure
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.store import Store
from hpcfwi.parallel.transport import hears_of_death

if TYPE_CHECKING:
    from mpi4py import MPI


SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)  # requests to stop

COMPANY_WAIT = 2.0  # s that the first rank to fail waits for all others to fail in the same way
END_WAIT = 6.0  # s that the other ranks wait for the first one to end the job
LATE = 60.0  # s between the exits of ranks that end in the same way, because hosts may be busy
DEATH_WAIT = 2.0  # s that MPI may need to learn of a death that has made a collective fail
POLL = 0.02  # s
DEATH_POLL = 0.001  # s


@contextlib.contextmanager
def handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let a handler receive signals that request a stop within the block.

    It has no effect outside the main thread, which is the only one that handles signals.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in SIGNALS if is_main}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def run_guarded(context: Context, main: Callable[[], int]) -> int:
    """Run `main` on every rank and return its exit code; errors end the job as in `end_job`."""
    try:
        code = main()
    except BaseException as error:
        code = end_job(context, error)
    # The group's threads may crash if this is left to the end of the interpreter.
    context.close()
    if context.fault_tolerant:
        _exit_together(context, code)
    return code


def exit_code(error: BaseException) -> int:
    """Return the exit code: 2 if only another input helps, 3 for a stop on request, otherwise 1."""
    if isinstance(error, InputError | StepFailure):
        return 2
    return 3 if isinstance(error, Stopped) else 1


def tell(error: BaseException, who: str | None = None) -> None:
    """Print the error to stderr, with a traceback if it is a defect of the program.

    If the disk of the output is full, the text is lost, because the caller must still end the job.
    """
    if isinstance(error, InputError | Stopped | InversionFailure | WriteFailure):
        text = str(error)
    elif isinstance(error, KeyboardInterrupt):
        text = "interrupted"
    elif isinstance(error, MemoryError):
        text = f"{error or 'out of memory'}. Give more memory, or start fewer ranks per node."
    else:
        text = "an unexpected error\n" + "".join(traceback.format_exception(error)).rstrip()
    head = f"hpcfwi: {who}: " if who else "hpcfwi: "
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        sys.stderr.write(head + text + "\n")
        sys.stderr.flush()


def abort(comm: MPI.Comm | None, code: int) -> NoReturn:
    """End every rank of the job at once with an exit code.

    Without MPI only this rank exits, and its launcher ends the others.
    """
    if comm is not None:
        comm.Abort(code)
    os._exit(code)


def end_job(context: Context, error: BaseException) -> int:
    """Print the error once; return the exit code if all ranks have failed in the same way.

    Otherwise the first rank that failed prints its error, and the job is aborted with its code.
    """
    if isinstance(error, Exception) and follows_death(error, context):
        error = _name_dead(context)
    code = exit_code(error)
    if context.size == 1:
        tell(error)
        return code
    who = f"rank {context.rank} on {context.host}"
    # A signal that comes meanwhile would replace the error and its code by those of a stop
    with handling(lambda *_: None):
        is_first, all_alike = False, getattr(error, "raised_on_all_ranks", False)
        if not all_alike:
            is_first, all_alike = _compare(context, error)
        if all_alike:
            _tell_from_root(context, error)
            return code
        if is_first:
            tell(error, who)
            abort(context.comm, code)
    # A launcher may end this rank by a signal, because the first one has ended
    time.sleep(END_WAIT)
    tell(error, who)
    abort(context.comm, code)


def follows_death(error: Exception, context: Context) -> bool:
    """Return True if a rank has died, and the error may be a consequence.

    MPI, torch and its stores raise a RuntimeError after a death. Return False if jobs do not
    survive a death.
    """
    if not context.fault_tolerant or not isinstance(error, RuntimeError):
        return False
    comm = surviving(context)
    return _wait_for(lambda: hears_of_death(comm), DEATH_WAIT, DEATH_POLL)


def surviving(context: Context) -> MPI.Comm:
    """Return the communicator of ranks that may survive others, which is MPI's."""
    assert context.comm is not None, "torchrun's ranks do not survive others"
    return context.comm


def _name_dead(context: Context) -> InversionFailure:
    """Return an error that names the dead ranks, if the others cannot continue."""
    comm = surviving(context)
    comm.Ack_failed()
    dead = comm.Get_failed()
    ranks = dead.Translate_ranks(range(dead.size), comm.group)
    names = ", ".join(f"rank {rank} on {context.hosts[rank]}" for rank in ranks)
    return InversionFailure(
        f"{names or 'a rank'} died at a point where the others cannot continue; the same command "
        "continues from what is on disk"
    )


def _exit_together(context: Context, code: int) -> NoReturn:
    """Exit without MPI_Finalize, which may wait for ranks that have died."""
    from mpi4py import MPI

    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # All ranks exit together, because the launcher counts a rank that exits early as dead.
    with contextlib.suppress(MPI.Exception):
        surviving(context).Agree(1)
    os._exit(code)


def _compare(context: Context, error: BaseException) -> tuple[bool, bool]:
    """Return two booleans: this rank is the first to fail; all ranks failed in the same way."""
    note = f"{type(error).__name__}: {error}"
    try:
        store = _store(context)
        # All ranks compare with one note; reading the notes of all others would take far more
        # messages
        if store.compare_set("failure", "", note) == note.encode():
            store.add("alike", 1)
        is_first = store.add("failed", 1) == 1
        all_failed = _wait_for(lambda: store.add("failed", 0) == context.size, COMPANY_WAIT)
        return is_first, all_failed and store.add("alike", 0) == context.size
    except RuntimeError:  # the rank with the store has ended
        return False, False


def _tell_from_root(context: Context, error: BaseException) -> None:
    """Let rank 0 print the error first, because a launcher may end the job after any exit.

    Rank 0 waits until the others have read the store that it serves.
    """
    if context.is_root:
        tell(error)
    with contextlib.suppress(RuntimeError):  # rank 0 has printed the error and ended
        store = _store(context)
        if context.is_root:
            store.set("told", "")
            _wait_for(lambda: store.add("heard", 0) == context.size - 1, LATE)
        else:
            _wait_for(lambda: store.check(["told"]), LATE)
            store.add("heard", 1)


def _wait_for(condition: Callable[[], bool], seconds: float, poll: float = POLL) -> bool:
    """Return True as soon as a condition is met, False if it is not within some time."""
    deadline = time.monotonic() + seconds
    while not (is_met := condition()) and time.monotonic() < deadline:
        time.sleep(poll)
    return is_met


def _store(context: Context) -> Store:
    assert context.store is not None, "several ranks have a store"
    return context.store
