"""Elastic waves in an isotropic medium, which may contain fluids (vs = 0).

The equations are rho v_t = div s and s_t = lambda (div v) I + mu (grad v + (grad v)^T), with
mu = rho vs^2 and lambda = rho vp^2 - 2 mu, on the staggered grid of Virieux (1986). Between cells,
the density is their mean, and the shear modulus their harmonic mean (Moczo and others 2002), or 0
beside a fluid.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import combinations, combinations_with_replacement

import torch
from torch import Tensor

from hpcfwi.wave.equation import (
    Arrays,
    FirstOrderEquation,
    Source,
    System,
    Term,
    Wavefield,
    harmonic_mean,
    mean,
)


def _system(axes: str) -> System:
    pairs = list(combinations(axes, 2))

    def stress(i: str, j: str) -> str:
        return f"s{j}{i}" if (j, i) in pairs else f"s{i}{j}"

    velocity = {f"v{i}": Wavefield(half=i) for i in axes}
    # The horizontal stresses are not 0 on a free surface over rock
    normal = {f"s{i}{i}": Wavefield(odd=i == "z") for i in axes}
    shear = {stress(i, j): Wavefield(half=i + j, odd=True) for i, j in pairs}
    moments = {
        f"moment-{i}{j}": Source({stress(i, j): "-1"}, "rate")
        for i, j in combinations_with_replacement(axes, 2)
    }
    return System(
        fields={**velocity, **normal, **shear},
        stages=(
            {f"v{i}": tuple(Term(f"b{i}", j, stress(i, j)) for j in axes) for i in axes},
            {
                **{
                    f"s{i}{i}": tuple(Term("stiff" if i == j else "lam", j, f"v{j}") for j in axes)
                    for i in axes
                },
                **{
                    stress(i, j): (Term(f"mu{i}{j}", i, f"v{j}"), Term(f"mu{i}{j}", j, f"v{i}"))
                    for i, j in pairs
                },
            },
        ),
        sources={
            "explosive": Source(dict.fromkeys(normal, "-vp2"), "integral"),
            **{f"force-{i}": Source({f"v{i}": f"b{i}"}, "sample") for i in axes},
            **moments,
        },
        components={
            "pressure": dict.fromkeys(normal, -1.0 / len(axes)),
            **{name: {name: 1.0} for name in velocity},
        },
        surface="szz",
    )


def _coefficients(model: Mapping[str, Tensor], axes: str) -> dict[str, Tensor]:
    vp, rho = model["vp"], model["rho"]
    mu, stiff = rho * model["vs"] ** 2, rho * vp**2
    found = {
        "stiff": stiff,
        "lam": stiff - 2.0 * mu,
        "vp2": vp**2,
    }
    for axis, i in enumerate(axes):
        found[f"b{i}"] = 1.0 / mean(rho, axis)
        for other in range(axis + 1, len(axes)):
            found[f"mu{i}{axes[other]}"] = harmonic_mean(mu, axis, other)
    return found


def _slowest(model: Arrays) -> object:
    vp, vs = model["vp"], model["vs"]
    return vs + vp * (vs == 0)


def _find_fault(model: Arrays) -> str | None:
    vp, vs = model["vp"], model["vs"]
    wrong = int((2.0 * vs**2 > vp**2).sum())
    if not wrong:
        return None
    return f"vs is above vp / sqrt(2) in {wrong} cells; expected at most that in each cell"


def _limit(model: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    # The ratio is below 1 / sqrt(2) in single precision too
    largest = 0.5**0.5 * (1.0 - 1e-6)
    if "vs" in names:
        return {"vs": torch.minimum(model["vs"], largest * model["vp"])}
    return {"vp": torch.maximum(model["vp"], model["vs"] / largest)} if "vp" in names else {}


ELASTIC = FirstOrderEquation(
    name="elastic",
    parameters=("vp", "vs", "rho"),
    fastest=lambda model: model["vp"],
    slowest=_slowest,
    system=_system,
    coefficients=_coefficients,
    find_fault=_find_fault,
    limit=_limit,
)
