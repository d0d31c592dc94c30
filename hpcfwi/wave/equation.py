"""Wave equations, each described once, from which every engine follows.

An `Equation` has the parameters of its medium and the speeds of its waves. A first-order equation
also has a `System` for each number of axes: fields on a staggered grid, and their updates in two
stages. A step of the simulation updates the fields of the first stage from those of the second,
which are half a step earlier, and then the second from the first (Virieux 1986). `Attenuation`
describes media in which waves lose energy. The equations are in `equations`; their discretization
is in `staggered`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from operator import itemgetter
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.registry import EQUATIONS, find

# The arrays of a model by name: NumPy arrays or tensors.
Arrays = Mapping[str, Any]
# A function from these arrays to the speed of a wave in each cell, m/s.
Speed = Callable[[Arrays], Any]
# The axis and the field of a derivative.
Derivative = tuple[str, str]
Signal = Literal["integral", "sample", "rate"]


@dataclass(frozen=True)
class Wavefield:
    """A field of a system.

    half: the axes along which its values lie half a cell after the grid's points, as in "z" or
    "zx"; odd: True if its mirror image at a free surface has the opposite sign.
    """

    half: str = ""
    odd: bool = False


@dataclass(frozen=True)
class Term:
    """A derivative of a field, multiplied by a coefficient of the medium.

    coefficient: its name, after a "-" if the term is subtracted; axis: that of the derivative, "z",
    "y" or "x"; field: its name.
    """

    coefficient: str
    axis: str
    field: str

    @property
    def derivative(self) -> Derivative:
        """The derivative, which several terms may share."""
        return self.axis, self.field


@dataclass(frozen=True)
class Source:
    """A kind of source.

    coefficients: of the medium, for each field to which it adds, named as in `Term`; signal: the
    function of time that is added, from the wavelet w: "integral" for its integral, "rate" for w
    itself, each at the times of the first stage; "sample" for w at the times of the second stage.
    """

    coefficients: Mapping[str, str]
    signal: Signal


@dataclass(frozen=True)
class MemoryVariable:
    """A field that relaxes, and that is added to the rate of change of another one.

    field: the name of the other one, which the same stage updates; frequency: angular frequency of
    the relaxation, rad/s. A memory variable r changes at the rate -frequency (r + the sum of its
    terms).
    """

    field: str
    frequency: float


@dataclass(frozen=True)
class System:
    """Fields on a staggered grid and the rates at which they change.

    fields: by name; stages: for each of the two, the fields that it updates and the terms whose sum
    is the rate of change; sources: by kind; components: for each name of a recorded quantity, the
    factors of the fields of which it is the sum; surface: the fields that are zero on a free
    surface; memories: the fields that are memory variables; multiaxial: the share of the damping of
    the other axes in the absorbing boundary of each axis, see `numerics.mix_profiles`. Raises
    ValueError if a derivative does not lie where the field that it updates lies, or if a stage
    reads a field that it updates.
    """

    fields: Mapping[str, Wavefield]
    stages: tuple[Mapping[str, tuple[Term, ...]], Mapping[str, tuple[Term, ...]]]
    sources: Mapping[str, Source]
    components: Mapping[str, Mapping[str, float]]
    surface: tuple[str, ...]
    memories: Mapping[str, MemoryVariable] = field(default_factory=dict)
    multiaxial: float = 0.0

    def __post_init__(self) -> None:
        for stage in self.stages:
            for name, terms in stage.items():
                for term in terms:
                    lies = set(self.fields[term.field].half) ^ {term.axis}
                    if lies != set(self.fields[name].half) or term.field in stage:
                        raise ValueError(f"{name} cannot be updated by {term}")

    @property
    def terms(self) -> list[Term]:
        return [term for stage in self.stages for each in stage.values() for term in each]

    @property
    def derivatives(self) -> list[Derivative]:
        return list(dict.fromkeys(term.derivative for term in self.terms))

    def stage_of(self, name: str) -> int:
        """Return the number of the stage that updates a field, 0 or 1."""
        return next(k for k, stage in enumerate(self.stages) if name in stage)

    def place_of(self, derivative: Derivative) -> str:
        """Return the axes along which a derivative lies half a cell after the grid's points."""
        axis, name = derivative
        return "".join(sorted(set(self.fields[name].half) ^ {axis}))

    def find_places(self) -> list[tuple[str, str]]:
        """Return the axes of all derivatives, each with the places at which some lie."""
        return list(dict.fromkeys((d[0], self.place_of(d)) for d in self.derivatives))

    def read_along(self, axis: str) -> tuple[list[str], list[str]]:
        """Return the fields of each stage whose derivatives along an axis the other one reads."""
        first, second = (
            {term.field for terms in stage.values() for term in terms if term.axis == axis}
            for stage in self.stages
        )
        return sorted(second), sorted(first)

    def count_rates(self) -> int:
        """Return the number of different coefficients in a step.

        The coefficients of memory variables also differ between frequencies.
        """
        frequencies = {name: memory.frequency for name, memory in self.memories.items()}
        return len(
            {
                (term.coefficient, frequencies.get(name))
                for stage in self.stages
                for name, terms in stage.items()
                for term in terms
            }
        )


