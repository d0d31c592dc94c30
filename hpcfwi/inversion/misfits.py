"""Misfits of simulated and observed data, which `registry.MISFITS` names.

A misfit is a function of simulated and observed traces, both (shot, receiver, time), of their
sampling dt (s), and of its keys. It returns one value for each shot, (shot,) in float64, and the
gradient of these with respect to the simulated traces, which is the source of the adjoint wave. The
results of a shot must not depend on other shots. The gradient is itself differentiated by torch's
forward mode, so that it must not be detached from the simulated traces. `objective` handles values
that are not finite. `compare_traces` makes a misfit from a differentiable function.
"""

from __future__ import annotations

from collections.abc import Callable
from math import fsum
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad, softplus

from hpcfwi.operators.vectors import add_up
from hpcfwi.wave.numerics import one_thread

Misfit = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]

Measure = Callable[[Tensor, Tensor], Tensor]
"""A differentiable function of simulated and observed traces (trace, time), to (trace,)."""

# A trace is silent if it is 80 dB below the loudest trace of its shot. Otherwise, misfits that
# divide traces by their norms would weigh traces without an arrival as much as other traces.
SILENT = 1e-4


def compare_traces(measure: Measure, simulated: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of a measure over the traces of each shot, and its gradient.

    measure: not negative, and 0 for equal traces. It is not called for a pair of equal traces, or
    if one of the two is silent. It computes in float64, with one shot and one thread at a time, so
    that its bits depend neither on other shots nor on the number of threads.
    """
    misfits = torch.zeros(len(simulated), dtype=torch.float64)
    gradient = torch.zeros_like(simulated)
    for shot, pair in enumerate(zip(simulated.double(), observed.double(), strict=True)):
        counts = (pair[0] != pair[1]).any(dim=1)
        counts = counts & ~(_are_silent(pair[0], counts) | _are_silent(pair[1], counts))
        if not counts.any():
            continue
        with torch.enable_grad(), one_thread():
            traces = pair[0][counts].requires_grad_()
            values = measure(traces, pair[1][counts])
            # This is the gradient of a scalar, because for a vector torch imports sympy (1 s).
            (found,) = torch.autograd.grad(values.sum(), traces)
        misfits[shot] = fsum(values.tolist())
        gradient[shot, counts] = found.to(gradient.dtype)
    return misfits, gradient


def root_mean_square(traces: Tensor) -> Tensor:
    """Return the root mean square of each trace."""
    return traces.square().mean(dim=1).sqrt()


def typical_amplitude(observed: Tensor) -> Tensor:
    """Return the median of the root mean squares of these traces."""
    return root_mean_square(observed).median()


def to_unit_norm(traces: Tensor) -> Tensor:
    """Divide each trace by its L2 norm."""
    return traces / traces.square().sum(dim=1, keepdim=True).sqrt()


def _are_silent(traces: Tensor, among: Tensor) -> Tensor:
    """Return a mask of traces that are finite and silent compared to the loudest of `among`."""
    loudness = root_mean_square(traces)
    return loudness.isfinite() & (loudness <= SILENT * loudness.where(among, 0.0).max())


def least_squares(simulated: Tensor, observed: Tensor, dt: float) -> tuple[Tensor, Tensor]:
    """Half the time integral of the squared residual, summed over receivers (Tarantola 1984)."""
    residual = simulated - observed
    squares = torch.stack([add_up(shot.double().square()) for shot in residual])
    return 0.5 * dt * squares.cpu(), dt * residual


WIDTH = (
    "Residual above which the misfit grows linearly, in units of the typical amplitude of the "
    "observed data: the median of the root mean squares of a shot's traces."
)


def huber(
    simulated: Tensor,
    observed: Tensor,
    dt: float,
    *,
    width: Annotated[float, Field(gt=0.0, le=1e30, description=WIDTH)] = 1.0,
) -> tuple[Tensor, Tensor]:
    """Least squares of residuals up to a width, absolute values beyond (Guitton and Symes 2003)."""

    def measure(simulated: Tensor, observed: Tensor) -> Tensor:
        limit = width * typical_amplitude(observed)
        size = (simulated - observed).abs()
        within = torch.minimum(size, limit)
        return dt * (within * (size - 0.5 * within)).sum(dim=1)

    return compare_traces(measure, simulated, observed)


FREEDOM = "Degrees of freedom: 1 is the Cauchy distribution; large numbers approach least squares."
SCALE = (
    "Scale of the residuals, in units of the typical amplitude of the observed data: the median of "
    "the root mean squares of a shot's traces."
)


def student(
    simulated: Tensor,
    observed: Tensor,
    dt: float,
    *,
    freedom: Annotated[float, Field(gt=0.0, le=1e30, description=FREEDOM)] = 3.0,
    scale: Annotated[float, Field(gt=0.0, le=1e30, description=SCALE)] = 1.0,
) -> tuple[Tensor, Tensor]:
    """The time integral of n s^2 / 2 log(1 + r^2 / (n s^2)), of residuals r (Aravkin et al. 2011).

    n: `freedom`; s: `scale`. Up to a factor, it is minus the logarithm of Student's density. The
    factor makes it least squares for small residuals.
    """

    def measure(simulated: Tensor, observed: Tensor) -> Tensor:
        width = freedom * (scale * typical_amplitude(observed)).square()
        ratios = (simulated - observed).square() / width
        return 0.5 * dt * width * ratios.log1p().sum(dim=1)

    return compare_traces(measure, simulated, observed)


def normalized(simulated: Tensor, observed: Tensor, dt: float) -> tuple[Tensor, Tensor]:
    """Half the squared difference of traces that are each divided by their L2 norms.

    Except for rounding, it is `correlation` (Choi and Alkhalifah 2012), because half the squared
    difference of vectors of length 1 is 1 less their scalar product.
    """

    def measure(simulated: Tensor, observed: Tensor) -> Tensor:
        return 0.5 * (to_unit_norm(simulated) - to_unit_norm(observed)).square().sum(dim=1)

    return compare_traces(measure, simulated, observed)


def correlation(simulated: Tensor, observed: Tensor, dt: float) -> tuple[Tensor, Tensor]:
    """1 less the normalised zero-lag correlation, summed over traces (Choi and Alkhalifah 2012).

    It is 0 for a trace in phase and at most 2, and does not depend on amplitudes.
    """

    def measure(simulated: Tensor, observed: Tensor) -> Tensor:
        return 1.0 - (to_unit_norm(simulated) * to_unit_norm(observed)).sum(dim=1)

    return compare_traces(measure, simulated, observed)


def envelope(simulated: Tensor, observed: Tensor, dt: float) -> tuple[Tensor, Tensor]:
    """Half the time integral of the squared difference of envelopes (Bozdag et al. 2011).

    An envelope is the magnitude of a trace with its Hilbert transform (Wu et al. 2014).
    """

    def measure(simulated: Tensor, observed: Tensor) -> Tensor:
        difference = _envelope(simulated) - _envelope(observed)
        return 0.5 * dt * difference.square().sum(dim=1)

    return compare_traces(measure, simulated, observed)


def _envelope(traces: Tensor) -> Tensor:
    """Return the envelope of each trace, with silence before and after it."""
    length = traces.shape[1]
    positive = torch.fft.rfft(traces, n=2 * length)
    # The frequencies 0 and Nyquist have no negative counterpart.
    positive[:, 1:-1] *= 2.0
    # torch defines the gradient of a complex magnitude at 0 as 0; a square root has none there.
    return torch.fft.ifft(positive, n=2 * length)[:, :length].abs()


DAMPING = (
    "Damping at frequencies that were not observed: power, as a share of the largest in the "
    "spectrum of the observed trace, below which the filter changes nothing."
)


def adaptive(
    simulated: Tensor,
    observed: Tensor,
    dt: float,
    *,
    damping: Annotated[float, Field(gt=0.0, le=1e30, description=DAMPING)] = 1e-3,
) -> tuple[Tensor, Tensor]:
    """Half the energy-weighted mean squared lag of matching filters (Warner and Guasch 2016).

    A matching filter turns the observed trace into the simulated one, both with norm 1. It is the
    least-squares filter, damped towards the identity. Lags are in units of the record's length.
    """

    def measure(simulated: Tensor, observed: Tensor) -> Tensor:
        length = simulated.shape[1]
        made, given = (
            torch.fft.rfft(to_unit_norm(traces), n=2 * length) for traces in (simulated, observed)
        )
        power = given.abs().square()
        floor = damping * power.amax(dim=1, keepdim=True)
        filters = torch.fft.irfft((made * given.conj() + floor) / (power + floor), n=2 * length)
        lags = torch.fft.fftfreq(2 * length, 0.5, dtype=filters.dtype, device=filters.device)
        energy = filters.square()
        return 0.5 * (energy * lags.square()).sum(dim=1) / energy.sum(dim=1)

    return compare_traces(measure, simulated, observed)


SHARPNESS = (
    "Factor in the exponential that makes traces positive, divided by their root mean square: the "
    "higher it is, the less remains where the trace is negative."
)


def transport(
    simulated: Tensor,
    observed: Tensor,
    dt: float,
    *,
    sharpness: Annotated[float, Field(gt=0.0, le=10.0, description=SHARPNESS)] = 1.0,
) -> tuple[Tensor, Tensor]:
    """Squared Wasserstein distance of traces made positive, summed over them (Yang et al. 2018).

    A positive trace is log(1 + exp(`sharpness` * trace / its root mean square)), divided by its sum
    (Engquist and Yang 2020). Times are in units of the record's length.
    """

    def measure(simulated: Tensor, observed: Tensor) -> Tensor:
        # This is computed on the CPU, because the gradient of `gather` has no fixed order on a GPU.
        simulated, observed = (
            _distribute(traces.cpu(), sharpness) for traces in (simulated, observed)
        )
        # Between two of these shares, the times of both are linear in the share.
        shares = torch.cat([simulated, observed], dim=1).sort(dim=1).values
        way = _when(shares, simulated) - _when(shares, observed)
        begin, end = way[:, :-1], way[:, 1:]
        squares = (begin.square() + begin * end + end.square()) / 3.0
        return (shares.diff(dim=1) * squares).sum(dim=1)

    return compare_traces(measure, simulated, observed)


def _distribute(traces: Tensor, sharpness: float) -> Tensor:
    """Return the cumulative share of each trace before each sample, and at the end."""
    positive = softplus(traces * (sharpness / root_mean_square(traces)[:, None]))
    sums = positive.cumsum(dim=1)
    return pad(sums / sums[:, -1:], (1, 0))


def _when(shares: Tensor, arrived: Tensor) -> Tensor:
    """Return the times, in units of the record's length, at which these shares have arrived."""
    samples = arrived.shape[1] - 1
    # Only NaN is outside these bounds.
    after = torch.searchsorted(arrived.detach(), shares.detach()).clamp_(1, samples)
    low, high = arrived.gather(1, after - 1), arrived.gather(1, after)
    return (after - 1 + (shares - low) / (high - low)) / samples
