"""What is done with a request: which files become which."""

from __future__ import annotations

from hpcfwi.convert.arrays import convert_model
from hpcfwi.convert.gathers import convert_to_gathers
from hpcfwi.convert.kinds import HDF5, SEGY, UNIX, VTK, holds_gathers, kind_of
from hpcfwi.convert.request import Request
from hpcfwi.convert.writing import convert_to_segy
from hpcfwi.errors import InputError
from hpcfwi.parallel.context import Context
from hpcfwi.report.log import start_log
from hpcfwi.system import is_there


def convert_file(request: Request, context: Context, quiet: bool) -> None:
    """Write what the request's source holds as its target; collective.

    Gathers from SEG-Y and back; models from any kind of file to any other. Raises `InputError` on
    all ranks, and `WriteFailure`.
    """
    with start_log(None, context.rank, quiet):
        source, target, gathers = context.from_root(lambda: _look_at(request))
        if not gathers:
            context.from_root(lambda: convert_model(request))
        elif source in (SEGY, UNIX) and target == HDF5:
            convert_to_gathers(request, context, quiet)
        elif source == HDF5 and target == SEGY:
            convert_to_segy(request.source, request.target, context, quiet)
        else:
            context.raise_alike(
                InputError(
                    str(request.target),
                    f"gathers in {source} cannot be written as {target}",
                    "Gathers go from SEG-Y (.sgy) to HDF5 (.h5) and back; for a model in SEG-Y "
                    "give --model.",
                )
            )


def _look_at(request: Request) -> tuple[str, str, bool]:
    """What kinds of files there are, and whether they are of gathers."""
    source, target = kind_of(request.source), kind_of(request.target)
    others = [path for path in request.sources if kind_of(path) not in (SEGY, UNIX)]
    if len(request.sources) > 1 and (others or request.model):
        raise InputError(
            str(others[0] if others else request.source),
            "several files are read into one only where they are SEG-Y data",
            "Give one file to read, and one to write.",
        )
    if is_there(request.target):
        raise InputError(
            str(request.target),
            "there is such a file already",
            "Remove it, or choose another name.",
        )
    if source == VTK:
        raise InputError(
            str(request.source),
            "VTK's files are written, not read",
            "Give the model in another kind of file, such as .npy.",
        )
    if target == UNIX:
        raise InputError(
            str(request.target),
            "Seismic Unix files are read, not written",
            "Give a name that ends with .sgy; segyread of Seismic Unix reads that.",
        )
    gathers = not request.model and (
        source in (SEGY, UNIX) or (source == HDF5 and holds_gathers(request.source))
    )
    return source, target, gathers
