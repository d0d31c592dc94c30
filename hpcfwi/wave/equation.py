"""Wave equations: the parameters of each, and the speeds of its waves.

The names of equations in input files are in `registry.EQUATIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from hpcfwi.registry import EQUATIONS, find

Array = TypeVar("Array")


class Speed(Protocol):
    """A function of a model's arrays by name, NumPy arrays or tensors, to the speed of a wave."""

    def __call__(self, model: Mapping[str, Array], /) -> Array: ...


@dataclass(frozen=True)
class Equation:
    """A wave equation.

    name: its name in the input; parameters: names in `model.PARAMETERS` of the arrays that it
    needs; fastest, slowest: the speed of the fastest and of the slowest wave in each cell, m/s.
    Stable steps, boundaries and arrivals depend on the fastest one, the shortest wavelength and
    dispersion on the slowest one.
    """

    name: str
    parameters: tuple[str, ...]
    fastest: Speed
    slowest: Speed


def _vp(model: Mapping[str, Array], /) -> Array:
    return model["vp"]


ACOUSTIC = Equation("acoustic", ("vp",), fastest=_vp, slowest=_vp)


def find_equation(name: str) -> Equation:
    """Return the equation of a name in the registry."""
    return cast(Equation, find(EQUATIONS[name]))
