"""Conditioning of traces before they are compared: bands, line sources, picks, mutes and weights.

Two operations are applied to observed traces only, when they are read: traces of point sources are
converted to those of line sources for a 2-D earth, and then they are filtered. The wavelet is
filtered in the same way, so that simulated traces need no filter. The response of a zero-phase
filter begins before the signal, so that records of a band begin and end `lead` seconds earlier. All
other factors multiply both observed and simulated traces, so that the transpose is the same
multiplication. Factors, and whether a trace counts, never depend on simulated traces.

A file of picks has a header, which names its columns, and a row for each pick, with commas or
blanks between the numbers. Columns are `shot`, `receiver`, `time`, the first two counted from 0 as
in the gathers file; or `source_x`, `receiver_x`, `time`, and in a 3-D model also `source_y`,
`receiver_y`. Positions are in m, times in s after the shot. Empty lines, and text after a #, are
ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.config.survey import DataSection, Edit, Mute, Weight
from hpcfwi.errors import InputError, quote, refusing
from hpcfwi.operators.simulator import find_offsets
from hpcfwi.survey import Survey, divide
from hpcfwi.system import check_regular, check_room

# Order of the Butterworth filters whose squared magnitude is the response.
ORDER = 4
# Largest share of the energy of an impulse's response that is more than `lead` before the impulse.
EARLY = 1e-4
# Amplitudes below this share are negligible; those above the Nyquist frequency are aliased.
SILENT = 1e-3
# A band with less than this share of a signal's amplitude has only rounding errors.
NOTHING = 1e-4


@dataclass(frozen=True)
class Band:
    """A filter of traces of `n` samples, `dt` s apart.

    low, high: frequencies (Hz) at which the amplitude is halved; low may be 0 for a low-pass.
    """

    low: float
    high: float
    n: int
    dt: float

    @cached_property
    def factor(self) -> int:
        """The decimation of samples, a product of small primes so that transforms are fast."""
        # 1 / (1 + (f / high)^(2 ORDER)) = SILENT
        highest = self.high * (1.0 / SILENT - 1.0) ** (0.5 / ORDER)
        most = max(1, int(0.5 / (highest * self.dt)))
        return next(k for k in range(most, 0, -1) if scipy.fft.next_fast_len(k) == k)

    @property
    def interval(self) -> float:
        """Time between the kept samples, s."""
        return self.factor * self.dt

    @cached_property
    def lead(self) -> float:
        """Time (s) by which records begin before the shot, a whole number of kept samples."""
        n = 4 * self.n
        pulse = scipy.fft.irfft(self.response(scipy.fft.rfftfreq(n, self.dt)), n)
        energy = pulse[: n // 2] ** 2
        late = np.cumsum(energy[::-1])[::-1] / (2.0 * energy.sum() - energy[0])
        samples = min(int(np.count_nonzero(late > EARLY)), self.n // 2)
        return -(-samples // self.factor) * self.interval

    def filter(self, traces: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return traces (..., time) in the band, at its interval, each filtered separately."""
        early, kept = round(self.lead / self.interval), -(-self.n // self.factor)
        # With so many samples, the signal before the beginning does not reach the end.
        m = int(scipy.fft.next_fast_len(kept + 2 * early, real=True))
        # SciPy's transforms compute in single precision, the precision of traces.
        spectra = scipy.fft.rfft(np.asarray(traces, np.float32), m * self.factor)[..., : m // 2 + 1]
        response = self.response(scipy.fft.rfftfreq(m, self.interval)) / self.factor
        whole = scipy.fft.irfft(spectra * response.astype(np.float32), m)
        # In the periodic signal, the samples before its beginning are at the end.
        return np.asarray(np.roll(whole, early, axis=-1)[..., :kept], np.float32)

    def filter_each(self, wavelets: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return wavelets (shot, time) in the band; a few are filtered at a time."""
        found = np.empty((len(wavelets), -(-self.n // self.factor)), np.float32)
        for part in divide(wavelets):
            found[part] = self.filter(wavelets[part])
        return found

    def survey(self, survey: Survey, wavelet: NDArray[np.float32]) -> Survey:
        """Return the survey in this band, with its filtered wavelet."""
        start = survey.start - self.lead
        return replace(survey, wavelet=wavelet, dt=self.interval, start=start)

    def response(self, frequencies: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the amplitudes at frequencies (Hz) of a filter that is applied in both directions.

        See Butterworth (1930).
        """
        response = 1.0 / (1.0 + (frequencies / self.high) ** (2 * ORDER))
        if self.low > 0.0:
            with np.errstate(divide="ignore"):
                response /= 1.0 + (self.low / frequencies) ** (2 * ORDER)
        return np.asarray(response, dtype=np.float64)


def correct_point_source(
    traces: NDArray[np.floating], origin: float, dt: float, speed: float
) -> NDArray[np.float32]:
    """Return traces (receiver, time) with the phase and the amplitude of waves in two dimensions.

    In a medium of velocity c, at a distance of many wavelengths, the Green's function of a line is
    that of a point times sqrt(2 pi r c / (i omega)). This is an integration by half an order, and a
    factor sqrt(2 pi r c), which is c sqrt(2 pi t) with r = c t (Forbriger, Gross and Schaefer 2014,
    single-trace transformation; Auer et al. 2013). It is correct for every arrival that has
    travelled at c; for others, only the phase is correct. Each trace is transformed separately.

    origin: from which travel times are counted, s after the first sample; dt: s; speed: c, m/s.
    """
    n = traces.shape[-1]
    travelled = np.maximum(np.arange(n) * dt - origin, 0.0)
    # Without the padding, the end of the signal would return at its beginning.
    spectra = half_integral(n, dt) * np.fft.rfft(traces.astype(np.float64), 2 * n)
    halfway = np.fft.irfft(spectra, 2 * n)[..., :n]
    # The integral is 0 before the first sample that is not
    halfway[np.logical_and.accumulate(traces == 0.0, axis=-1)] = 0.0
    return (halfway * speed * np.sqrt(2.0 * np.pi * travelled)).astype(np.float32)


def half_integral(n: int, dt: float) -> NDArray[np.complex128]:
    """Return the spectrum (n + 1,) of integration by half an order, over 2 n samples every dt (s).

    It is the Fourier integral of 1 / sqrt(pi t) up to the time n dt, so that signals which their
    samples hold are integrated exactly.
    """
    k = np.arange(1, n + 1)
    sine, cosine = scipy.special.fresnel(np.sqrt(2.0 * k))
    return 2.0 * np.sqrt(n * dt / np.pi) * np.append(1.0, (cosine - 1j * sine) / np.sqrt(2.0 * k))


# Returns the traces (receiver, time) of a shot to compare, from those in the file and its number.
Preprocess = Callable[[NDArray[np.float32], int], NDArray[np.float32]]


def find_preprocessing(
    section: DataSection, survey: Survey, band: Band | None, speed: float
) -> Preprocess | None:
    """Return a function that corrects and filters recorded traces, None if they stay as is.

    survey: in the band; speed: at the sources, m/s.
    """
    if section.correct is None:
        return None if band is None else lambda recorded, _: band.filter(recorded)
    lead, dt = (0.0, survey.dt) if band is None else (band.lead, band.dt)
    peaks = survey.dt * np.abs(survey.wavelet).argmax(axis=-1) - lead
    origins = np.broadcast_to(peaks, survey.n_shots)

    def preprocess(recorded: NDArray[np.float32], shot: int) -> NDArray[np.float32]:
        corrected = correct_point_source(recorded, origins[shot], dt, speed)
        return corrected if band is None else band.filter(corrected)

    return preprocess


# Largest distance (m) between a position in the file and the one in the survey.
NEAREST = 1.0
NUMBERS = ("shot", "receiver", "time")


def sign_offsets(
    source: NDArray[np.float64], receivers: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return offsets (m) of receivers (receiver, ndim), negative on the side of smaller x."""
    offsets = find_offsets(source, receivers)
    return np.where(receivers[:, -1] < source[-1], -offsets, offsets)


@dataclass(frozen=True)
class Picks:
    """Picks of some traces of a survey, sorted by shots.

    sources: (shot, ndim), m, of the shots with picks; ends: (shot + 1,), where the picks of each
    shot begin and end; receivers: (pick, ndim), m; times: (pick,), s after the shot.
    """

    sources: NDArray[np.float64]
    ends: NDArray[np.int64]
    receivers: NDArray[np.float64]
    times: NDArray[np.float64]

    @cached_property
    def _places(self) -> dict[bytes, slice]:
        pairs = zip(self.sources, pairwise(self.ends), strict=True)
        return {source.tobytes(): slice(*ends) for source, ends in pairs}

    def find_line(
        self, source: NDArray[np.float64], offsets: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return times (s) at signed offsets (m) from a source, interpolated between its picks.

        Between the innermost picks of both sides, the line goes straight across the source. Times
        are NaN beyond the outermost picks, and for a source without picks.
        """
        mine = self._places.get(source.tobytes())
        if mine is None:
            return np.full(offsets.shape, np.nan)
        at, where = np.unique(sign_offsets(source, self.receivers[mine]), return_inverse=True)
        times = np.bincount(where, self.times[mine]) / np.bincount(where)
        return np.asarray(np.interp(offsets, at, times, left=np.nan, right=np.nan))

    def find_times(
        self, source: NDArray[np.float64], receivers: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the pick (s) of each trace, or a time interpolated between others without one."""
        times = self.find_line(source, sign_offsets(source, receivers))
        mine = self._places.get(source.tobytes())
        if mine is not None:
            pairs = zip(self.receivers[mine], self.times[mine], strict=True)
            own = {receiver.tobytes(): time for receiver, time in pairs}
            for trace, receiver in enumerate(receivers):
                times[trace] = own.get(receiver.tobytes(), times[trace])
        return times


def read_picks(path: Path, survey: Survey) -> Picks:
    """Read the picks of a survey's traces, in one process.

    Raises `InputError` with the line for a row that is not a pick of this survey.
    """
    lines, columns, values = _read_rows(path, survey.sources.shape[1])
    times = values[:, columns.index("time")]
    end = survey.start + survey.dt * survey.n_samples
    # Some picks may be after the end, because records may have been cut.
    late = np.flatnonzero(times > end)
    if 2 * late.size > times.size:
        raise InputError(
            f"{path}, line {lines[late[0]]}",
            f"its time is {times[late[0]]:g} s, like {late.size - 1} others after the end of the "
            f"record, {end:g} s; expected s after the shot",
            "They seem to be in milliseconds: divide the times by 1000."
            if float(np.median(times)) > 10.0 * end >= 1e-3 * float(times.max())
            else "Give picks of this survey.",
        )
    if "shot" in columns:
        traces = values[:, [columns.index("shot"), columns.index("receiver")]]
        _check_numbers(path, lines, traces, survey)
        shots, receivers = traces.astype(np.int64).T
    else:
        shots, receivers = _find_traces(path, lines, columns, values, survey)
    _, first = np.unique(shots * survey.n_receivers + receivers, return_index=True)
    if first.size < shots.size:
        again = int(np.setdiff1d(np.arange(shots.size), first)[0])
        raise InputError(
            f"{path}, line {lines[again]}",
            f"shot {shots[again]}, receiver {receivers[again]} already has a pick",
            "Remove one of the two lines.",
        )
    order = np.lexsort((receivers, shots))
    shots, receivers, times = shots[order], receivers[order], times[order]
    picked, begins = np.unique(shots, return_index=True)
    places = (receivers,) if survey.receivers.ndim == 2 else (shots, receivers)
    return Picks(
        survey.sources[picked],
        np.append(begins, shots.size).astype(np.int64),
        survey.receivers[places],
        times,
    )


def _read_rows(path: Path, ndim: int) -> tuple[list[int], list[str], NDArray[np.float64]]:
    """Return the numbers of the lines with picks, the names of the columns, and all values."""
    with refusing(str(path), "it cannot be read", "Check the name and its permissions."):
        check_regular(path)
        check_room(str(path), "the picks", 40.0 * path.stat().st_size, "Give fewer rows.")
        texts = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    across = ("x",) if ndim == 2 else ("x", "y")
    places = tuple(f"{what}_{axis}" for what in ("source", "receiver") for axis in across)
    header, lines, rows = None, [], []
    for number, line in enumerate(texts, start=1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        if header is None:
            header = [word.lower() for word in words]
            if sorted(header) not in (sorted(NUMBERS), sorted((*places, "time"))):
                raise InputError(
                    f"{path}, line {number}",
                    f"found {quote(line.strip())}, expected the names of the columns: "
                    f"{' '.join(NUMBERS)}, or {' '.join(places)} time",
                    "Write such a header above the picks; numbers count from 0, positions are in "
                    "m, and times are in s.",
                )
            continue
        try:
            row = [float(word) for word in words]
        except ValueError:
            row = []
        if len(row) != len(header) or not np.isfinite(row).all():
            raise InputError(
                f"{path}, line {number}",
                f"found {quote(line.strip())}, expected {len(header)} numbers: {' '.join(header)}",
                "Give a row for each pick, and none for a trace without one.",
            )
        lines.append(number)
        rows.append(row)
    if header is None or not rows:
        raise InputError(
            str(path), "it has no pick", f"Write a header, {' '.join(NUMBERS)}, and a row per pick."
        )
    return lines, header, np.array(rows)


def _check_numbers(
    path: Path, lines: list[int], traces: NDArray[np.float64], survey: Survey
) -> None:
    n_shots, n_receivers, _ = survey.shape
    most = (n_shots, n_receivers)
    wrong = ((traces != np.rint(traces)) | (traces < 0) | (traces >= most)).any(axis=1)
    if wrong.any():
        first = int(wrong.argmax())
        raise InputError(
            f"{path}, line {lines[first]}",
            f"found shot {traces[first, 0]:g}, receiver {traces[first, 1]:g}; expected 0 to "
            f"{n_shots - 1} and 0 to {n_receivers - 1}, as in the gathers file",
            "Count both from 0, or give positions: source_x receiver_x time.",
        )


def _find_traces(
    path: Path,
    lines: list[int],
    columns: list[str],
    values: NDArray[np.float64],
    survey: Survey,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the shot and the receiver of each row, from their positions."""
    axes = ("y", "x")[-(survey.sources.shape[1] - 1) :]
    sources, receivers = (
        values[:, [columns.index(f"{what}_{axis}") for axis in axes]]
        for what in ("source", "receiver")
    )
    shots, heard = np.empty((2, len(values)), dtype=np.int64)
    each, which = np.unique(sources, axis=0, return_inverse=True)
    order = np.argsort(which.reshape(-1), kind="stable")
    ends = np.cumsum(np.bincount(which.reshape(-1)))[:-1]
    for source, rows in zip(each, np.split(order, ends), strict=True):
        away = np.linalg.norm(survey.sources[:, 1:] - source, axis=1)
        shot = int(away.argmin())
        _check_near(path, lines[rows[0]], "source", away[shot])
        one = survey.select(np.array([shot]))
        away = np.linalg.norm(one.receivers[0, None, :, 1:] - receivers[rows, None], axis=2)
        if one.mask is not None:
            away[:, ~one.mask[0]] = np.inf
        found = away.argmin(axis=1)
        least = away[np.arange(rows.size), found]
        worst = int(least.argmax())
        _check_near(path, lines[rows[worst]], "receiver of this shot", least[worst])
        shots[rows], heard[rows] = shot, found
    return shots, heard


def _check_near(path: Path, line: int, what: str, away: float) -> None:
    if away > NEAREST:
        raise InputError(
            f"{path}, line {line}",
            f"the nearest {what} of the survey is {away:.6g} m away, expected {NEAREST:g} m at "
            "most",
            "Give positions in m, in the coordinates of the gathers file, or numbers: shot "
            "receiver time.",
        )


# Number of traces, in the order of offsets, with whose median the one in their middle is compared.
NEIGHBOURS = 11
REFERENCE_OFFSET = 1000.0  # m
SMALLEST_OFFSET = 10.0  # m


@dataclass(frozen=True)
class Conditioned:
    """Observed traces of some shots, with the factors of observed and simulated traces.

    observed: (shot, receiver, time); counts: mask (shot, receiver) of the traces that count;
    factors: in the shape of observed, None if all are 1; gains: (shot, receiver, 1), further
    factors of whole traces, None if all are 1.
    """

    observed: NDArray[np.float32]
    counts: NDArray[np.bool_]
    factors: NDArray[np.float32] | None
    gains: NDArray[np.float32] | None = None

    def pair_traces(self, simulated: Tensor) -> tuple[Tensor, Tensor]:
        """Return simulated and observed traces (shot, receiver, time) for a misfit.

        A simulated trace that does not count is paired with itself, so that its residual is zero.
        """
        counts = torch.from_numpy(self.counts[..., None]).to(simulated.device)
        observed = torch.where(counts, torch.from_numpy(self.observed).to(simulated), simulated)
        return self.weigh(simulated), self.weigh(observed)

    def weigh(self, traces: Tensor) -> Tensor:
        """Multiply traces by the factors and gains; the operator is its own transpose."""
        for factors in (self.factors, self.gains):
            if factors is not None:
                traces = torch.from_numpy(factors).to(traces) * traces
        return traces


@dataclass(frozen=True)
class Conditioning:
    """The treatment of traces that the section [data] describes.

    picks: for mutes, by the names of their files; gains: factors of the traces of each of the
    survey's components, in their order, see `find_gains`; empty if all are 1.
    """

    section: DataSection
    picks: Mapping[str, Picks] = field(default_factory=dict)
    gains: tuple[float, ...] = ()

    def apply(self, observed: NDArray[np.float32], survey: Survey) -> Conditioned:
        """Condition the traces (shot, receiver, time) of a survey with receivers for each shot."""
        section, factors = self.section, None
        if section.shapes_traces:
            times = survey.axis.times(survey.n_samples)
            # For encoded shots, any source will do: `checks` refuses keys that depend on offsets.
            sources = survey.sources if survey.sources.ndim == 2 else survey.sources[:, 0]
            offsets = find_offsets(sources, survey.receivers)
            factors = np.ones(observed.shape, np.float32)
            for k, some in index_components(survey):
                at = survey.sources[k], survey.receivers[k]
                picked = {f: self.picks[f].find_times(*at)[some] for f in section.picks}
                factors[k, some] = find_factors(
                    observed[k, some], offsets[k, some], times, section, picked
                )
        counts, gains = self.select(observed, survey), None
        if self.gains:
            each = np.array(self.gains, np.float32)[survey.components.of_traces(counts.shape)]
            counts &= each > 0.0
            gains = each[..., None]
        return Conditioned(observed, counts, factors, gains)

    def select(self, observed: NDArray[np.float32], survey: Survey) -> NDArray[np.bool_]:
        """Return a mask (shot, receiver) of the survey's traces that `edit` does not leave out."""
        edit = self.section.edit
        mask = np.ones(observed.shape[:2], dtype=bool)
        if edit is not None:
            offsets = find_offsets(survey.sources, survey.receivers)
            for k, some in index_components(survey):
                mask[k, some] = find_ordinary(observed[k, some], offsets[k, some], edit)
        return mask if survey.mask is None else mask & survey.mask


def index_components(survey: Survey) -> Iterator[tuple[int, slice | NDArray[np.bool_]]]:
    """Yield the place of each shot, and an index of its traces, for each of its components."""
    components = survey.components
    kinds = components.of_traces((survey.n_shots, survey.n_receivers))
    for shot in range(survey.n_shots):
        if len(components.names) == 1:
            yield shot, slice(None)
        else:
            yield from ((shot, kinds[shot] == kind) for kind in np.unique(kinds[shot]))


def measure_energies(given: Conditioned, survey: Survey) -> NDArray[np.float64]:
    """Return the energy (shot, component) of the finite traces that count, times their factors."""
    traces = given.observed if given.factors is None else given.factors * given.observed
    energies = np.square(root_mean_square(traces)) * traces.shape[-1]
    counts = given.counts & np.isfinite(energies)
    kinds, count = survey.components.of_traces(counts.shape), len(survey.components.names)
    of_kinds = [energies.sum(axis=1, where=counts & (kinds == kind)) for kind in range(count)]
    return np.stack(of_kinds, axis=1)


def find_gains(
    energies: NDArray[np.float64], names: Sequence[str], weights: Mapping[str, float]
) -> tuple[float, ...]:
    """Return the factors of components, whose energies (component,) are then their weights.

    weights: by name; 1 for others. A component without energy is multiplied by the root of its
    weight.
    """
    ratios = np.divide(1.0, energies, out=np.ones_like(energies), where=energies > 0.0)
    return tuple(
        float(np.sqrt(weights.get(name, 1.0) * ratio))
        for name, ratio in zip(names, ratios, strict=True)
    )


NO_CONDITIONING = Conditioning(DataSection())


def find_ordinary(
    observed: NDArray[np.float32], offsets: NDArray[np.float64], edit: Edit
) -> NDArray[np.bool_]:
    """Return a mask of the traces (..., receiver, time) that are as loud as their neighbours."""
    loudness = root_mean_square(observed)
    typical = median_of_neighbours(loudness, offsets)
    with np.errstate(invalid="ignore"):
        return np.asarray((loudness >= edit.below * typical) & (loudness <= edit.above * typical))


def root_mean_square(traces: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the root mean square of each trace (..., time), not finite if a sample is not."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.sqrt(np.mean(np.square(traces, dtype=np.float64), axis=-1)))


def median_of_neighbours(
    values: NDArray[np.float64], offsets: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return a running median of values (..., receiver) in the order of their offsets (m).

    Each is that of the `NEIGHBOURS` values around a value, which is one of them, or of the first or
    the last ones at the ends. Only values that are finite and not 0 are used; the result is NaN if
    there are none.
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
    """Return the median along the last axis without NaN; values must not be infinite.

    It is NaN if all values are NaN.
    """
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
    """Return the factors of the traces (receiver, time) of a shot; times: after the shot, s.

    picks: picks (receiver,) of the traces, s, by the names of their files; NaN without a pick.
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
    """Return factors (receiver, time), 0 in the silenced part of the traces and 1 in the other.

    picked: the times (receiver,) of the line before its delay, s, if it is one of picks.
    """
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
    # Traces without a pick are muted.
    return np.where(np.isnan(line)[:, None], 0.0, kept)


def _rise(time: NDArray[np.float64], taper: float) -> NDArray[np.float64]:
    """Return 0 up to time 0, 1 from `taper` (s) on, and half a period of a cosine between them."""
    if taper == 0.0:
        return (time > 0.0).astype(np.float64)
    return 0.5 - 0.5 * np.cos(np.pi * np.clip(time / taper, 0.0, 1.0))


def _weigh(
    observed: NDArray[np.float32], offsets: NDArray[np.float64], weight: Weight
) -> NDArray[np.float64]:
    """Return factors of traces, (receiver,).

    Those of `weight.amplitude` are 1 for traces that are silent or not finite.
    """
    factors = (np.maximum(offsets, SMALLEST_OFFSET) / REFERENCE_OFFSET) ** weight.offset
    if weight.amplitude:
        loudness = root_mean_square(observed)
        usable = np.isfinite(loudness) & (loudness > 0.0)
        if usable.any():
            ratio = np.where(usable, loudness / np.median(loudness[usable]), 1.0)
            factors *= ratio**weight.amplitude
    return factors
