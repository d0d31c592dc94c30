"""Acoustic waves that lose energy, in a medium with variable density.

The equations are those of `acoustic_density`, with a modulus that depends on frequency (Robertsson,
Blanch and Symes 1994): v_t = -(1 / rho) grad p, p_t = -K_U div v + sum of r_l, and
r_l,t = -w_l (r_l - tau K_R div v).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from hpcfwi.wave.attenuation import Attenuation
from hpcfwi.wave.equation import Arrays, FirstOrderEquation, add_memories
from hpcfwi.wave.equations.acoustic_density import ACOUSTIC_DENSITY


def viscoacoustic(attenuation: Attenuation) -> FirstOrderEquation:
    """Return the equation with this dependence of quality factors on frequency."""

    def fastest(model: Arrays) -> object:
        return model["vp"] * attenuation.factors(model["qp"])[0] ** 0.5

    def find_coefficients(model: Mapping[str, Tensor], axes: str) -> dict[str, Tensor]:
        found = dict(ACOUSTIC_DENSITY.coefficients(model, axes))
        unrelaxed, lost = attenuation.factors(model["qp"])
        return {**found, "k": unrelaxed * found["k"], "k_lost": lost * found["k"]}

    return FirstOrderEquation(
        name="viscoacoustic",
        parameters=("vp", "rho", "qp"),
        fastest=fastest,
        slowest=ACOUSTIC_DENSITY.slowest,
        system=lambda axes: add_memories(ACOUSTIC_DENSITY.system(axes), attenuation.relaxations),
        coefficients=find_coefficients,
        attenuation=attenuation,
    )
