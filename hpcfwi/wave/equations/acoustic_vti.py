"""Acoustic waves in a medium with a vertical axis of symmetry (VTI).

The equations are those of an elastic medium without shear waves along the axis (Alkhalifah 2000),
of first order in time, with the horizontal stress -p and the vertical stress -q (Duveneck and
Bakker 2011, eq. 11): v_z,t = -(1 / rho) q_z, v_h,t = -(1 / rho) p_h and, with k = rho vp^2,
q_t = -k v_z,z - k sqrt(1 + 2 delta) div_h v, p_t = -k sqrt(1 + 2 delta) v_z,z - k (1 + 2 epsilon)
div_h v. Epsilon and delta are Thomsen's (1986).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from hpcfwi.wave.equation import Arrays, FirstOrderEquation, Source, System, Term, Wavefield, mean


def _system(axes: str) -> System:
    velocity = {f"v{i}": Wavefield(half=i) for i in axes}
    horizontal = axes[1:]
    return System(
        fields={"q": Wavefield(odd=True), "p": Wavefield(odd=True), **velocity},
        stages=(
            {f"v{i}": (Term(f"-b{i}", i, "q" if i == "z" else "p"),) for i in axes},
            {
                "q": (Term("-k", "z", "vz"), *(Term("-kd", i, f"v{i}") for i in horizontal)),
                "p": (Term("-kd", "z", "vz"), *(Term("-kh", i, f"v{i}") for i in horizontal)),
            },
        ),
        sources={
            "explosive": Source({"q": "vp2", "p": "vp2"}, "integral"),
            **{f"force-{i}": Source({f"v{i}": f"b{i}"}, "sample") for i in axes},
        },
        components={
            "pressure": {"p": 2.0 / 3.0, "q": 1.0 / 3.0},
            **{name: {name: 1.0} for name in velocity},
        },
        surface=("q",),
    )


def _coefficients(model: Mapping[str, Tensor], axes: str) -> dict[str, Tensor]:
    vp, rho = model["vp"], model["rho"]
    k = rho * vp**2
    buoyancy = {f"b{i}": 1.0 / mean(rho, axis) for axis, i in enumerate(axes)}
    return {
        "vp2": vp**2,
        "k": k,
        "kd": k * (1.0 + 2.0 * model["delta"]) ** 0.5,
        "kh": k * (1.0 + 2.0 * model["epsilon"]),
        **buoyancy,
    }


def _find_fault(model: Arrays) -> str | None:
    unstable = int((model["epsilon"] < model["delta"]).sum())
    if unstable:
        return (
            f"epsilon is below delta in {unstable} cells, where acoustic VTI waves grow without "
            "limit; expected at least delta in each cell"
        )
    return None


def _limit(model: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    if "delta" in names:
        return {"delta": torch.minimum(model["delta"], model["epsilon"])}
    if "epsilon" in names:
        return {"epsilon": torch.maximum(model["epsilon"], model["delta"])}
    return {}


ACOUSTIC_VTI = FirstOrderEquation(
    name="acoustic-vti",
    parameters=("vp", "epsilon", "delta", "rho"),
    fastest=lambda model: model["vp"] * (1.0 + 2.0 * model["epsilon"]) ** 0.5,
    slowest=lambda model: model["vp"],
    system=_system,
    coefficients=_coefficients,
    find_fault=_find_fault,
    limit=_limit,
)
