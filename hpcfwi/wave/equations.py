"""The first-order wave equations of acoustic and elastic media, with or without loss.

Each equation has a function that returns its system, where its formula is, another one that returns
the coefficients of the system, and a `FirstOrderEquation` that the registry names. The words of
these descriptions are defined in `equation`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import combinations, combinations_with_replacement, product
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from hpcfwi.wave.equation import (
    Arrays,
    Attenuation,
    FirstOrderEquation,
    Source,
    System,
    Term,
    Wavefield,
    add_memories,
    harmonic_mean,
    mean,
)


def _acoustic_system(axes: str) -> System:
    """Return the system of acoustic waves in a medium with variable density.

    The equations are v_t = -(1 / rho) grad p and p_t = -rho vp^2 div v, on the staggered grid of
    Virieux (1984), whose SH waves obey the same equations. The density between cells is their mean
    (Moczo and others 2002).
    """
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


def _acoustic_coefficients(model: Mapping[str, Tensor], axes: str) -> dict[str, Tensor]:
    vp, rho = model["vp"], model["rho"]
    buoyancy = {f"b{i}": 1.0 / mean(rho, axis) for axis, i in enumerate(axes)}
    return {"vp2": vp**2, "k": rho * vp**2, **buoyancy}


ACOUSTIC_DENSITY = FirstOrderEquation(
    name="acoustic-density",
    parameters=("vp", "rho"),
    fastest=itemgetter("vp"),
    slowest=itemgetter("vp"),
    system=_acoustic_system,
    coefficients=_acoustic_coefficients,
)


def viscoacoustic(attenuation: Attenuation) -> FirstOrderEquation:
    """Return the equation of acoustic waves that lose energy (Robertsson, Blanch and Symes 1994).

    The modulus depends on frequency: p_t = -K_U div v + sum of r_l, and
    r_l,t = -w_l (r_l - tau K_R div v).
    """

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


def _acoustic_vti_system(axes: str) -> System:
    """Return the system of acoustic waves in a medium with a vertical axis of symmetry (VTI).

    The equations are those of an elastic medium without shear waves along the axis (Alkhalifah
    2000), of first order in time, with the horizontal stress -p and the vertical stress -q
    (Duveneck and Bakker 2011, eq. 11): v_z,t = -(1 / rho) q_z, v_h,t = -(1 / rho) p_h and, with
    k = rho vp^2, q_t = -k v_z,z - k sqrt(1 + 2 delta) div_h v,
    p_t = -k sqrt(1 + 2 delta) v_z,z - k (1 + 2 epsilon) div_h v. Epsilon and delta are Thomsen's
    (1986).
    """
    isotropic, horizontal = _acoustic_system(axes), axes[1:]
    return replace(
        isotropic,
        fields={"q": Wavefield(odd=True), **isotropic.fields},
        stages=(
            {f"v{i}": (Term(f"-b{i}", i, "q" if i == "z" else "p"),) for i in axes},
            {
                "q": (Term("-k", "z", "vz"), *(Term("-kd", i, f"v{i}") for i in horizontal)),
                "p": (Term("-kd", "z", "vz"), *(Term("-kh", i, f"v{i}") for i in horizontal)),
            },
        ),
        sources={**isotropic.sources, "explosive": Source({"q": "vp2", "p": "vp2"}, "integral")},
        components={**isotropic.components, "pressure": {"p": 2.0 / 3.0, "q": 1.0 / 3.0}},
        surface=("q",),
    )


def _acoustic_vti_coefficients(model: Mapping[str, Tensor], axes: str) -> dict[str, Tensor]:
    found = _acoustic_coefficients(model, axes)
    return {
        **found,
        "kd": found["k"] * (1.0 + 2.0 * model["delta"]) ** 0.5,
        "kh": found["k"] * (1.0 + 2.0 * model["epsilon"]),
    }


def _find_acoustic_vti_fault(model: Arrays) -> str | None:
    unstable = int((model["epsilon"] < model["delta"]).sum())
    if unstable:
        return (
            f"epsilon is below delta in {unstable} cells, where acoustic VTI waves grow without "
            "limit; expected at least delta in each cell"
        )
    return None


def _limit_acoustic_vti(model: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    if "delta" in names:
        return {"delta": torch.minimum(model["delta"], model["epsilon"])}
    if "epsilon" in names:
        return {"epsilon": torch.maximum(model["epsilon"], model["delta"])}
    return {}


ACOUSTIC_VTI = FirstOrderEquation(
    name="acoustic-vti",
    parameters=("vp", "epsilon", "delta", "rho"),
    fastest=lambda model: model["vp"] * (1.0 + 2.0 * model["epsilon"]) ** 0.5,
    slowest=itemgetter("vp"),
    system=_acoustic_vti_system,
    coefficients=_acoustic_vti_coefficients,
    find_fault=_find_acoustic_vti_fault,
    limit=_limit_acoustic_vti,
)


def _elastic_system(axes: str) -> System:
    """Return the system of elastic waves in an isotropic medium, which may contain fluids (vs = 0).

    The equations are rho v_t = div s and s_t = lambda (div v) I + mu (grad v + (grad v)^T), with
    mu = rho vs^2 and lambda = rho vp^2 - 2 mu, on the staggered grid of Virieux (1986). Between
    cells, the density is their mean, and the shear modulus their harmonic mean (Moczo and others
    2002), or 0 beside a fluid.
    """
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


def _elastic_coefficients(model: Mapping[str, Tensor], axes: str) -> dict[str, Tensor]:
    vp, rho = model["vp"], model["rho"]
    mu, stiff = rho * model["vs"] ** 2, rho * vp**2
    found = {"stiff": stiff, "lam": stiff - 2.0 * mu, "vp2": vp**2}
    for axis, i in enumerate(axes):
        found[f"b{i}"] = 1.0 / mean(rho, axis)
        for other in range(axis + 1, len(axes)):
            found[f"mu{i}{axes[other]}"] = harmonic_mean(mu, axis, other)
    return found


def _elastic_slowest(model: Arrays) -> object:
    vp, vs = model["vp"], model["vs"]
    return vs + vp * (vs == 0)


def _find_elastic_fault(model: Arrays) -> str | None:
    vp, vs = model["vp"], model["vs"]
    wrong = int((2.0 * vs**2 > vp**2).sum())
    if not wrong:
        return None
    return f"vs is above vp / sqrt(2) in {wrong} cells; expected at most that in each cell"


def _limit_elastic(model: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    # The ratio is below 1 / sqrt(2) in single precision too
    largest = 0.5**0.5 * (1.0 - 1e-6)
    if "vs" in names:
        return {"vs": torch.minimum(model["vs"], largest * model["vp"])}
    return {"vp": torch.maximum(model["vp"], model["vs"] / largest)} if "vp" in names else {}


ELASTIC = FirstOrderEquation(
    name="elastic",
    parameters=("vp", "vs", "rho"),
    fastest=itemgetter("vp"),
    slowest=_elastic_slowest,
    system=_elastic_system,
    coefficients=_elastic_coefficients,
    find_fault=_find_elastic_fault,
    limit=_limit_elastic,
)


def viscoelastic(attenuation: Attenuation) -> FirstOrderEquation:
    """Return the equation of elastic waves that lose energy (Robertsson, Blanch and Symes 1994).

    The rate of each stress has memory variables, r_t = -w (r + the rate of the stress with tau M_R
    in place of M). M is rho vp^2 with the quality factor of P waves, or the shear modulus with that
    of S waves.
    """

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


# Smallest (c13 + c44)^2 / c33^2 to which models are limited: the derivative of its root is finite.
LEAST = 1e-4
# Excess of delta, as a share of (vs / vp)^2, with which waves hardly grow in absorbing boundaries.
# Means over cells of a model within the limit may have it.
TOLERATED = 0.05


def _vti_system(axes: str) -> System:
    """Return the system of elastic waves in a medium with a vertical axis of symmetry (VTI).

    The equations are those of isotropic media with five stiffnesses: c33 = rho vp^2 and
    c44 = rho vs^2 along the axis, c11 = c33 (1 + 2 epsilon),
    c13 = sqrt((c33 - c44) (c33 (1 + 2 delta) - c44)) - c44, and c66 = c44. Epsilon and delta are
    Thomsen's (1986, equations 8 and 17); his gamma is 0.
    """
    isotropic = ELASTIC.system(axes)

    def coefficient(i: str, j: str) -> str:
        if "z" in (i, j):
            return "c33" if i == j else "c13"
        return "c11" if i == j else "c12"

    normal = {f"s{i}{i}": tuple(Term(coefficient(i, j), j, f"v{j}") for j in axes) for i in axes}
    first, stresses = isotropic.stages
    return replace(isotropic, stages=(first, {**stresses, **normal}))


def _find_stiffnesses(model: Arrays) -> dict[str, Any]:
    """Return the stiffnesses divided by the density; c13 is not a number if there is none."""
    c33, c44 = model["vp"] ** 2, model["vs"] ** 2
    c11 = c33 * (1.0 + 2.0 * model["epsilon"])
    coupling = (c33 - c44) * (c33 * (1.0 + 2.0 * model["delta"]) - c44)
    return {"c33": c33, "c44": c44, "c11": c11, "c12": c11 - 2.0 * c44, "coupling": coupling}


def _vti_coefficients(model: Mapping[str, Tensor], axes: str) -> dict[str, Tensor]:
    isotropic = ELASTIC.coefficients(model, axes)
    rho, stiffness = model["rho"], _find_stiffnesses(model)
    found = {
        "c33": rho * stiffness["c33"],
        "c11": rho * stiffness["c11"],
        "c13": rho * (stiffness["coupling"] ** 0.5 - stiffness["c44"]),
    }
    if len(axes) == 3:
        found["c12"] = rho * stiffness["c12"]
    kept = {name: isotropic[name] for name in isotropic if name not in ("stiff", "lam")}
    return {**kept, **found}


def _find_energy_fault(model: Arrays) -> str | None:
    """Return what contradicts positive energy in a medium, or None."""
    fault = ELASTIC.find_fault(model)
    if fault is not None:
        return fault
    stiffness = _find_stiffnesses(model)
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


def _limit_energy(model: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    """Return the arrays that must change so that `_find_energy_fault` finds nothing."""
    found = dict(ELASTIC.limit(model, names))
    model = {**model, **found}
    stiffness = _find_stiffnesses(model)
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


def _find_vti_fault(model: Arrays) -> str | None:
    fault = _find_energy_fault(model)
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


def _limit_vti(model: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    found = _limit_energy(model, names)
    model = {**model, **found}
    if "delta" in names:
        return {**found, "delta": torch.minimum(model["delta"], _find_largest_delta(model))}
    if "epsilon" in names:
        share = (model["vs"] / model["vp"]) ** 2
        least = model["delta"] - 0.5 * share
        least = torch.maximum(least, (1.0 - share) * least)
        return {**found, "epsilon": torch.maximum(model["epsilon"], least)}
    return found


def _vti_slowest(model: Arrays) -> Any:
    """Return the speed of SV waves, which is lowest near 45 degrees (Thomsen 1986, eq. 16b)."""
    vp, vs = model["vp"], model["vs"]
    sigma = (model["epsilon"] - model["delta"]) * vp**2
    slower = 0.5 * (sigma - abs(sigma))
    # The formula is for weak anisotropy, and may be below 0 otherwise
    square = vs**2 + 0.5 * slower
    square = 0.5 * (square + 0.25 * vs**2 + abs(square - 0.25 * vs**2))
    return square**0.5 + vp * (vs == 0)


def _vti_fastest(model: Arrays) -> Any:
    # The fastest direction may be oblique where delta is above epsilon
    epsilon, delta = model["epsilon"], model["delta"]
    largest = 0.5 * (epsilon + delta + abs(epsilon - delta))
    largest = 0.5 * (largest + abs(largest))
    return model["vp"] * (1.0 + 2.0 * largest) ** 0.5


ELASTIC_VTI = FirstOrderEquation(
    name="elastic-vti",
    parameters=("vp", "vs", "epsilon", "delta", "rho"),
    fastest=_vti_fastest,
    slowest=_vti_slowest,
    system=_vti_system,
    coefficients=_vti_coefficients,
    find_fault=_find_vti_fault,
    limit=_limit_vti,
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


def _tti_system(axes: str) -> System:
    """Return the system of elastic waves in a medium with a tilted axis of symmetry (TTI).

    The axis of symmetry n of the VTI medium is turned by the angle theta from the vertical towards
    x. The stiffnesses are (Love 1927, article 110, in tensor notation)

        c_ijkl = (c11 - 2 c44) d_ij d_kl + c44 (d_ik d_jl + d_il d_jk)
                 + (c13 - c11 + 2 c44) (d_ij n_k n_l + n_i n_j d_kl)
                 + (c11 + c33 - 2 c13 - 4 c44) n_i n_j n_k n_l.

    A stress then depends on derivatives that lie at different points of the isotropic grid. The
    grid of Lebedev (1964) has them all at the same points: velocities at all points with an odd
    number of halves, and stresses at those with an even number (Lisitsa and Vishnevskiy 2010).
    Sources act on all of them, and recorded components are their means, because waves of which only
    some have a part are no waves of the medium. The absorbing boundary is multiaxial, because that
    of the other equations is unstable here (docs/decisions/071-tilted-media.md).
    """
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


def _tti_coefficients(model: Mapping[str, Tensor], axes: str) -> dict[str, Tensor]:
    rho, angle, each = model["rho"], torch.deg2rad(model["theta"]), _find_stiffnesses(model)
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
    system=_tti_system,
    coefficients=_tti_coefficients,
    find_fault=_find_energy_fault,
    limit=_limit_energy,
)
