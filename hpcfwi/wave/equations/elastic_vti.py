"""Elastic waves in a medium with a vertical axis of symmetry (VTI), which may contain fluids.

The equations are those of `elastic` with five stiffnesses: c33 = rho vp^2 and c44 = rho vs^2 along
the axis, c11 = c33 (1 + 2 epsilon), c13 = sqrt((c33 - c44) (c33 (1 + 2 delta) - c44)) - c44, and
c66 = c44. Epsilon and delta are Thomsen's (1986, equations 8 and 17); his gamma is 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hpcfwi.wave.equation import Arrays, FirstOrderEquation, System, Term
from hpcfwi.wave.equations.elastic import ELASTIC

# Smallest (c13 + c44)^2 / c33^2 to which models are limited: the derivative of its root is finite.
LEAST = 1e-4
# Excess of delta, as a share of (vs / vp)^2, with which waves hardly grow in absorbing boundaries.
# Means over cells of a model within the limit may have it.
TOLERATED = 0.05


def _system(axes: str) -> System:
    isotropic = ELASTIC.system(axes)

    def coefficient(i: str, j: str) -> str:
        if "z" in (i, j):
            return "c33" if i == j else "c13"
        return "c11" if i == j else "c12"

    normal = {f"s{i}{i}": tuple(Term(coefficient(i, j), j, f"v{j}") for j in axes) for i in axes}
    first, stresses = isotropic.stages
    return replace(isotropic, stages=(first, {**stresses, **normal}))


def find_stiffnesses(model: Arrays) -> dict[str, Any]:
    """Return the stiffnesses divided by the density; c13 is not a number if there is none."""
    c33, c44 = model["vp"] ** 2, model["vs"] ** 2
    c11 = c33 * (1.0 + 2.0 * model["epsilon"])
    coupling = (c33 - c44) * (c33 * (1.0 + 2.0 * model["delta"]) - c44)
    return {"c33": c33, "c44": c44, "c11": c11, "c12": c11 - 2.0 * c44, "coupling": coupling}


def _find_coefficients(model: Mapping[str, Tensor], axes: str) -> dict[str, Tensor]:
    isotropic = ELASTIC.coefficients(model, axes)
    rho, stiffness = model["rho"], find_stiffnesses(model)
    found = {
        "c33": rho * stiffness["c33"],
        "c11": rho * stiffness["c11"],
        "c13": rho * (stiffness["coupling"] ** 0.5 - stiffness["c44"]),
    }
    if len(axes) == 3:
        found["c12"] = rho * stiffness["c12"]
    kept = {name: isotropic[name] for name in isotropic if name not in ("stiff", "lam")}
    return {**kept, **found}


def find_energy_fault(model: Arrays) -> str | None:
    """Return what contradicts positive energy in a medium, or None."""
    fault = ELASTIC.find_fault(model)
    if fault is not None:
        return fault
    stiffness = find_stiffnesses(model)
    c33, c44, c11 = (stiffness[name] for name in ("c33", "c44", "c11"))
    # c13^2 is at most c33 (c11 - c66), without a root, of which the argument may be negative
    bound = (abs(c33 * (c11 - c44)) ** 0.5 + c44) ** 2
    wrong = (stiffness["coupling"] > bound * (1.0 + 1e-6)) | (stiffness["coupling"] < 0.0)
    wrong = wrong | (c11 <= c44)
    if not int(wrong.sum()):
        return None
    return (
        f"vs, epsilon and delta contradict each other in {int(wrong.sum())} cells, where no medium "
        "has positive energy; expected epsilon of at least delta where vs is 0"
    )


def limit_energy(model: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    """Return the arrays that must change so that `find_energy_fault` finds nothing."""
    found = dict(ELASTIC.limit(model, names))
    model = {**model, **found}
    stiffness = find_stiffnesses(model)
    c33, c44 = stiffness["c33"], stiffness["c44"]
    if "delta" in names:
        highest = ((c33 * (stiffness["c11"] - c44)).clamp(min=0.0) ** 0.5 + c44) ** 2
        within = stiffness["coupling"].maximum(LEAST * c33**2).minimum(highest)
        delta = 0.5 * ((within / (c33 - c44) + c44) / c33 - 1.0)
        same = within == stiffness["coupling"]
        return {**found, "delta": torch.where(same, model["delta"], delta)}
    if "epsilon" in names:
        c13 = stiffness["coupling"].maximum(LEAST * c33**2) ** 0.5 - c44
        least = 0.5 * ((c44 + c13**2 / c33) / c33 - 1.0)
        return {**found, "epsilon": torch.maximum(model["epsilon"], least)}
    return found


def _find_largest_delta(model: Arrays) -> Any:
    """Return the largest delta with which no wave grows in the absorbing boundary.

    The phase and group velocities of a wave have opposite signs along x where (c13 + c44)^2 is
    above c11 (c33 - c44), and along z where it is above c33 (c11 - c44) (Becache, Fauqueux and Joly
    2003).
    """
    share, epsilon = (model["vs"] / model["vp"]) ** 2, model["epsilon"]
    along_z = epsilon / (1.0 - share)
    return 0.5 * (share + epsilon + along_z - abs(epsilon - along_z))


def _find_fault(model: Arrays) -> str | None:
    fault = find_energy_fault(model)
    if fault is not None:
        return fault
    tolerated = TOLERATED * (model["vs"] / model["vp"]) ** 2 + 1e-6
    growing = int((model["delta"] > _find_largest_delta(model) + tolerated).sum())
    if not growing:
        return None
    return (
        f"delta is too large in {growing} cells, and waves would grow in the absorbing boundary; "
        "with s = (vs / vp)^2, expected at most s / 2 + epsilon, and at most s / 2 + epsilon / "
        '(1 - s), or the equation "elastic-tti" with theta = 0'
    )


def _limit(model: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    found = limit_energy(model, names)
    model = {**model, **found}
    if "delta" in names:
        return {**found, "delta": torch.minimum(model["delta"], _find_largest_delta(model))}
    if "epsilon" in names:
        share = (model["vs"] / model["vp"]) ** 2
        least = model["delta"] - 0.5 * share
        least = torch.maximum(least, (1.0 - share) * least)
        return {**found, "epsilon": torch.maximum(model["epsilon"], least)}
    return found


def _slowest(model: Arrays) -> Any:
    """Return the speed of SV waves, which is lowest near 45 degrees (Thomsen 1986, eq. 16b)."""
    vp, vs = model["vp"], model["vs"]
    sigma = (model["epsilon"] - model["delta"]) * vp**2
    slower = 0.5 * (sigma - abs(sigma))
    # The formula is for weak anisotropy, and may be below 0 otherwise
    square = vs**2 + 0.5 * slower
    square = 0.5 * (square + 0.25 * vs**2 + abs(square - 0.25 * vs**2))
    return square**0.5 + vp * (vs == 0)


def _fastest(model: Arrays) -> Any:
    # The fastest direction may be oblique where delta is above epsilon
    epsilon, delta = model["epsilon"], model["delta"]
    largest = 0.5 * (epsilon + delta + abs(epsilon - delta))
    largest = 0.5 * (largest + abs(largest))
    return model["vp"] * (1.0 + 2.0 * largest) ** 0.5


ELASTIC_VTI = FirstOrderEquation(
    name="elastic-vti",
    parameters=("vp", "vs", "epsilon", "delta", "rho"),
    fastest=_fastest,
    slowest=_slowest,
    system=_system,
    coefficients=_find_coefficients,
    find_fault=_find_fault,
    limit=_limit,
)
