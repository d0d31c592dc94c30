"""Attenuation by standard linear solids, in equations whose waves lose energy.

A modulus M of such a medium depends on the angular frequency w (Liu, Anderson and Kanamori 1976;
Blanch, Robertsson and Symes 1995, equation 4): M(w) = M_R (1 + tau sum over l of
(i w / w_l) / (1 + i w / w_l)), with relaxation frequencies w_l. Its quality factor is Re M / Im M.
In the time domain the rate of a stress has a memory variable for each of these frequencies, see
`equation.Memory`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Frequencies of a band at which the quality factor is fitted, evenly spaced in the logarithm.
FITTED = 200
# Distances of the outer relaxation frequencies that are tried, as shares of the band's logarithm.
SPREADS = tuple(0.05 * number for number in range(4, 48))


@dataclass(frozen=True)
class Attenuation:
    """The dependence of quality factors and velocities on frequency.

    frequency: that of the model's velocities, Hz; band: lowest and highest frequency (Hz) between
    which quality factors are constant, approximately; mechanisms: number of relaxation frequencies.
    Raises ValueError for an impossible value.
    """

    frequency: float = 10.0
    band: tuple[float, float] = (2.0, 30.0)
    mechanisms: int = 1

    def __post_init__(self) -> None:
        if not 0.0 < self.frequency < np.inf:
            raise ValueError(f"frequency is {self.frequency}; expected a positive frequency (Hz)")
        low, high = self.band
        if not 0.0 < low < high < np.inf:
            raise ValueError(
                f"band is {self.band}; expected two positive frequencies (Hz), the smaller first"
            )
        if not isinstance(self.mechanisms, Integral) or self.mechanisms < 1:
            raise ValueError(f"mechanisms is {self.mechanisms}; expected a number, 1 or more")

    @cached_property
    def relaxations(self) -> tuple[float, ...]:
        """The angular frequencies of relaxation, rad/s.

        They are evenly spaced in the logarithm around the middle of the band. Of the distances that
        are tried, they have the one with the most constant loss in the band.
        """
        low, high = self.band
        middle = 2.0 * np.pi * (low * high) ** 0.5
        shares = np.linspace(-0.5, 0.5, self.mechanisms) if self.mechanisms > 1 else np.zeros(1)
        frequencies = np.geomspace(low, high, FITTED)
        best, found = 0.0, np.zeros(1)
        for spread in SPREADS:
            tried = middle * (high / low) ** (spread * shares)
            _, loss = _add_mechanisms(frequencies, tried)
            constancy = loss.sum() ** 2 / (loss**2).sum()
            if constancy > best:
                best, found = constancy, tried
        return tuple(found.tolist())

    def strength(self, quality: Any) -> Any:
        """Return tau of a quality factor, an array or tensor.

        With the sums F and G of the imaginary and real parts over mechanisms, 1 / Q is
        tau F / (1 + tau G), so that tau (F - G / Q) = 1 / Q. The result is the least-squares
        solution of this equation over the band.
        """
        frequencies = np.geomspace(*self.band, FITTED)
        real, imaginary = _add_mechanisms(frequencies, np.array(self.relaxations))
        loss = 1.0 / quality
        above = imaginary.sum() - loss * real.sum()
        mixed = (imaginary * real).sum()
        below = (imaginary**2).sum() - 2.0 * loss * mixed + loss**2 * (real**2).sum()
        return loss * above / below

    def factors(self, quality: Any) -> tuple[Any, Any]:
        """Return the unrelaxed modulus and tau M_R, divided by the density times velocity^2.

        The velocity is the phase velocity at `frequency`, which is 1 / Re sqrt(rho / M). The first
        factor is above 1, and the second one above 0.
        """
        at = np.array([self.frequency])
        (real,), (imaginary,) = _add_mechanisms(at, np.array(self.relaxations))
        tau = self.strength(quality)
        x, y = 1.0 + tau * real, tau * imaginary
        size = (x**2 + y**2) ** 0.5
        relaxed = 0.5 * (size + x) / size**2
        return relaxed * (1.0 + self.mechanisms * tau), relaxed * tau


def _add_mechanisms(
    frequencies: NDArray[np.float64], relaxations: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the real and imaginary part of the sum over mechanisms at frequencies (Hz)."""
    ratio = 2.0 * np.pi * frequencies[:, None] / relaxations
    below = 1.0 + ratio**2
    return (ratio**2 / below).sum(axis=1), (ratio / below).sum(axis=1)
