"""Elastic waves in a medium with a tilted axis of symmetry (TTI), which may contain fluids.

The medium is that of `elastic_vti`, whose axis of symmetry n is turned by the angle theta from the
vertical towards x. With n, the stiffnesses are (Love 1927, article 110, in tensor notation)

    c_ijkl = (c11 - 2 c44) d_ij d_kl + c44 (d_ik d_jl + d_il d_jk)
             + (c13 - c11 + 2 c44) (d_ij n_k n_l + n_i n_j d_kl)
             + (c11 + c33 - 2 c13 - 4 c44) n_i n_j n_k n_l.

A stress then depends on derivatives that lie at different points of the grid of `elastic`. The grid
of Lebedev (1964) has them all at the same points: velocities at all points with an odd number of
halves, and stresses at those with an even number (Lisitsa and Vishnevskiy 2010). Sources act on
all of them, and recorded components are their means, because waves of which only some have a part
are no waves of the medium.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, combinations_with_replacement, product

import torch
from torch import Tensor

from hpcfwi.wave.equation import FirstOrderEquation, Source, System, Term, Wavefield, mean
from hpcfwi.wave.equations.elastic_vti import ELASTIC_VTI, find_stiffnesses


def _halves(axes: str, remainder: int) -> list[str]:
    """Return the axes with halves of the points that have an odd (1) or even (0) number of them."""
    counts = range(remainder, len(axes) + 1, 2)
    return ["".join(half) for n in counts for half in combinations(axes, n)]


def _shift(half: str, axis: str, axes: str) -> str:
    """Return where a derivative along an axis lies, if its field lies at `half`."""
    return "".join(i for i in axes if (i in half) != (i == axis))


def _pairs(axes: str) -> list[str]:
    return ["".join(pair) for pair in combinations_with_replacement(axes, 2)]


def _pair(i: str, j: str, axes: str) -> str:
    return "".join(sorted(i + j, key=axes.index))


def _is_zero(first: str, second: str) -> bool:
    """Return True if the stiffness of two pairs of axes is zero by the symmetry along y."""
    return (first + second).count("y") % 2 == 1


def _stiffness(first: str, second: str, axes: str) -> str:
    return "c" + "".join(sorted((first, second), key=_pairs(axes).index))


def _system(axes: str) -> System:
    odd, even, pairs = _halves(axes, 1), _halves(axes, 0), _pairs(axes)
    velocity = {f"v{i}_{at}": Wavefield(at) for i in axes for at in odd}
    stress = {f"s{ij}_{at}": Wavefield(at, odd="z" in ij) for ij in pairs for at in even}
    normal = [f"s{i}{i}_{at}" for i in axes for at in even]
    return System(
        fields={**velocity, **stress},
        stages=(
            {
                f"v{i}_{at}": tuple(
                    Term(f"b_{at}", j, f"s{_pair(i, j, axes)}_{_shift(at, j, axes)}") for j in axes
                )
                for i in axes
                for at in odd
            },
            {
                f"s{ij}_{at}": tuple(
                    Term(
                        f"{_stiffness(ij, _pair(k, l, axes), axes)}_{at}",
                        l,
                        f"v{k}_{_shift(at, l, axes)}",
                    )
                    for k, l in product(axes, axes)
                    if not _is_zero(ij, k + l)
                )
                for ij in pairs
                for at in even
            },
        ),
        sources={
            "explosive": Source({name: f"-vp2_{name.partition('_')[2]}" for name in normal}, "integral"),
            **{f"force-{i}": Source({f"v{i}_{at}": f"b_{at}" for at in odd}, "sample") for i in axes},
            **{f"moment-{ij}": Source({f"s{ij}_{at}": "-1" for at in even}, "rate") for ij in pairs},
        },
        components={
            "pressure": dict.fromkeys(normal, -1.0 / len(normal)),
            **{f"v{i}": {f"v{i}_{at}": 1.0 / len(odd) for at in odd} for i in axes},
        },
        surface=tuple(f"sz{i}_{at}" for at in even if "z" not in at for i in axes),
    )


def _coefficients(model: Mapping[str, Tensor], axes: str) -> dict[str, Tensor]:
    rho, angle = model["rho"], torch.deg2rad(model["theta"])
    axis = {"z": torch.cos(angle), "x": torch.sin(angle)}
    each = find_stiffnesses(model)
    c11, c33, c44 = each["c11"], each["c33"], each["c44"]
    c13 = each["coupling"] ** 0.5 - c44

    def along(*letters: str) -> Tensor | float:
        """Return the product of these components of the axis of symmetry."""
        found = torch.ones_like(rho)
        for letter in letters:
            found = found * axis[letter] if letter in axis else 0.0 * found
        return found

    def stiffness(i: str, j: str, k: str, l: str) -> Tensor:
        mixed = (i == j) * along(k, l) + (k == l) * along(i, j)
        return rho * (
            (i == j and k == l) * (c11 - 2.0 * c44)
            + ((i == k and j == l) + (i == l and j == k)) * c44
            + (c13 - c11 + 2.0 * c44) * mixed
            + (c11 + c33 - 2.0 * c13 - 4.0 * c44) * along(i, j, k, l)
        )

    def between(values: Tensor, half: str) -> Tensor:
        for letter in half:
            values = mean(values, axes.index(letter))
        return values

    names = [
        (first, second)
        for first, second in combinations_with_replacement(_pairs(axes), 2)
        if not _is_zero(first, second)
    ]
    found = {f"b_{at}": 1.0 / between(rho, at) for at in _halves(axes, 1)}
    for at in _halves(axes, 0):
        found[f"vp2_{at}"] = between(model["vp"] ** 2, at)
        for first, second in names:
            found[f"c{first}{second}_{at}"] = between(stiffness(*first, *second), at)
    return found


ELASTIC_TTI = FirstOrderEquation(
    name="elastic-tti",
    parameters=("vp", "vs", "epsilon", "delta", "theta", "rho"),
    fastest=ELASTIC_VTI.fastest,
    slowest=ELASTIC_VTI.slowest,
    system=_system,
    coefficients=_coefficients,
    find_fault=ELASTIC_VTI.find_fault,
    limit=ELASTIC_VTI.limit,
)
