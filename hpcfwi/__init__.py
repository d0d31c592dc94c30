"""hpcfwi: seismic full-waveform inversion as an HPC batch application.

The package's layers, from the top: `cli`, then `inversion`, then `operators`, then `datasets`,
then `wave`, `storage` and `report`, then `parallel`, then the vocabulary that all of them share:
`model`, `survey`, `config` and `errors`. Imports go downwards only.
"""

# Nothing is imported here: `__main__` leaves the current directory out of the path of imports, and
# this file is executed before it.

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from hpcfwi.parallel.context import Context
    from hpcfwi.run.opened import Opened

__version__ = "0.1.0"


def launch(gpus: bool = True, share_gpus: bool = False) -> "AbstractContextManager[Context]":
    """This process as a rank of the job, see `parallel.launch.launched`.

    `with hpcfwi.launch() as context`.
    """
    # Not above: who asks for the version alone need not wait for torch
    from hpcfwi.parallel.launch import launched

    return launched(gpus, share_gpus)


def open_input(
    path: "str | Path", context: "Context", settings: "Sequence[str]" = (), stage: int | None = None
) -> "Opened":
    """Open an input file for a program: its shots as an operator, its models and its data.

    See `run.opened.open_input`. `hpcfwi.open_input("survey.toml", context).shots`.
    """
    from hpcfwi.run import opened

    return opened.open_input(path, context, settings, stage)
