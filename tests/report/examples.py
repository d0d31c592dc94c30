"""Example pictures of epochs in two and three dimensions, and helpers to inspect figures."""

import dataclasses

import numpy as np

from hpcfwi.model import PARAMETERS, Grid
from hpcfwi.report.panels import EpochPicture


def picture(shape=(15, 68), spacing=(25.0, 25.0), origin=(0.0, 0.0), **changes):
    grid = Grid(shape, spacing, origin)
    rng = np.random.default_rng(0)
    depth = np.arange(shape[0])[:, None] + np.zeros(shape)
    true = (1500.0 + 100.0 * depth).astype(np.float32)
    made = EpochPicture(
        epoch=20,
        grid=grid,
        parameter=PARAMETERS["vp"],
        true=true,
        inverted=true + 50.0,
        gradient=rng.standard_normal(shape).astype(np.float32),
        source_illumination=np.exp(-depth).astype(np.float32),
        receiver_illumination=np.zeros(shape, np.float32),
        sources=np.array([[origin[0], origin[1] + 4 * spacing[1]]]),
        receivers=np.stack(
            [np.full(60, origin[0]), np.linspace(origin[1], grid.last[1], 60)], axis=1
        ),
    )
    return dataclasses.replace(made, **changes)


def volume(shape=(8, 16, 16), spacing=(25.0, 25.0, 25.0), origin=(0.0, 0.0, 0.0), **changes):
    """Return a picture of layers with a block at a third of y and x, halfway down."""
    grid = Grid(shape, spacing, origin)
    nz, ny, nx = shape
    true = 1500.0 + 10.0 * np.arange(nz)[:, None, None] + np.zeros(shape)
    true[nz // 2, ny // 3, nx // 3] = 3000.0
    made = EpochPicture(
        epoch=20,
        grid=grid,
        parameter=PARAMETERS["vp"],
        true=true.astype(np.float32),
        inverted=(true + 50.0).astype(np.float32),
        gradient=np.random.default_rng(0).standard_normal(shape).astype(np.float32),
        source_illumination=np.ones(shape, np.float32),
        receiver_illumination=np.zeros(shape, np.float32),
        sources=np.array([origin]),
        receivers=np.linspace(origin, grid.last, 100),
    )
    return dataclasses.replace(made, **changes)


def titles(figure):
    return [axes.get_title(loc="left") for axes in figure.axes]


def texts_overlap(figure):
    """Return True if titles or axis labels overlap or extend beyond the figure."""
    figure.canvas.draw()
    boxes = []
    for axes in [one for place in figure.axes for one in (place, *place.child_axes)]:
        for text in (axes.xaxis.label, axes.yaxis.label, axes._left_title):
            if text.get_text() and axes.get_visible():
                boxes.append(text.get_window_extent())
    inside = figure.bbox.padded(2)
    clashes = [a for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)]
    outside = [b for b in boxes if not (inside.contains(*b.min) and inside.contains(*b.max))]
    return bool(clashes or outside)
