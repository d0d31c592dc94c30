"""What the backward pass keeps of the forward one.

The gradient correlates the adjoint field with the second time derivative of the forward field.
Both are band-limited by the wavelet, so that their product's sum over time is found from
samples at the Nyquist rate of the data: everything in between is redundant.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

import numpy as np
from numpy.typing import NDArray

from hpcfwi.wave.wavelet import highest_frequency


@dataclass(frozen=True)
class Snapshots:
    """Keep the field every `interval` steps of the simulation.

    interval: 1 gives the exact gradient of the discrete scheme; None takes the largest
    that samples frequencies up to `frequency` (Hz) at their Nyquist rate; frequency: None takes
    the highest in the wavelets of the batch. Raises ValueError where one is not positive.
    """

    interval: int | None = None
    frequency: float | None = None

    def __post_init__(self) -> None:
        if self.interval is not None and self.interval < 1:
            raise ValueError(f"interval is {self.interval}; expected a number of steps, 1 or more")
        if self.frequency is not None and not 0.0 < self.frequency < np.inf:
            raise ValueError(f"frequency is {self.frequency}; expected a positive frequency (Hz)")


def choose(name: str | Snapshots) -> Snapshots:
    """The history of that name, "auto" or "snapshots"; a Snapshots is returned as it is.

    Raises ValueError for any other.
    """
    if isinstance(name, Snapshots):
        return name
    if name not in ("auto", "snapshots"):
        raise ValueError(
            f'history is {name!r}; expected "auto", "snapshots" or Snapshots(interval)'
        )
    return Snapshots()


def sampling_interval(
    history: Snapshots, wavelet: NDArray[np.floating], dt: float, substeps: int
) -> int:
    """Steps of the simulation from one kept field to the next.

    wavelet: (..., time), sampled at `dt` (s); a step of the simulation is dt / substeps.
    """
    if history.interval is not None:
        return history.interval
    frequency = history.frequency
    if frequency is None:
        frequency = highest_frequency(wavelet, dt)
    if frequency == 0.0:
        return max(1, wavelet.shape[-1])
    return max(1, floor(substeps / (2.0 * frequency * dt)))


def sampling_offset(interval: int) -> int:
    """The first kept step: the middle of the interval that it stands for."""
    return interval // 2


def count_samples(steps: int, interval: int) -> int:
    """How many fields are kept of so many steps."""
    return max(0, -(-(steps - sampling_offset(interval)) // interval))
