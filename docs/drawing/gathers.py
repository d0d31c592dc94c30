"""The figure of a gather after each key of [data].

The gather is simulated; noise and bad traces are added here.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from drawing.panels import label_ends
from drawing.runs import clean_data
from hpcfwi.config.survey import DataSection
from hpcfwi.inversion.conditioning import Band, Conditioning
from hpcfwi.operators.simulator import Aperture, find_offsets
from hpcfwi.parallel.context import Context
from hpcfwi.report import style
from hpcfwi.report.figures import draw_traces
from hpcfwi.report.panels import clip_limit
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.survey import Survey

GATHER_NOISE = 0.1  # root mean square, over that of the gather
WATER = 1500.0  # m/s
LOUD, DEAD = 14, 33  # traces of a gather that are made bad


def conditioning() -> Figure:
    """Draw a gather with noise and two bad traces, as recorded and after each key of [data]."""
    asked = (
        "",
        "edit = {}",
        "offsets = [600.0, 6000.0]",
        "band = [0.0, 3.0]",
        "mute = { curve = [[0.0, 0.1],\n[1500.0, 1.05], [8000.0, 3.0]] }",
        "mute = { velocity = 1500.0,\ndelay = 0.9 }",
        'mute = { velocity = 1500.0,\ndelay = 0.1, keep = "above" }',
        'mute = { velocity = 1500.0,\ndelay = 0.1, width = 0.7,\nkeep = "outside" }',
        "mute = { after = 3.0 }",
        "weight = { offset = 1.0 }",
        "weight = { amplitude = -1.0 }",
        "gain = 1.0",
    )
    survey, traces = _bad_gather()
    figure = style.new_figure(9.0, 6.2)
    panels = figure.subplots(3, 4, sharex=True, sharey=True)
    for axes, text in zip(panels.flat, asked, strict=True):
        section = DataSection(**tomllib.loads(text.replace("\n", " ")))
        shown, made = _condition(traces, survey, section)
        offsets = find_offsets(made.sources, made.receivers)[0]
        good = np.isfinite(shown).all(axis=1) & ~np.isin(np.arange(len(shown)), (LOUD, DEAD))
        limit = clip_limit(shown[good], 97.0)
        axes.set_facecolor(style.LIGHT)
        image, *_ = draw_traces(axes, shown, offsets, made.axis, limit)
        image.set_interpolation("nearest")
        axes.set_ylim(survey.n_samples * survey.dt, 0.0)
        axes.set_title(text or "as recorded", fontsize=style.SMALL, loc="left")
        style.label(axes, "", "")
    label_ends(panels, "offset (km)", "time (s)")
    return figure


def _bad_gather() -> tuple[Survey, NDArray[np.float32]]:
    """Return a shot at the end of the line: its survey and traces (1, receiver, time)."""
    with GatherReader(clean_data(), Context.alone()) as reader:
        shot = np.array([0])
        survey, traces = reader.survey.select(shot), reader.read(shot)
    # Few traces and samples keep the image small.
    near, times = slice(0, 108, 2), slice(None, None, 6)
    survey = replace(
        survey,
        receivers=survey.receivers[:, near],
        wavelet=survey.wavelet[:, times],
        dt=6 * survey.dt,
    )
    traces = traces[:, near, times]
    noise = np.random.default_rng(0).standard_normal(traces.shape)
    traces = traces + (GATHER_NOISE * traces.std() * noise).astype(np.float32)
    traces[:, DEAD] = 0.0
    traces[:, LOUD] *= 30.0
    return survey, traces


def _condition(
    traces: NDArray[np.float32], survey: Survey, section: DataSection
) -> tuple[NDArray[np.float32], Survey]:
    """Return the traces (receiver, time) that a misfit compares, NaN where none counts.

    The survey is that of these traces.
    """
    if section.band is not None:
        band = Band(*section.band, survey.n_samples, survey.dt)
        traces, survey = band.filter(traces), band.survey(survey, band.filter(survey.wavelet))
    given = Conditioning(section).apply(traces, survey)
    near, far = section.offsets or (0.0, np.inf)
    heard = Aperture(None, far, near).trace_mask(survey.sources, survey.receivers)
    met = given.weigh(torch.from_numpy(given.observed)).numpy()
    return np.where((given.counts & heard)[..., None], met, np.nan)[0], survey
