"""Elastic waves that lose energy, in an isotropic medium, which may contain fluids (vs = 0).

The equations are those of `elastic`, with moduli that depend on frequency (Robertsson, Blanch and
Symes 1994): the rate of each stress has memory variables, r_t = -w (r + the rate of the stress with
tau M_R in place of M). M is rho vp^2 with the quality factor of P waves, or the shear modulus with
that of S waves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from hpcfwi.wave.attenuation import Attenuation
from hpcfwi.wave.equation import Arrays, FirstOrderEquation, add_memories, mean
from hpcfwi.wave.equations.elastic import ELASTIC


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
