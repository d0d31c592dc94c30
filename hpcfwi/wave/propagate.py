"""Any wave equation as a differentiable function of its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from hpcfwi.model import AXES
from hpcfwi.registry import EQUATIONS
from hpcfwi.wave import numerics
from hpcfwi.wave.acoustic import acoustic, require_fixed, require_tensor
from hpcfwi.wave.engines import FirstOrderEngine
from hpcfwi.wave.equation import FirstOrderEquation, System, find_equation
from hpcfwi.wave.history import Auto, History
from hpcfwi.wave.problem import Fibre, Problem
from hpcfwi.wave.simulation import Acquisition, Method, check_inside, select_arrays, set_up
from hpcfwi.wave.staggered import STRAIN, StaggeredScheme, discretize


def propagate(
    equation: str,
    model: Mapping[str, Tensor],
    spacing: float | Sequence[float],
    dt: float,
    wavelet: Tensor,
    sources: Tensor | NDArray[np.float64],
    receivers: Tensor | NDArray[np.float64],
    *,
    source_kind: str | ArrayLike = "explosive",
    components: str | Sequence[str] = "pressure",
    directions: ArrayLike | None = None,
    gauge: float | None = None,
    order: int = 8,
    boundary: int = 20,
    free_surface: bool = False,
    boundary_frequency: float | None = None,
    max_velocity: float | None = None,
    engine: str = "auto",
    history: str | Auto | History = "auto",
) -> Tensor:
    """Return components of the waves at the receivers of every shot.

    The result is differentiable in every array of the model and in the wavelet, by autograd
    backwards and forwards, but not by the transforms of `torch.func`.

    Parameters
    ----------
    equation
        "acoustic", "acoustic-density", "elastic" or "acoustic-vti".
    model
        The parameters of the equation, each (nz, nx) or (nz, ny, nx), float32 or float64: "vp" and
        "vs" in m/s, "rho" in kg/m^3, Thomsen's "epsilon" and "delta". Fluids have vs = 0.
    spacing, dt, sources, receivers, order, boundary, free_surface, boundary_frequency, max_velocity
        As in `acoustic`.
    wavelet
        (time,) for all shots, (shot, time), or (shot, source, time); its unit depends on the kind
        of the sources.
    source_kind
        "explosive": the same source as that of `acoustic`. "force-z", "force-y" or "force-x": a
        force, N (in 2-D N/m). A moment tensor, (ndim, ndim) and symmetric, in the order of the
        axes: the wavelet is the rate of its moment, so that their product is in N m/s.
    components
        The name of a component, or several: "pressure" (Pa), particle velocity "vz", "vy" and "vx"
        (m/s), "strain" along a fibre.
    directions
        Of the fibre at the receivers, for "strain": (ndim,), (receiver, ndim) or (shot, receiver,
        ndim); their length does not matter.
    gauge
        Length of fibre over which the strain is averaged, m.
    engine
        "auto", "cpu" or "eager", and for "acoustic" its other engines. The engine "eager" is plain
        PyTorch and keeps all steps for the gradient: it is for small models.
    history
        "auto", "snapshots", or an object such as `hpcfwi.wave.history.Snapshots(interval=1)`, which
        gives the exact gradient of the discrete scheme; for "acoustic" see there.

    Returns
    -------
    Tensor
        (shot, receiver, time), or (component, shot, receiver, time) if `components` is a sequence.
        Sample n is the component at the time n dt.

    Raises
    ------
    TypeError
        If the wavelet or an array of the model is not a tensor.
    ValueError
        If the equation lacks a parameter, kind of source or component, or as `acoustic` does.

    Notes
    -----
    With w the wavelet and e its direction, a force adds e w(t) delta(x - x_s) to rho v_t, and a
    moment tensor adds -M w(t) delta(x - x_s) to the rate of the stress (Aki and Richards 2002,
    section 3.3). An explosion adds vp^2 times the integral of w to the rate of the pressure.
    """
    if equation not in EQUATIONS:
        raise ValueError(f"equation is {equation!r}; expected one of {', '.join(EQUATIONS)}")
    for name, array in {**model, "wavelet": wavelet}.items():
        require_tensor(array, name)
    require_fixed(sources, "sources")
    require_fixed(receivers, "receivers")
    names = (components,) if isinstance(components, str) else tuple(components)
    method = Method(
        order, boundary, free_surface, boundary_frequency, max_velocity, engine, history, equation
    )
    asked = find_equation(equation)
    if not isinstance(asked, FirstOrderEquation):
        if not isinstance(source_kind, str) or {source_kind, *names} != {"explosive", "pressure"}:
            raise ValueError(
                f"source_kind is {source_kind!r} and components {components!r}; expected explosive "
                "and pressure for acoustic: acoustic-density has others"
            )
        select_arrays(model, asked)
        found = acoustic(model["vp"], spacing, dt, wavelet, sources, receivers, **method.options)
        return found if isinstance(components, str) else torch.stack([found] * len(names))
    if len(sources) == 0:
        # There is nothing to simulate, but a gradient may be requested with those of other parts.
        nothing = 0.0 * sum((model[name].sum() for name in asked.parameters), wavelet.sum())
        found = nothing.expand(len(names), 0, np.shape(receivers)[-2], wavelet.shape[-1])
        return found[0] if isinstance(components, str) else found
    shots = Acquisition(float(dt), wavelet, sources, receivers)
    task = set_up(model, spacing, shots, method, illuminate=False)
    problem = replace(task.problem, model={name: model[name] for name in asked.parameters})
    if torch.is_grad_enabled() and any(array.requires_grad for array in problem.model.values()):
        problem = replace(problem, history=task.choose_history())
    axes = AXES[len(problem.spacing)]
    system = asked.system(axes)
    source = _find_source(source_kind, system, axes, equation)
    _check_components(names, system, equation)
    fibre = _find_fibre(directions, gauge, problem) if STRAIN in names else None
    problem = replace(problem, source=source, components=names, fibre=fibre)
    scheme = discretize(problem)
    if free_surface:
        _check_surface(problem, scheme)
    emitted = wavelet[:, None] if wavelet.ndim == 2 else wavelet
    emitted = emitted.expand(*problem.sources.shape[:2], -1)
    fine = numerics.upsample(emitted.to(problem.like), task.substeps)
    traces = cast(FirstOrderEngine, task.engine).simulate(problem, scheme, fine)
    found = numerics.downsample(traces, task.substeps, wavelet.shape[-1])
    return found[0] if isinstance(components, str) else found


def _find_source(
    kind: str | ArrayLike, system: System, axes: str, equation: str
) -> str | NDArray[np.float64]:
    """Return the kind of sources, or their moment tensor; raise ValueError if there is none."""
    named = [name for name in system.sources if not name.startswith("moment")]
    if isinstance(kind, str) and kind in named:
        return kind
    ndim, expected = len(axes), ", ".join(named)
    if len(named) < len(system.sources):
        expected += f", or a symmetric moment tensor ({ndim}, {ndim})"
        try:
            tensor = np.asarray(kind, dtype=np.float64)
        except (TypeError, ValueError):  # it is no array of numbers
            tensor = np.zeros(0)
        is_square = tensor.shape == (ndim, ndim) and bool(np.isfinite(tensor).all())
        if is_square and np.allclose(tensor, tensor.T, rtol=1e-6, atol=0.0):
            return tensor
    raise ValueError(f"source_kind is {kind!r}; expected {expected} for the equation {equation}")


def _check_components(names: Sequence[str], system: System, equation: str) -> None:
    known = (*system.components, STRAIN)
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise ValueError(
            f"components has {', '.join(wrong) or 'no names'}; expected some of {', '.join(known)} "
            f"for the equation {equation}"
        )


def _find_fibre(directions: ArrayLike | None, gauge: float | None, problem: Problem) -> Fibre:
    """Return the fibre for the component strain; raise ValueError if its ends lie outside."""
    if directions is None or gauge is None or not 0.0 < float(gauge) < np.inf:
        raise ValueError(
            f"directions is {directions!r} and gauge {gauge}; expected the directions of the fibre "
            "and a positive length (m) for the component strain"
        )
    gauge = float(gauge)
    try:
        along = np.asarray(directions, dtype=np.float64)
        length = np.linalg.norm(along, axis=-1, keepdims=True)
        if not (np.isfinite(length) & (length > 0.0)).all():
            raise ValueError
        along = np.broadcast_to(along / length, problem.receivers.shape)
    except (TypeError, ValueError):
        raise ValueError(
            f"directions is {directions!r}; expected finite vectors (ndim,), (receiver, ndim) or "
            "(shot, receiver, ndim), none of length 0"
        ) from None
    for sign in (-0.5, 0.5):
        ends = problem.receivers + sign * gauge * along
        check_inside(ends, "gauge end", tuple(problem.like.shape), problem.spacing)
    return Fibre(gauge, along)


def _check_surface(problem: Problem, scheme: StaggeredScheme) -> None:
    """Raise ValueError for sources on the free surface that add only to fields that are 0."""
    silent = problem.sources[..., 0] < 1e-6 * problem.spacing[0]
    for shot, number in np.argwhere(silent):
        for emission in scheme.emissions:
            strength = emission.strength.detach().flatten().cpu().double().numpy()
            cells = emission.points.cells[shot, number]
            taps = emission.points.weights[shot, number] * strength[cells]
            # Taps above the surface and their images may cancel
            emitted = np.abs(np.bincount(cells, taps)).max()
            if emitted > 1e-6 * np.abs(strength).max():
                silent[shot, number] = False
    if silent.any():
        raise ValueError(
            f"{silent.sum()} of {silent.size} sources lie on the free surface, z = 0, where they "
            "emit nothing; expected a depth such as "
            f"{problem.spacing[0]:g} m, another source_kind, or free_surface=False"
        )
