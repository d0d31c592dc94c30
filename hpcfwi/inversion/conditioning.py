"""What [data] does to the traces of a shot before they are compared: pure functions of traces.

Observed and simulated traces are multiplied by the same factors, so that the transpose of it all is
to multiply once more; which traces count is decided by the observed ones. The one thing that acts
on observed traces alone is in `line_source`, and what befalls a residual in `band_limit`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.config.data import DataSection, Edit, Mute, Weight
from hpcfwi.inversion.line_source import correct_point_source
from hpcfwi.inversion.picks import Picks
from hpcfwi.operators.window import find_offsets
from hpcfwi.survey import Survey

# Traces of a shot that are neighbours in offset, by the median of which one is judged.
NEIGHBOURS = 11
REFERENCE_OFFSET = 1000.0  # m
SMALLEST_OFFSET = 10.0  # m


@dataclass(frozen=True)
class Conditioned:
    """Observed traces of some shots, and what is to be done with them and with simulated ones.

    observed: (shot, receiver, time); counts: which traces do, (shot, receiver); factors: of the
    shape of observed, None where all are 1.
    """

    observed: NDArray[np.float32]
    counts: NDArray[np.bool_]
    factors: NDArray[np.float32] | None

    def meet(self, simulated: Tensor) -> tuple[Tensor, Tensor]:
        """Simulated and observed traces (shot, receiver, time) as a misfit meets them.

        A trace that does not count is met as it is, whatever was recorded.
        """
        counts = torch.from_numpy(self.counts[..., None]).to(simulated.device)
        met = torch.where(counts, torch.from_numpy(self.observed).to(simulated), simulated)
        return self.weigh(simulated), self.weigh(met)

    def weigh(self, traces: Tensor) -> Tensor:
        """Traces by the factors: also the transpose of that."""
        if self.factors is None:
            return traces
        return torch.from_numpy(self.factors).to(traces) * traces


@dataclass(frozen=True)
class Conditioning:
    """What the input says of the data.

    speed: at the sources, for the line source, m/s; picks: of mutes, by the names of their files.
    """

    section: DataSection
    speed: float
    picks: Mapping[str, Picks] = field(default_factory=dict)

    def apply(self, observed: NDArray[np.float32], survey: Survey) -> Conditioned:
        """Of the traces (shot, receiver, time) of a survey that is written out for its shots."""
        section = self.section
        if section.correct is not None:
            pairs = zip(observed, survey.wavelet, strict=True)
            corrected = [correct_point_source(o, w, survey.dt, self.speed) for o, w in pairs]
            observed = np.stack(corrected)
        factors = None
        if section.shapes_traces:
            times = survey.axis.times(survey.n_samples)
            # Of an encoded shot any source will do: `demands` refuses what goes by offset
            sources = survey.sources if survey.sources.ndim == 2 else survey.sources[:, 0]
            offsets = find_offsets(sources, survey.receivers)
            factors = np.stack(
                [
                    find_factors(traces, offsets[k], times, section, self._find_times(survey, k))
                    for k, traces in enumerate(observed)
                ]
            )
        return Conditioned(observed, self.select(observed, survey), factors)

    def _find_times(self, survey: Survey, shot: int) -> dict[str, NDArray[np.float64]]:
        """When first breaks are in the traces of a shot (receiver,), by the names of files, s."""
        at = survey.sources[shot], survey.receivers[shot]
        return {file: self.picks[file].find_times(*at) for file in self.section.picks}

    def select(self, observed: NDArray[np.float32], survey: Survey) -> NDArray[np.bool_]:
        """Which of these traces count, by what they hold, (shot, receiver)."""
        edit = self.section.edit
        if edit is None:
            return np.ones(observed.shape[:2], dtype=bool)
        return find_alike(observed, find_offsets(survey.sources, survey.receivers), edit)


NO_CONDITIONING = Conditioning(DataSection(), 0.0)


def find_alike(
    observed: NDArray[np.float32], offsets: NDArray[np.float64], edit: Edit
) -> NDArray[np.bool_]:
    """Which traces (..., receiver, time) are finite, and as loud as others of their shot nearby."""
    loudness = root_mean_square(observed)
    typical = median_of_neighbours(loudness, offsets)
    with np.errstate(invalid="ignore"):
        return np.asarray((loudness >= edit.below * typical) & (loudness <= edit.above * typical))


def root_mean_square(traces: NDArray[np.floating]) -> NDArray[np.float64]:
    """Of each trace (..., time); not finite where a sample is not."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.sqrt(np.mean(np.square(traces, dtype=np.float64), axis=-1)))


