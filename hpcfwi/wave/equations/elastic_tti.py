"""Elastic waves in a medium with a tilted axis of symmetry (TTI), which may contain fluids.

The medium is that of `elastic_vti`, whose axis of symmetry n is turned by the angle theta from the
vertical towards x. Its stiffnesses are (Love 1927, article 110, in tensor notation)

    c_ijkl = (c11 - 2 c44) d_ij d_kl + c44 (d_ik d_jl + d_il d_jk)
             + (c13 - c11 + 2 c44) (d_ij n_k n_l + n_i n_j d_kl)
             + (c11 + c33 - 2 c13 - 4 c44) n_i n_j n_k n_l.

A stress then depends on derivatives that lie at different points of the grid of `elastic`. The grid
of Lebedev (1964) has them all at the same points: velocities at all points with an odd number of
halves, and stresses at those with an even number (Lisitsa and Vishnevskiy 2010). Sources act on
all of them, and recorded components are their means, because waves of which only some have a part
are no waves of the medium. The absorbing boundary is multiaxial, because that of the other
equations is unstable here (docs/decisions/071-tilted-media.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations, combinations_with_replacement, product
from typing import Any

import torch
from torch import Tensor

from hpcfwi.wave.equation import FirstOrderEquation, Source, System, Term, Wavefield, mean
from hpcfwi.wave.equations.elastic_vti import (
    ELASTIC_VTI,
    find_energy_fault,
    find_stiffnesses,
    limit_energy,
)

# With smaller shares, waves grow in the absorbing boundary of some media
MULTIAXIAL = 0.25


def _points(axes: str, remainder: int) -> list[str]:
    """Return the axes with halves of the points that have an odd (1) or even (0) number of them."""
    counts = range(remainder, len(axes) + 1, 2)
    return ["".join(half) for n in counts for half in combinations(axes, n)]


def _pairs(axes: str) -> list[str]:
    return ["".join(pair) for pair in combinations_with_replacement(axes, 2)]


def _in_order(letters: Iterable[str], axes: str) -> str:
    return "".join(sorted(letters, key=axes.index))


def _stiffness(first: str, second: str, axes: str) -> str:
    """Return the name of the stiffness of two pairs of axes, "" if it is 0 by symmetry along y."""
    if (first + second).count("y") % 2:
        return ""
    return "c" + "".join(sorted((first, second), key=_pairs(axes).index))


def _system(axes: str) -> System:
    odd, even, pairs = _points(axes, 1), _points(axes, 0), _pairs(axes)
    normal = [f"s{i}{i}_{at}" for i in axes for at in even]
    forces = {f"force-{i}": {f"v{i}_{at}": f"b_{at}" for at in odd} for i in axes}
    moments = {f"moment-{ij}": {f"s{ij}_{at}": "-1" for at in even} for ij in pairs}

    def push(i: str, at: str) -> tuple[Term, ...]:
        """Return the terms of a velocity at a point."""
        where = {j: _in_order({*at} ^ {j}, axes) for j in axes}
        return tuple(Term(f"b_{at}", j, f"s{_in_order(i + j, axes)}_{where[j]}") for j in axes)

    def strain(pair: str, at: str) -> tuple[Term, ...]:
        """Return the terms of a stress at a point."""
        each = {
            (k, j): _stiffness(pair, _in_order(k + j, axes), axes) for k, j in product(axes, axes)
        }
        return tuple(
            Term(f"{name}_{at}", j, f"v{k}_{_in_order({*at} ^ {j}, axes)}")
            for (k, j), name in each.items()
            if name
        )

    return System(
        fields={
            **{f"v{i}_{at}": Wavefield(at) for i in axes for at in odd},
            **{f"s{ij}_{at}": Wavefield(at, odd="z" in ij) for ij in pairs for at in even},
        },
        stages=(
            {f"v{i}_{at}": push(i, at) for i in axes for at in odd},
            {f"s{ij}_{at}": strain(ij, at) for ij in pairs for at in even},
        ),
        sources={
            "explosive": Source({s: f"-vp2_{s.partition('_')[2]}" for s in normal}, "integral"),
            **{kind: Source(each, "sample") for kind, each in forces.items()},
            **{kind: Source(each, "rate") for kind, each in moments.items()},
        },
        components={
            "pressure": dict.fromkeys(normal, -1.0 / len(normal)),
            **{f"v{i}": {f"v{i}_{at}": 1.0 / len(odd) for at in odd} for i in axes},
        },
        surface=tuple(f"sz{i}_{at}" for at in even if "z" not in at for i in axes),
        multiaxial=MULTIAXIAL,
    )


def _find_coefficients(model: Mapping[str, Tensor], axes: str) -> dict[str, Tensor]:
    rho, angle, each = model["rho"], torch.deg2rad(model["theta"]), find_stiffnesses(model)
    n = {"z": torch.cos(angle), "y": torch.zeros_like(angle), "x": torch.sin(angle)}
    c11, c33, c44 = each["c11"], each["c33"], each["c44"]
    c13 = each["coupling"] ** 0.5 - c44

    def stiffness(i: str, j: str, k: str, m: str) -> Any:
        return rho * (
            (i == j and k == m) * (c11 - 2.0 * c44)
            + ((i == k and j == m) + (i == m and j == k)) * c44
            + (c13 - c11 + 2.0 * c44) * ((i == j) * n[k] * n[m] + (k == m) * n[i] * n[j])
            + (c11 + c33 - 2.0 * c13 - 4.0 * c44) * n[i] * n[j] * n[k] * n[m]
        )

    def at_points(values: Tensor, half: str) -> Tensor:
        for letter in half:
            values = mean(values, axes.index(letter))
        return values

    found = {f"b_{at}": 1.0 / at_points(rho, at) for at in _points(axes, 1)}
    found |= {f"vp2_{at}": at_points(model["vp"] ** 2, at) for at in _points(axes, 0)}
    for first, second in combinations_with_replacement(_pairs(axes), 2):
        name = _stiffness(first, second, axes)
        if name:
            values = stiffness(*first, *second)
            found |= {f"{name}_{at}": at_points(values, at) for at in _points(axes, 0)}
    return found


ELASTIC_TTI = FirstOrderEquation(
    name="elastic-tti",
    parameters=("vp", "vs", "epsilon", "delta", "theta", "rho"),
    fastest=ELASTIC_VTI.fastest,
    slowest=ELASTIC_VTI.slowest,
    system=_system,
    coefficients=_find_coefficients,
    find_fault=find_energy_fault,
    limit=limit_energy,
)
