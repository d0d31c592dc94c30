"""The figure of a gradient after each preconditioner."""

from __future__ import annotations

import h5py
import numpy as np
import torch
from matplotlib.figure import Figure

from drawing.panels import label_ends
from drawing.runs import invert
from hpcfwi.config import load_config
from hpcfwi.config.inversion import PreconditionSection
from hpcfwi.inversion.preconditioning import Preconditioner, rise_from
from hpcfwi.inversion.preparation import prepare
from hpcfwi.model import Model
from hpcfwi.parallel.context import Context
from hpcfwi.report import style
from hpcfwi.report.panels import clip_limit


def preconditioners() -> Figure:
    """Draw the first gradient of an inversion, as it is and after each preconditioner."""
    run = invert("gradient", {"epochs": "1", "sampling": '"all"'})
    experiment = prepare(load_config(run), Context.alone())
    grid, survey = experiment.initial.grid, experiment.survey
    with h5py.File(run / "epochs" / "epoch_0001.h5") as file:
        gradient, lit, back = (
            torch.from_numpy(file[name][...])
            for name in ("gradient", "source_illumination", "receiver_illumination")
        )
    initial = experiment.initial.as_tensors(torch.device("cpu"))
    (name,) = initial.arrays
    points = np.vstack([survey.sources, survey.receiver_positions()])
    peak = survey.spectrum.peak
    figure = style.new_figure(9.0, 4.6)
    asked: dict[str, dict[str, float]] = {
        "as it is": {},
        "illumination = 0.01": {"illumination": 0.01},
        "depth = 1.0": {"depth": 1.0},
        "taper = 600.0": {"taper": 600.0},
        "smooth = 0.2": {"smooth": 0.2},
        "illumination = 0.01, smooth = 0.2": {"illumination": 0.01, "smooth": 0.2},
    }
    panels = figure.subplots(3, 2, sharex=True, sharey=True)
    for axes, (text, keys) in zip(panels.T.flat, asked.items(), strict=True):
        made = Model(grid, {name: gradient})
        if keys:
            section = PreconditionSection(**keys)
            taper = None if section.taper is None else rise_from(points, section.taper, grid)
            preconditioner = Preconditioner(section, peak, experiment.equation.slowest, taper)
            made = preconditioner.apply(made, {"source": lit, "receiver": back}, initial)
        shown = np.where(experiment.fixed, 0.0, made[name].numpy())
        limit = clip_limit(shown, 99.0)
        extent = (grid.origin[1] / 1e3, grid.last[1] / 1e3, grid.last[0] / 1e3, 0.0)
        axes.imshow(shown, cmap="RdBu_r", vmin=-limit, vmax=limit, extent=extent, aspect="auto")
        style.title(axes, text)
        style.label(axes, "", "")
    label_ends(panels, "x (km)", "depth (km)")
    return figure
