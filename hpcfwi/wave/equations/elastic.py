"""Elastic waves in an isotropic medium, which may contain fluids (vs = 0).

The equations are rho v_t = div s and s_t = lambda (div v) I + mu (grad v + (grad v)^T), with
mu = rho vs^2 and lambda = rho vp^2 - 2 mu, on the staggered grid of Virieux (1986). Between cells,
the density is their mean, and the shear modulus their harmonic mean (Moczo and others 2002), or 0
beside a fluid.

In `viscoelastic` media the moduli depend on frequency, so that waves lose energy (Robertsson,
Blanch and Symes 1994): the rate of each stress has memory variables, r_t = -w (r + the rate of the
stress with tau M_R in place of M). M is rho vp^2 with the quality factor of P waves, or the shear
modulus with that of S waves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import combinations, combinations_with_replacement
from typing import Any

import torch
from torch import Tensor

from hpcfwi.wave.attenuation import Attenuation
from hpcfwi.wave.equation import (
    Arrays,
    FirstOrderEquation,
    Source,
    System,
    Term,
    Wavefield,
    add_memories,
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
        surface=("szz",),
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


def viscoelastic(attenuation: Attenuation) -> FirstOrderEquation:
    """Return the equation with this dependence of quality factors on frequency."""

    def find_coefficients(model: Mapping[str, Tensor], axes: str) -> dict[str, Tensor]:
        found = dict(ELASTIC.coefficients(model, axes))
        rho, qs = model["rho"], model["qs"]
        stiff, mu = found["stiff"], rho * model["vs"] ** 2
        (p_unrelaxed, p_lost), (s_unrelaxed, s_lost) = map(attenuation.factors, (model["qp"], qs))
        found |= {
            "stiff": p_unrelaxed * stiff,
            "stiff_lost": p_lost * stiff,
            "lam": p_unrelaxed * stiff - 2.0 * s_unrelaxed * mu,
            "lam_lost": p_lost * stiff - 2.0 * s_lost * mu,
        }
        for (first, i), (second, j) in combinations(enumerate(axes), 2):
            # The loss 1 / Q between cells is the mean of those of the four cells around
            between = 1.0 / mean(mean(1.0 / qs, first), second)
            unrelaxed, lost = attenuation.factors(between)
            shear = found[f"mu{i}{j}"]
            found |= {f"mu{i}{j}": unrelaxed * shear, f"mu{i}{j}_lost": lost * shear}
        return found

    def find_unrelaxed(model: Arrays) -> dict[str, Any]:
        """Return the arrays with the velocities of very high frequencies."""
        speeds = {
            name: model[name] * attenuation.factors(model[quality])[0] ** 0.5
            for name, quality in (("vp", "qp"), ("vs", "qs"))
        }
        return {**model, **speeds}

    def limit(model: Mapping[str, Tensor], names: Collection[str]) -> Mapping[str, Tensor]:
        unrelaxed, found = find_unrelaxed(model), {}
        for name, array in ELASTIC.limit(unrelaxed, names).items():
            share = torch.where(unrelaxed[name] > 0.0, array / unrelaxed[name], 1.0)
            found[name] = share * model[name]
        return found

    return FirstOrderEquation(
        name="viscoelastic",
        parameters=("vp", "vs", "rho", "qp", "qs"),
        fastest=lambda model: ELASTIC.fastest(find_unrelaxed(model)),
        slowest=ELASTIC.slowest,
        system=lambda axes: add_memories(ELASTIC.system(axes), attenuation.relaxations),
        coefficients=find_coefficients,
        find_fault=lambda model: ELASTIC.find_fault(find_unrelaxed(model)),
        limit=limit,
        attenuation=attenuation,
    )