def median_of_neighbours(
    values: NDArray[np.float64], offsets: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The median of the `NEIGHBOURS` values (..., receiver) that are nearest in offset to each.

    Of those that are finite and not 0; NaN where none is.
    """
    order = np.argsort(offsets, axis=-1, kind="stable")
    usable = np.where(np.isfinite(values) & (values != 0.0), values, np.nan)
    usable = np.take_along_axis(usable, order, axis=-1)
    count = usable.shape[-1]
    width = min(NEIGHBOURS, count)
    first = np.clip(np.arange(count) - width // 2, 0, count - width)
    windows = np.lib.stride_tricks.sliding_window_view(usable, width, axis=-1)[..., first, :]
    medians = np.empty(usable.shape)
    np.put_along_axis(medians, order, median_of_finite(windows), axis=-1)
    return medians


def median_of_finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of those along the last axis that are not NaN; NaN where all are. None is infinite."""
    ordered = np.sort(values, axis=-1)  # NaN comes last
    found = np.isfinite(ordered).sum(axis=-1, keepdims=True)
    low, high = np.maximum(found - 1, 0) // 2, np.minimum(found // 2, values.shape[-1] - 1)
    middle = [np.take_along_axis(ordered, place, axis=-1) for place in (low, high)]
    return np.asarray(0.5 * (middle[0] + middle[1]))[..., 0]


def find_factors(
    observed: NDArray[np.float32],
    offsets: NDArray[np.float64],
    times: NDArray[np.floating],
    section: DataSection,
    picks: Mapping[str, NDArray[np.float64]] | None = None,
) -> NDArray[np.float32]:
    """What the traces (receiver, time) of a shot are multiplied by; times: after the shot, s.

    picks: of the traces (receiver,), by the names of the files of mutes, s; NaN where none is.
    """
    factors = np.ones(observed.shape)
    for mute in section.mute:
        picked = picks[mute.picks] if picks and mute.picks is not None else None
        factors *= _silence(times, offsets, mute, picked)
    if section.gain:
        factors *= np.maximum(times, 0.0) ** section.gain
    if section.weight is not None:
        factors *= _weigh(observed, offsets, section.weight)[:, None]
    return factors.astype(np.float32)


def _silence(
    times: NDArray[np.floating],
    offsets: NDArray[np.float64],
    mute: Mute,
    picked: NDArray[np.float64] | None,
) -> NDArray[np.float64]:
    """Factors (receiver, time), 0 on one side of a line and 1 on the other."""
    if picked is not None:
        line, keep = picked + mute.delay, mute.keep
    elif mute.after is not None:
        line, keep = np.full_like(offsets, mute.after), "above"
    elif mute.curve is not None:
        line, keep = np.interp(offsets, *np.array(mute.curve).T) + mute.delay, mute.keep
    else:
        assert mute.velocity is not None
        line, keep = offsets / mute.velocity + mute.delay, mute.keep
    later = times - line[:, None]
    below, above = _rise(later - (mute.width or 0.0), mute.taper), _rise(-later, mute.taper)
    kept = {"below": below, "above": above, "outside": below + above}[keep]
    # Where a line is not known, nothing is kept
    return np.where(np.isnan(line)[:, None], 0.0, kept)


def _rise(time: NDArray[np.float64], taper: float) -> NDArray[np.float64]:
    """0 up to time 0, 1 from `taper` (s) on, and half a period of a cosine between them."""
    if taper == 0.0:
        return (time > 0.0).astype(np.float64)
    return 0.5 - 0.5 * np.cos(np.pi * np.clip(time / taper, 0.0, 1.0))


def _weigh(
    observed: NDArray[np.float32], offsets: NDArray[np.float64], weight: Weight
) -> NDArray[np.float64]:
    """Factors of the traces (receiver,): 1 for one that is silent or not finite."""
    factors = (np.maximum(offsets, SMALLEST_OFFSET) / REFERENCE_OFFSET) ** weight.offset
    if weight.amplitude:
        loudness = root_mean_square(observed)
        usable = np.isfinite(loudness) & (loudness > 0.0)
        if usable.any():
            ratio = np.where(usable, loudness / np.median(loudness[usable]), 1.0)
            factors *= ratio**weight.amplitude
    return factors