def add_memories(system: System, frequencies: Sequence[float]) -> System:
    """Return a system whose second stage, that of the stresses, relaxes at angular frequencies.

    The coefficients of the memory variables are those of their field with the ending "_lost".
    """
    first, stresses = system.stages
    fields, stage, memories = dict(system.fields), dict(stresses), {}
    for name, terms in stresses.items():
        for number, frequency in enumerate(frequencies):
            memory = f"{name}_{number}"
            fields[memory] = system.fields[name]
            stage[memory] = tuple(
                Term(f"{term.coefficient}_lost", term.axis, term.field) for term in terms
            )
            memories[memory] = MemoryVariable(name, frequency)
    return replace(system, fields=fields, stages=(first, stage), memories=memories)


# Frequencies of a band at which the quality factor is fitted, evenly spaced in the logarithm.
FITTED = 200
# Distances of the outer relaxation frequencies that are tried, as shares of the band's logarithm.
SPREADS = tuple(0.05 * number for number in range(4, 48))


@dataclass(frozen=True)
class Attenuation:
    """The dependence of quality factors and velocities on frequency: standard linear solids.

    A modulus M of a lossy medium depends on the angular frequency w (Liu, Anderson and Kanamori
    1976; Blanch, Robertsson and Symes 1995, equation 4): M(w) = M_R (1 + tau sum over l of
    (i w / w_l) / (1 + i w / w_l)), with relaxation frequencies w_l. Its quality factor is
    Re M / Im M. In the time domain the rate of a stress has a memory variable for each of these
    frequencies, see `MemoryVariable`.

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

        They are evenly spaced in the logarithm around the middle of the band. Their distance is
        that of the tried ones with the most constant loss in the band.
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


@dataclass(frozen=True, kw_only=True)
class Equation:
    """A wave equation.

    Parameters
    ----------
    name
        Its name in the input.
    parameters
        Names of the parameters of the medium, see `model.PARAMETERS`.
    fastest, slowest
        The speeds of the fastest and of the slowest wave. Stable steps, boundaries and arrivals
        depend on the fastest, the shortest wavelength and dispersion on the slowest one.
    find_fault
        A function of the model's arrays that returns what makes the equation unstable or
        meaningless in this medium, or None. It is called for models whose values are finite.
    limit
        A function of the model's arrays, tensors, and of the names of those that may change. It
        returns the arrays that must change so that `find_fault` finds nothing.
    attenuation
        Of an equation whose waves lose energy, from which `find_equation` makes it.
    """

    name: str
    parameters: tuple[str, ...]
    fastest: Speed
    slowest: Speed
    find_fault: Callable[[Arrays], str | None] = lambda _: None
    limit: Callable[[Mapping[str, Tensor], Collection[str]], Mapping[str, Tensor]] = lambda *_: {}
    attenuation: Attenuation | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Its functions cannot be sent to other ranks, which find them by name
        return find_equation, (self.name, self.attenuation)


@dataclass(frozen=True, kw_only=True)
class FirstOrderEquation(Equation):
    """An equation that is described by a system.

    Its parameters contain "vp" and "rho", because stable steps depend on the density.

    Parameters
    ----------
    system
        A function that returns the `System` for the axes "zx" or "zyx".
    coefficients
        A function of the model's arrays and the axes that returns the coefficients of the system by
        name, in the shape of the model. The values of a coefficient lie where those of the field
        lie that it updates. The coefficient "1" exists in every system.
    """

    system: Callable[[str], System]
    coefficients: Callable[[Mapping[str, Tensor], str], Mapping[str, Tensor]]


# It is of second order, and its engines are written by hand, see `problem.Problem`.
_SPEED = itemgetter("vp")
ACOUSTIC = Equation(name="acoustic", parameters=("vp",), fastest=_SPEED, slowest=_SPEED)


def find_equation(name: str, attenuation: Attenuation | None = None) -> Equation:
    """Return the equation of a name in the registry.

    attenuation: of an equation whose waves lose energy; by default that of `Attenuation()`. Raises
    ValueError if there is no such equation.
    """
    if name not in EQUATIONS:
        raise ValueError(f"equation is {name!r}; expected one of {', '.join(EQUATIONS)}")
    found = find(EQUATIONS[name])
    if isinstance(found, Equation):
        return found
    return cast(Equation, found(attenuation or Attenuation()))


def _next(values: Tensor, axis: int) -> Tensor:
    """Return the value of the next cell along an axis, and that of the last cell again."""
    n = values.shape[axis]
    return torch.cat([values.narrow(axis, 1, n - 1), values.narrow(axis, n - 1, 1)], dim=axis)


def mean(values: Tensor, axis: int) -> Tensor:
    """Return the mean of each cell and the next one along an axis."""
    return 0.5 * (values + _next(values, axis))


def harmonic_mean(values: Tensor, first: int, second: int) -> Tensor:
    """Return the harmonic mean of four cells: each cell and the next ones along two axes.

    It is 0 where any of the four is 0, and its derivative is finite there.
    """
    along = _next(values, first)
    four = torch.stack([values, along, _next(values, second), _next(along, second)])
    positive = (four > 0.0).all(dim=0)
    safe = torch.where(positive, four, torch.ones_like(four))
    return torch.where(positive, 4.0 / (1.0 / safe).sum(dim=0), torch.zeros_like(values))
