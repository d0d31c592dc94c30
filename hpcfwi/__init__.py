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
    """Return a context manager that makes this process a rank of the job.

    See `parallel.launch.launched`. Use it as `with hpcfwi.launch() as context`.
    """
    # Imported here, because a program that only reads the version need not wait for torch
    from hpcfwi.parallel.launch import launched

    return launched(gpus, share_gpus)


def open_input(
    path: "str | Path", context: "Context", settings: "Sequence[str]" = (), stage: int | None = None
) -> "Opened":
    """Open an input file for a program: its shots as an operator, its models and its data.

    See `run.commands.open_input`. Use it as `hpcfwi.open_input("survey.toml", context).shots`.
    """
    from hpcfwi.run import commands

    return commands.open_input(path, context, settings, stage)
