"""Ranks for a program of a user's own: `with hpcfwi.launch() as context`.

Commands have their ranks by `start` and end by `faults.failure`, as this does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hpcfwi.errors import InputError
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.faults.failure import end_job, end_launch
from hpcfwi.parallel.launch.start import launch


@contextmanager
def launched(gpus: bool = True, share_gpus: bool = False) -> Iterator[Context]:
    """This process as one of the job's ranks: alone, under mpirun, srun or torchrun; collective.

    gpus: whether ranks compute on GPUs where there are any; share_gpus: whether several may have
    the same one, which is for trying things out where there are few. An error of one rank among
    several is told once and ends all of them, so that none waits for it for ever; alone it is
    raised on.
    """
    try:
        context = launch(gpus, share_gpus)
    except InputError as error:
        raise SystemExit(end_launch(error)) from error
    try:
        yield context
    except Exception as error:
        if context.size == 1:
            raise
        raise SystemExit(end_job(context, error)) from error
    finally:
        context.close()
