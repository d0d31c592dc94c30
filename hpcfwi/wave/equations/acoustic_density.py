"""Acoustic waves in a medium with variable density.

The equations are v_t = -(1 / rho) grad p and p_t = -rho vp^2 div v, on the staggered grid of
Virieux (1984), whose SH waves obey the same equations. The density between cells is their mean
(Moczo and others 2002).

In `viscoacoustic` media the modulus depends on frequency, so that waves lose energy (Robertsson,
Blanch and Symes 1994): p_t = -K_U div v + sum of r_l, and r_l,t = -w_l (r_l - tau K_R div v).
"""

from __future__ import annotations

from collections.abc import Mapping

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
    mean,
)


def _system(axes: str) -> System:
    velocity = {f"v{i}": Wavefield(half=i) for i in axes}
    return System(
        fields={"p": Wavefield(odd=True), **velocity},
        stages=(
            {f"v{i}": (Term(f"-b{i}", i, "p"),) for i in axes},
            {"p": tuple(Term("-k", i, f"v{i}") for i in axes)},
        ),
        sources={
            "explosive": Source({"p": "vp2"}, "integral"),
            **{f"force-{i}": Source({f"v{i}": f"b{i}"}, "sample") for i in axes},
        },
        components={"pressure": {"p": 1.0}, **{name: {name: 1.0} for name in velocity}},
        surface=("p",),
    )


def _coefficients(model: Mapping[str, Tensor], axes: str) -> dict[str, Tensor]:
    vp, rho = model["vp"], model["rho"]
    buoyancy = {f"b{i}": 1.0 / mean(rho, axis) for axis, i in enumerate(axes)}
    return {"vp2": vp**2, "k": rho * vp**2, **buoyancy}


ACOUSTIC_DENSITY = FirstOrderEquation(
    name="acoustic-density",
    parameters=("vp", "rho"),
    fastest=lambda model: model["vp"],
    slowest=lambda model: model["vp"],
    system=_system,
    coefficients=_coefficients,
)


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
