"""hpcfwi: seismic full-waveform inversion as an HPC batch application.

An epoch goes through `cli`, `run.job`, `run.session`, `inversion.loop`, an optimizer of
`inversion.optimizers`, `inversion.objective`, `operators.simulator`, `wave.simulation` and an
engine of `wave.engines`. CONTRIBUTING.md lists all packages in the order of their imports.
"""

# Nothing is imported here: `__main__` leaves the current directory out of the path of imports, and
# this file is executed before it.

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from hpcfwi.parallel.context import Context
    from hpcfwi.run.commands import Opened

__version__ = "0.1.0"


def launch(gpus: bool = True, share_gpus: bool = False) -> "AbstractContextManager[Context]":
    """Return a context manager that makes this process a rank of the job and gives its `Context`.

    The process may run alone, or under mpirun, srun or torchrun. An error of one of several ranks
    is printed once and ends all of them.

    Parameters
    ----------
    gpus
        If True, ranks compute on GPUs if there are any.
    share_gpus
        If True, several ranks may share a GPU, to try a program out.

    Examples
    --------
    >>> with hpcfwi.launch() as context:  # doctest: +SKIP
    ...     print(context.rank, context.size)
    """
    # Imported here, because a program that only reads the version need not wait for torch
    from hpcfwi.parallel.launch import launched

    return launched(gpus, share_gpus)


def open_input(
    path: "str | Path", context: "Context", settings: "Sequence[str]" = (), stage: int | None = None
) -> "Opened":
    """Open an input file for a program: its shots as an operator, its models and its data.

    The arguments and errors are those of `run.commands.open_input`.

    Examples
    --------
    >>> job = hpcfwi.open_input("survey.toml", context)  # doctest: +SKIP
    >>> image = job.shots.linearize(job.model).adjoint(job.observed())  # doctest: +SKIP
    """
    from hpcfwi.run import commands

    return commands.open_input(path, context, settings, stage)
