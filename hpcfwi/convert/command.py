"""The options of `hpcfwi convert`, for `cli`. The work is imported only when the command runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hpcfwi.parallel.context import Context

Work = Callable[..., None]  # of a Context; not named, as typer evaluates annotations
Texts = list[str] | None
Text = str | None


def convert(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="FROM", help="The file to read; for SEG-Y data one or more."),
    ],
    target: Annotated[
        Path,
        typer.Argument(metavar="TO", help="The file to write. Suffixes give the kinds of files."),
    ],
    wavelet: Annotated[
        Path | None, typer.Option(help="Wavelet of SEG-Y data: .npy, text, or a gathers file.")
    ] = None,
    dt: Annotated[float | None, typer.Option(help="Sampling interval, s.")] = None,
    keep: Annotated[
        Texts,
        typer.Option(
            help="Part of the data: time=FIRST:LAST (s), offset=NEAR:FAR (m), shots=0:60:2, "
            "traces=0:5000, code=11, repeat=0."
        ),
    ] = None,
    at: Annotated[
        Texts,
        typer.Option("--bytes", help="Bytes of a header field: source_x=POSITION[:i4]."),
    ] = None,
    value: Annotated[
        Texts, typer.Option(help="Value of a header field: coordinate_scalar=-100.")
    ] = None,
    endian: Annotated[
        Text, typer.Option(help="Byte order of SEG-Y and raw files: big or little.")
    ] = None,
    axes: Annotated[Text, typer.Option(help="Axes of positions: zx, along a line, or zyx.")] = None,
    line: Annotated[
        Text, typer.Option(help="X0,Y0,X1,Y1: the line of a 2-D survey; x = 0 at the first.")
    ] = None,
    datum: Annotated[float, typer.Option(help="Elevation of z = 0, m.")] = 0.0,
    depths: Annotated[
        Text, typer.Option(help="positive-elevation if fields of elevations hold depths.")
    ] = None,
    model: Annotated[bool, typer.Option("--model", help="SEG-Y holds a model.")] = False,
    parameter: Annotated[
        Text,
        typer.Option(help="Parameter of a model, such as vs, rho or qp; P velocity by default."),
    ] = None,
    shape: Annotated[Text, typer.Option(help="Shape of a model: NZ,NX or NZ,NY,NX.")] = None,
    spacing: Annotated[Text, typer.Option(help="Spacing, m: one number, or one per axis.")] = None,
    origin: Annotated[
        Text, typer.Option(help="Position of the first point, m: one number per axis.")
    ] = None,
    order: Annotated[
        Text, typer.Option(help="The axes of an array file, the slowest first: xz.")
    ] = None,
    variable: Annotated[Text, typer.Option(help="The name of a model in a .mat file.")] = None,
    scale: Annotated[float, typer.Option(help="Factor of the values of a model.")] = 1.0,
    quantity: Annotated[
        str, typer.Option(help="Quantity of the values: velocity, slowness or slowness-squared.")
    ] = "velocity",
    reciprocity: Annotated[
        bool, typer.Option("--reciprocity", help="Exchange sources and receivers.")
    ] = False,
    source_kind: Annotated[
        str, typer.Option(help="Kind of the sources: explosive, force-z, force-y or force-x.")
    ] = "explosive",
    quiet: Annotated[bool, typer.Option("--quiet", help="Print warnings and errors only.")] = False,
) -> Work:
    """Convert SEG-Y and other files to gathers and models, and back."""

    def work(context: Context) -> None:
        from hpcfwi.convert import request
        from hpcfwi.convert.to_gathers import convert_file
        from hpcfwi.model import PARAMETERS
        from hpcfwi.storage.models import POWERS
        from hpcfwi.survey import SOURCE_KINDS

        asked = context.from_root(
            lambda: request.Request(
                tuple(sources),
                target,
                request.parse_headers(at or [], value or [], endian),
                wavelet,
                dt,
                request.parse_keep(keep or []),
                None if axes is None else request.choose("--axes", axes, ("zx", "zyx")),
                request.parse_numbers("--line", line, [4]),
                request.parse_size("--datum", datum),
                model or parameter is not None,
                None if parameter is None else request.choose("--parameter", parameter, PARAMETERS),
                request.parse_shape(shape),
                request.parse_spacing(spacing),
                request.parse_numbers("--origin", origin, (2, 3)),
                request.parse_order(order),
                request.parse_size("--scale", scale),
                reciprocity,
                None
                if depths is None
                else request.choose("--depths", depths, ("positive-elevation",)),
                request.choose("--quantity", quantity, POWERS),
                variable,
                request.choose("--source-kind", source_kind, SOURCE_KINDS),
            )
        )
        convert_file(asked, context, quiet)

    return work
