"""The style of all figures: sizes, colours, labels, and how they are saved.

All settings are made on the objects of a figure, never through pyplot
or `rcParams`, so that no display is needed and a thread may draw.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from hpcfwi.report.panels import exceeded
from hpcfwi.system import written_whole

DPI = 150
TITLE, TEXT, SMALL = 9.5, 8.5, 7.5  # points

TRACE_COLOURS = "gray_r"
STRONG, LIGHT, MARK = "#1f4e79", "#9dbbd8", "#d62f1f"


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of `width` by `height` inches, with a canvas that draws in memory."""
    # Space for tick labels that become longer when the axes shrink, which the layout does not know
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06)
    figure = Figure(figsize=(width, height), dpi=DPI, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write the figure in the format of the file's name, completely or not at all.

    Images in a PDF file remain raster images. Raises `WriteFailure`.
    """
    with written_whole(path) as file:
        if path.suffix == ".png":
            # savefig would draw it twice, first for unused bounding boxes
            FigureCanvasAgg(figure).print_png(file)  # type: ignore[no-untyped-call]
        else:
            figure.savefig(file, format=path.suffix[1:], dpi=DPI)


def title(axes: Axes, text: str) -> None:
    """Write the title of a panel above its left end."""
    axes.set_title(text, fontsize=TITLE, loc="left")


def label(axes: Axes, x: str, y: str) -> None:
    """Set the names of the axes and the sizes of names and numbers."""
    axes.set_xlabel(x, fontsize=TEXT)
    axes.set_ylabel(y, fontsize=TEXT)
    axes.tick_params(which="both", labelsize=SMALL)
    axes.xaxis.get_offset_text().set_fontsize(SMALL)
    axes.yaxis.get_offset_text().set_fontsize(SMALL)


def set_ticks(axis: Axis, most: int, integer: bool = False) -> None:
    """Set ticks at round numbers with at most `most` intervals; integer: at integers only."""
    least = 1 if integer else 2
    axis.set_major_locator(
        MaxNLocator(most, steps=[1, 2, 5, 10], integer=integer, min_n_ticks=least)
    )


def add_colour_bar(
    axes: Axes,
    image: ScalarMappable,
    text: str,
    width: float,
    values: ArrayLike = (),
    height: float = 1.0,
) -> Colorbar:
    """Add a colour bar to the right of the axes.

    values: those that are drawn, which may exceed an end of the scale; width, height: relative to
    those of the axes.
    """
    # An inset follows the aspect ratio of the axes, while separate axes would fill the height of
    # the panel.
    place = axes.inset_axes((1.0 + 0.75 * width, 0.0, width, height))
    bar = place.figure.colorbar(image, cax=place, extend=exceeded(values, image.get_clim()))
    set_ticks(bar.long_axis, 5)
    bar.set_label(text, fontsize=TEXT)
    place.tick_params(labelsize=SMALL)
    place.yaxis.get_offset_text().set(fontsize=SMALL, horizontalalignment="left")
    return bar


def add_legend(figure: Figure, handles: list[Artist], columns: int, **layout: float) -> None:
    """Add a legend in the lower left of a figure."""
    figure.legend(
        handles=handles,
        loc="outside lower left",
        ncols=columns,
        fontsize=SMALL,
        frameon=False,
        **layout,
    )


def say_instead(axes: Axes, what: str) -> None:
    """Write a text in place of a missing image."""
    axes.set_facecolor("0.95")
    axes.text(0.5, 0.5, what, transform=axes.transAxes, ha="center", va="center")
