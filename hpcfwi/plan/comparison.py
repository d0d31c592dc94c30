"""Observed data beside those of the starting model: what is told of them, and what is wrong.

The functions take traces. `data` simulates and reads these, `report.fit` draws them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hpcfwi.inversion.conditioning import NOTHING
from hpcfwi.inversion.shot_qc import View
from hpcfwi.inversion.wavelets import Estimate
from hpcfwi.plan.arrivals import (
    Array,
    Scan,
    Tally,
    correlation,
    find_arrivals,
    fit_wavelet,
    predict,
)
from hpcfwi.plan.checks import Finding
from hpcfwi.survey import TimeAxis

# Correlation of first arrivals, above which they are taken for the same.
ALIKE = 0.5
# Shares of the traces whose arrivals are not alike, and that are skipped, from which it is told;
# and of those in a band of offsets that has a twentieth of all.
UNLIKE, SKIPPED = 0.5, 0.2
SKIPPED_IN_BAND, LEAST_BAND = 0.4, 0.05
# Ratios of amplitudes and, of first arrivals, noise before them and delay in periods.
LOUDEST, NOISE, LATE = 5.0, 0.3, 0.25
# Periods from the onset of a simulated arrival to its peak, or beyond: where the observed trace is
# muted until then, the arrival is not in it. The share of such traces from which it is told.
PEAK, MUTED = 0.75, 0.2
# First arrivals fewer than these tell nothing of a wavelet, of times or of signs.
FEW = 10
# By which factor an amplitude may be off to be taken for that of another code's sources.
CONVENTION = 1.3
OFFSET_BANDS = 4
SIGNS = {1: "is the same", -1: "is the opposite", 0: "cannot be told"}

# What follows, and the remedy, in inversions and in images: of arrivals that are off by more than
# half a period, and of amplitudes that are others.
SKIPPED_CYCLES = {
    False: (
        "least squares would fit the wrong cycle",
        "Begin with lower frequencies, a better starting model, data.offsets that are nearer, "
        'or inversion.misfit = "transport", "adaptive" or "envelope".',
    ),
    True: (
        "reflectors would not be in the same place in the images of different shots",
        "Migrate in a model that explains when waves arrive, as that of an inversion may, or give "
        "data.offsets that are nearer.",
    ),
}
OTHER_AMPLITUDES = {
    False: (
        "the misfit would be of amplitudes, not of times",
        'Scale the data or the wavelet, or give inversion.misfit = "normalized" or "correlation", '
        "which know no amplitudes.",
    ),
    True: (
        "the reflectivities would be as many times too large",
        "Scale the data or the wavelet, or take the image for reflectors' places alone.",
    ),
}


@dataclass(frozen=True)
class Band:
    """Traces of a range of offsets (m): how many have an arrival, and which share is skipped."""

    near: float
    far: float
    traces: int
    skipped: float


@dataclass(frozen=True)
class Convention:
    """The difference between the sources of another code and ours.

    names: of codes; factor: of their amplitudes to ours; reason: the difference in words.
    """

    names: str
    factor: float
    reason: str


def list_conventions(cell: float, speed: float, dt: float) -> tuple[Convention, ...]:
    """Return the conventions of codes that are known.

    Parameters
    ----------
    cell
        Volume of a cell: of an area in 2-D, in m^2.
    speed
        Speed of waves at the sources, in m/s.
    dt
        Sampling of the data, in s, which is taken for the step of the other code.
    """
    undivided = f"are not divided by the volume of a cell ({cell:.4g})"
    return (
        Convention("Deepwave's scalar", -cell, f"{undivided} and have the opposite sign"),
        Convention("Devito and JUDI", cell, undivided),
        Convention(
            "SWEEP",
            cell / (speed * dt) ** 2,
            f"{undivided} nor multiplied by the squares of velocity and step "
            f"({speed:.4g} and {dt:.4g})",
        ),
    )


@dataclass(frozen=True)
class Comparison:
    """Observed data compared with those of the starting model.

    views: the shots; axis: time axis of their traces; scan: of all traces, None where they are
    hpcfwi's own; period: of the wavelet's peak frequency, s.

    traces: number of traces with a first arrival; muted: how many of these are muted there in
    the observed data; alike: the share of the others in which it is the observed one; ratio, noise,
    lag (s): medians as in `Arrivals`, noise NaN of muted data, lag of the nearest third; sign;
    skipped: the share, of those that are alike, off by more than half a period, and by offset;
    offsets (m), lags (s): of these traces.

    correlation, fitted: of whole traces, and with a wavelet that was fitted to others of them, NaN
    of a single one; is_same: whether observed and simulated data are equal; is_silent: whether
    nothing was simulated; is_fitted: whether simulated data are those of an estimated wavelet;
    left: the share of the observed amplitude that is in the band of the comparison; conventions: of
    other codes, with which the amplitudes are compared.
    """

    views: tuple[View, ...]
    axis: TimeAxis
    scan: Scan | None
    period: float
    traces: int
    muted: int
    alike: float
    ratio: float
    noise: float
    lag: float
    sign: int
    skipped: float
    bands: tuple[Band, ...]
    offsets: NDArray[np.float64]
    lags: NDArray[np.float64]
    correlation: float
    fitted: float
    is_same: bool
    is_silent: bool
    is_fitted: bool
    left: float
    conventions: tuple[Convention, ...]

    @property
    def factor(self) -> float:
        """Observed amplitudes over simulated ones, negative where their signs are opposite."""
        return -self.ratio if self.sign < 0 else self.ratio

    @property
    def told(self) -> int:
        """Number of first arrivals that can be compared."""
        return self.traces - self.muted


def compare(
    views: Sequence[View],
    scan: Scan | None,
    axis: TimeAxis,
    period: float,
    left: float = 1.0,
    estimate: Estimate | None = None,
    heads: Mapping[int, NDArray[np.float64]] | None = None,
    conventions: Sequence[Convention] = (),
) -> Comparison:
    """Find the numbers of some shots; axis, period, left, conventions: as in `Comparison`.

    heads: until when the receivers (receiver,) of each shot were muted in the data as they were
    recorded, as `find_heads` has it; None where the data are hpcfwi's own.

    estimate: how the wavelet will be found, None where it is known. Simulated data are then those
    of one that is found here alike, so that nothing is told of what an estimate mends.
    """
    observed, simulated = join(views)
    is_same, is_silent = bool(np.array_equal(observed, simulated)), not simulated.any()
    if estimate is not None:
        together = [[view] for view in views] if estimate.per == "shot" else [list(views)]
        views = [fitted for some in together for fitted in _fit(some, estimate.furthest)]
        observed, simulated = join(views)
    offsets = np.abs(np.concatenate([view.offsets for view in views]))
    found = find_arrivals(observed, simulated, axis.dt, period)
    head = _join_heads(views, heads)[found.places]
    muted = head > axis.start + found.onset + PEAK * period
    # Before what is left of a muted trace there are zeros, not noise
    recorded = found.noise[np.isneginf(head)]
    far, alike = offsets[found.places], (found.likeness >= ALIKE) & ~muted
    skips = np.abs(found.lag) > 0.5 * period
    near = alike & (far <= np.quantile(far, 1.0 / 3.0)) if far.size else alike
    live = np.isfinite(observed).all(axis=1) & observed.any(axis=1) & simulated.any(axis=1)
    fits = observed[live], simulated[live]
    return Comparison(
        tuple(views),
        axis,
        scan,
        period,
        int(found.places.size),
        int(muted.sum()),
        float(alike[~muted].mean()) if not muted.all() else 0.0,
        _median(found.ratio[~muted]),
        _median(recorded) if recorded.size or not head.size else float("nan"),
        _median(found.lag[near]),
        found.sign,
        float(skips[alike].mean()) if alike.any() else 0.0,
        tuple(_in_bands(far[alike], skips[alike])),
        far[alike],
        found.lag[alike],
        correlation(*fits),
        correlation(fits[0], predict(*fits)) if len(fits[0]) > 1 else float("nan"),
        is_same,
        is_silent,
        estimate is not None,
        left,
        tuple(conventions),
    )


def _join_heads(
    views: Sequence[View], heads: Mapping[int, NDArray[np.float64]] | None
) -> NDArray[np.float64]:
    """Until when the traces of all views were muted, in s after the shot."""
    if heads is None:
        return np.full(sum(len(view.offsets) for view in views), -np.inf)
    return np.concatenate([heads[view.number][view.receivers] for view in views])


def join(views: Sequence[View]) -> tuple[Array, Array]:
    """Observed and simulated traces (trace, time) of all of them."""
    observed, simulated = (
        np.concatenate([getattr(view, name) for view in views]).astype(np.float64)
        for name in ("observed", "simulated")
    )
    return observed, simulated


def _fit(views: Sequence[View], furthest: float | None) -> list[View]:
    """The same, simulated with a wavelet that is found from traces up to the furthest offset, m."""
    observed, simulated = join(views)
    offsets = np.abs(np.concatenate([view.offsets for view in views]))
    near = offsets <= (np.inf if furthest is None else furthest)
    heard = np.isfinite(observed).all(axis=1) & near
    fitted = fit_wavelet(observed, simulated, heard).astype(np.float32)
    ends = np.cumsum([len(view.simulated) for view in views])[:-1]
    parts = np.split(fitted, ends)
    return [replace(view, simulated=part) for view, part in zip(views, parts, strict=True)]


def describe(c: Comparison) -> Iterator[str]:
    """A comparison in lines."""
    shots = ", ".join(str(view.number) for view in c.views)
    yield (
        f"shot{'s' * (len(c.views) > 1)} {shots} in the starting model"
        f"{', with a wavelet estimated in it' * c.is_fitted}: first arrivals in {c.traces} traces, "
        + (f"of which the observed data are muted in {c.muted}, " if c.muted else "")
        + f"found again in {100 * c.alike:.0f} % of {'the others' if c.muted else 'them'}"
    )
    yield (
        f"observed amplitudes are {c.ratio:.3g} times the simulated ones, their sign "
        f"{SIGNS[c.sign]}, noise before them "
        + (f"{100 * c.noise:.1f} %" if c.noise == c.noise else "muted")
    )
    yield (
        f"near arrivals {1000 * abs(c.lag):.0f} ms {'late' if c.lag >= 0.0 else 'early'}; "
        f"correlation of the traces {c.correlation:.2f}"
        + (f", {c.fitted:.2f} with a wavelet fitted to others" if c.fitted == c.fitted else "")
    )
    told = ", ".join(
        f"{band.near / 1000:.1f} to {band.far / 1000:.1f} km {100 * band.skipped:.0f} %"
        for band in c.bands
    )
    yield f"off by more than half a period: {100 * c.skipped:.0f} %" + (
        f" ({told})" if told else ""
    )
    if c.scan is not None:
        s = c.scan
        yield (
            f"of all {s.traces} traces {s.broken.count} are not finite, {s.spiky.count} have a "
            f"spike, {s.dead.count} are dead, {s.loud.count} loud; {len(s.silent)} silent shots"
        )


def check_comparison(
    c: Comparison,
    where: str,
    begins: bool = True,
    linear: bool = False,
    knows_amplitudes: bool = True,
) -> list[Finding]:
    """Return what is wrong with the data.

    where: the file, or the key, that they come from; begins: whether the inversion of these data
    begins with the starting model, or else findings that a better model mends, such as skipped
    cycles, are left out; linear: whether an image is made in the starting model, and not a better
    model; knows_amplitudes: whether the misfit depends on amplitudes.
    """
    if c.is_silent:
        return [
            Finding(
                "error",
                where,
                "no wave arrives at a receiver while it records: all simulated traces are zero",
                "Record longer, place receivers nearer to the sources, or check data.mute.",
            )
        ]
    if c.scan is not None and len(c.scan.silent) == c.scan.shots:
        return [
            Finding(
                "error",
                where,
                "all observed traces that count are zero",
                "Write the file again from its source, or check data.offsets and data.mute.",
            )
        ]
    if c.left < NOTHING:
        return [
            Finding(
                "error",
                "data.band",
                f"a share of {c.left:.0e} of the observed amplitude is in the band: nothing was "
                "recorded there",
                "Give a band that the data have.",
            )
        ]
    if c.is_same:
        return [
            Finding(
                "error",
                "model.initial",
                "the starting model gives the observed data exactly: the misfit is zero, and "
                "there is nothing to invert for",
                "Give another starting model, or other data.",
            )
        ]
    found = [*_check_scan(c.scan, where), *_check_mutes(c, where)]
    if begins or c.alike >= UNLIKE:
        found += _check_amplitudes(c, where, linear, knows_amplitudes)
    return [*found, *_check_times(c, where, linear)] if begins else found


def _check_mutes(c: Comparison, where: str) -> Iterator[Finding]:
    if c.muted > MUTED * c.traces:
        yield Finding(
            "warning",
            where,
            f"observed data are muted, zero, where {c.muted} of {c.traces} first arrivals of the "
            "starting model are: nothing is known of these, and the misfit would make the model "
            "explain the silence",
            "Give a data.mute that silences the same in simulated traces, or take the data as they "
            "were before they were muted.",
        )
    if c.told < FEW:
        yield Finding(
            "warning",
            where,
            f"only {c.told} first arrivals can be compared: these are too few to tell times, signs "
            "and amplitudes, and a wavelet that is fitted to them explains anything",
            "Give wider data.offsets and data.edit, or data with more traces that are neither dead "
            "nor muted.",
        )


def find_convention(c: Comparison) -> Convention | None:
    """Return the convention that explains by how much observed amplitudes differ, if one does."""
    if c.alike < UNLIKE:
        return None
    for convention in c.conventions:
        off = c.factor / convention.factor
        if 1.0 / CONVENTION < off < CONVENTION and not 0.5 < abs(convention.factor) < 2.0:
            return convention
    return None


def _check_amplitudes(
    c: Comparison, where: str, linear: bool, knows_amplitudes: bool
) -> Iterator[Finding]:
    convention = find_convention(c)
    if convention is not None:
        yield Finding(
            "warning",
            where,
            f"observed amplitudes are {c.factor:.3g} times the simulated ones, about "
            f"{convention.factor:.4g} times: as those of {convention.names}, whose sources "
            f"{convention.reason}",
            f"If they were simulated with that, multiply the data by {1.0 / convention.factor:.6g} "
            f"(in the file, /data), or the wavelet by {convention.factor:.6g} (/wavelet).",
        )
    elif knows_amplitudes and (c.ratio > LOUDEST or c.ratio < 1.0 / LOUDEST):
        consequence, remedy = OTHER_AMPLITUDES[linear]
        found = f"observed amplitudes are {c.ratio:.2g} times the simulated ones: {consequence}"
        yield Finding("warning", where, found, remedy)
    if c.sign < 0 and c.alike >= UNLIKE and convention is None:
        yield Finding(
            "warning",
            where,
            "observed arrivals have the opposite sign of the simulated ones",
            "Multiply the data, or the wavelet, by -1.",
        )
    if c.noise > NOISE:
        yield Finding(
            "warning",
            where,
            f"before the first arrivals there is noise of {100 * c.noise:.0f} % of them",
            "Give a data.mute before them, filter the data, or a misfit that forgives outliers "
            '(inversion.misfit = "student").',
        )


def _check_times(c: Comparison, where: str, linear: bool) -> Iterator[Finding]:
    if c.told and c.alike < UNLIKE:
        yield Finding(
            "warning",
            where,
            f"the first arrivals of the starting model are found in {100 * c.alike:.0f} % of the "
            f"{'other ' * bool(c.muted)}traces only: these are noise, other data, or of another "
            "wavelet",
            "See the figure of hpcfwi check: compare geometry, time axis and wavelet, or give "
            "data.offsets.",
        )
    if abs(c.lag) > LATE * c.period and c.alike >= UNLIKE:
        yield Finding(
            "warning",
            where,
            f"at near offsets observed arrivals are {1000 * abs(c.lag):.0f} ms "
            f"{'later' if c.lag > 0 else 'earlier'} than simulated ones, of a period of "
            f"{1000 * c.period:.0f} ms",
            "Check the wavelet's delay against the data's time zero, and velocities near the "
            "surface.",
        )
    least = LEAST_BAND * sum(band.traces for band in c.bands)
    bands = [band for band in c.bands if band.traces >= least]
    worst = max(bands, key=lambda band: band.skipped, default=None)
    if worst is not None and (c.skipped > SKIPPED or worst.skipped > SKIPPED_IN_BAND):
        consequence, remedy = SKIPPED_CYCLES[linear]
        yield Finding(
            "warning",
            "model.initial",
            f"arrivals are off by more than half a period in {100 * c.skipped:.0f} % of the "
            f"traces, {100 * worst.skipped:.0f} % at offsets of {worst.near:.0f} to "
            f"{worst.far:.0f} m: {consequence}",
            remedy,
        )


def _check_scan(scan: Scan | None, where: str) -> Iterator[Finding]:
    if scan is None:
        return
    if scan.silent:
        yield Finding(
            "warning",
            where,
            f"{len(scan.silent)} shots are silent, the first is shot {scan.silent[0]}",
            "Take them out, or give data.edit = {}, which leaves out what is dead.",
        )
    for faulty, what, effect in (
        (scan.broken, "not finite", "shots that have one are set aside"),
        (scan.spiky, "of one sample that is far beyond all others", "it outvotes the others"),
        (scan.loud, "more than 10 times as loud as their neighbours", "they outvote these"),
        (scan.dead, "dead among neighbours that are not", "they would be fitted"),
    ):
        if faulty.count:
            yield Finding(
                "warning",
                where,
                f"{faulty.count} of {scan.traces} traces are {what} ({_list(faulty)}): {effect}",
                "Give data.edit = {}, which leaves them out, or mend the data.",
            )


def _list(faulty: Tally) -> str:
    told = [f"shot {shot}, receiver {receiver}" for shot, receiver in faulty.first]
    return "; ".join([*told, *(["..."] if faulty.count > len(told) else [])])


def _in_bands(offsets: NDArray[np.float64], skips: NDArray[np.bool_]) -> Iterator[Band]:
    if not offsets.size:
        return
    ends = np.linspace(0.0, float(offsets.max()), OFFSET_BANDS + 1)
    number = np.clip(np.digitize(offsets, ends) - 1, 0, OFFSET_BANDS - 1)
    for band in range(OFFSET_BANDS):
        there = number == band
        if there.any():
            share = float(skips[there].mean())
            yield Band(ends[band], ends[band + 1], int(there.sum()), share)


def _median(values: NDArray[np.float64]) -> float:
    """Return the median of finite values, 0 if there are none."""
    usable = values[np.isfinite(values)]
    return float(np.median(usable)) if usable.size else 0.0
