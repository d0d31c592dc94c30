"""Figures of formulas: misfits, and waves of a point and of a line.

They need no survey, no model and no run.
"""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import integrate

from drawing.panels import GREY, label_ends
from hpcfwi.inversion.conditioning import correct_point_source
from hpcfwi.registry import MISFITS, find
from hpcfwi.report import style
from hpcfwi.wave.numerics import ricker

# Share of the steepest slope of a misfit below which its slope is drawn as zero
LEVEL = 0.01


def misfit_over_shifts(name: str, shifts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a misfit of two Ricker arrivals of the same size, divided by its largest value.

    shifts: the delays of the second arrival, in periods.
    """
    frequency, dt, samples = 10.0, 0.002, 1000
    middle = 0.5 * samples * dt
    times = middle + shifts / frequency
    simulated = np.stack([ricker(frequency, samples, dt, time) for time in times])
    observed = np.broadcast_to(ricker(frequency, samples, dt, middle), simulated.shape)
    # One shot for each shift
    traces = (torch.from_numpy(array[:, None].copy()) for array in (simulated, observed))
    found = find(MISFITS[name])(*traces, dt)[0].numpy()
    return np.asarray(found / found.max())


def misfits() -> Figure:
    """Draw each misfit over the delay of an arrival."""
    columns = 4
    rows = -(-len(MISFITS) // columns)
    figure = style.new_figure(8.0, 1.9 * rows)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True)
    shifts = np.linspace(-2.5, 2.5, 501)
    for axes, name in zip(panels.flat, MISFITS, strict=False):
        values = misfit_over_shifts(name, shifts)
        # The misfit should grow with the distance from zero shift.
        growth = np.gradient(values, shifts) * np.sign(shifts)
        least = LEVEL * np.abs(growth).max()
        axes.axvspan(-0.5, 0.5, color=style.LIGHT, alpha=0.3, linewidth=0)
        for which, colour in (
            (np.abs(growth) < least, GREY),
            (growth >= least, style.STRONG),
            (growth <= -least, style.MARK),
        ):
            axes.plot(shifts, np.where(which, values, np.nan), color=colour, linewidth=1.8)
        style.title(axes, name)
        style.label(axes, "", "")
    label_ends(panels, "delay (periods)", "misfit / largest")
    return figure


def line_source() -> Figure:
    """Draw waves of a point, the same after `correct`, and waves of a line."""
    speed, dt, n, delay, frequency = 2000.0, 0.002, 900, 0.2, 10.0
    t = dt * np.arange(n)
    figure = style.new_figure(8.0, 2.4)
    panels = figure.subplots(1, 3, sharey=True)
    for axes, offset in zip(panels, (400.0, 1200.0, 2400.0), strict=True):
        point = ricker(frequency, n, dt, delay + offset / speed) / (4.0 * np.pi * offset)
        # The integral of s(t - r / c cosh theta) / (2 pi) over theta >= 0
        theta = np.linspace(0.0, 4.0, 4001)
        a = (np.pi * frequency * (t[:, None] - offset / speed * np.cosh(theta) - delay)) ** 2
        line = integrate.simpson((1.0 - 2.0 * a) * np.exp(-a), x=theta, axis=1) / (2.0 * np.pi)
        made = correct_point_source(point[None], delay, dt, speed)[0]
        off = np.linalg.norm(made - line) / np.linalg.norm(line)
        for wave, text, colour, dashes in (
            (point * np.abs(line).max() / np.abs(point).max(), "point, scaled", GREY, "-"),
            (line, "line", style.STRONG, "-"),
            (made, "corrected", style.MARK, "--"),
        ):
            axes.plot(
                t - offset / speed - delay,
                wave / np.abs(line).max(),
                dashes,
                color=colour,
                label=text,
            )
        axes.set_xlim(-0.1, 0.2)
        style.title(axes, f"{offset / speed * frequency:.0f} wavelengths, error {off:.0%}")
        style.label(axes, "", "")
    label_ends(panels[None], "time after arrival (s)", "amplitude")
    panels[0].legend(fontsize=style.SMALL, frameon=False)
    return figure
