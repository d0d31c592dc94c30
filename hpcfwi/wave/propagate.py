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
from hpcfwi.survey import STRAIN, Components, SourceKinds, moment_kinds
from hpcfwi.wave import numerics
from hpcfwi.wave.acoustic import acoustic, require_fixed, require_tensor
from hpcfwi.wave.engines import FirstOrderEngine
from hpcfwi.wave.equation import Attenuation, FirstOrderEquation
from hpcfwi.wave.history import Auto, History
from hpcfwi.wave.simulation import (
    Acquisition,
    Method,
    as_positions,
    check_kinds,
    select_arrays,
    set_up,
)


def propagate(
    equation: str,
    model: Mapping[str, Tensor],
    spacing: float | Sequence[float],
    dt: float,
    wavelet: Tensor,
    sources: Tensor | NDArray[np.float64],
    receivers: Tensor | NDArray[np.float64],
    *,
    attenuation: Attenuation | None = None,
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

    The result is differentiable once in every array of the model and in the wavelet, by autograd
    backwards and forwards, but not by the transforms of `torch.func`.

    Parameters
    ----------
    equation
        A name in `hpcfwi.registry.EQUATIONS`, such as "elastic".
    model
        The parameters of the equation, each (nz, nx) or (nz, ny, nx), float32 or float64: "vp" and
        "vs" in m/s, "rho" in kg/m^3, Thomsen's "epsilon" and "delta", the tilt "theta" of the
        axis of symmetry from the vertical towards x in degrees, the quality factors "qp" and "qs"
        of P and S waves. Fluids have vs = 0.
    spacing, dt, sources, receivers, order, boundary, free_surface, boundary_frequency, max_velocity
        As in `acoustic`.
    wavelet
        (time,) for all shots, (shot, time), or (shot, source, time); its unit depends on the kind
        of the sources.
    attenuation
        The dependence of quality factors on frequency, and the frequency at which waves have the
        velocities of the model, for the equations with quality factors; by default `Attenuation()`.
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
        "auto", "cpu", "gpu" or "eager", and for "acoustic" its other engines. The engine "eager" is
        plain PyTorch and keeps all steps for the gradient: it is for small models.
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
    NotImplementedError
        If a second derivative is requested. The engine "eager" has them, except of "acoustic".

    Notes
    -----
    With w the wavelet and e its direction, a force adds e w(t) delta(x - x_s) to rho v_t, and a
    moment tensor adds -M w(t) delta(x - x_s) to the rate of the stress (Aki and Richards 2002,
    section 3.3). An explosion adds vp^2 times the integral of w to the rate of the pressure.
    """
    for name, array in {**model, "wavelet": wavelet}.items():
        require_tensor(array, name)
    require_fixed(sources, "sources")
    require_fixed(receivers, "receivers")
    names = (components,) if isinstance(components, str) else tuple(components)
    method = Method(
        order,
        boundary,
        free_surface,
        boundary_frequency,
        max_velocity,
        engine,
        history,
        equation,
        attenuation,
    )
    asked = method.find_equation()
    if attenuation is not None and "qp" not in asked.parameters:
        raise ValueError(f"waves of the equation {equation!r} are not attenuated: leave it out")
    ndim = next(iter(select_arrays(model, asked).values())).ndim
    kinds = _find_kinds(source_kind, ndim)
    check_kinds(names, kinds, asked, ndim)
    if not isinstance(asked, FirstOrderEquation):
        found = acoustic(model["vp"], spacing, dt, wavelet, sources, receivers, **method.options)
        return found if isinstance(components, str) else torch.stack([found] * len(names))
    if len(sources) == 0:
        # There is nothing to simulate, but a gradient may be requested with those of other parts.
        arrays = [model[name] for name in asked.parameters]
        nothing = 0.0 * sum((array.sum() for array in arrays), wavelet.sum().to(arrays[0]))
        found = nothing.expand(len(names), 0, np.shape(receivers)[-2], wavelet.shape[-1])
        return found[0] if isinstance(components, str) else found
    places = as_positions(receivers, "receivers", ndim)
    of_each = np.repeat(np.arange(len(names), dtype=np.int8), places.shape[-2])
    recorded = Components(names, of_each, gauge)
    if STRAIN in names:
        along = np.concatenate([_find_directions(directions, gauge, places)] * len(names), axis=-2)
        recorded = replace(recorded, directions=along)
    places = np.concatenate([places] * len(names), axis=-2)
    shots = Acquisition(float(dt), wavelet, sources, places, recorded, kinds)
    task = set_up(model, spacing, shots, method, illuminate=False)
    problem = replace(task.problem, model={name: model[name] for name in asked.parameters})
    if torch.is_grad_enabled() and any(array.requires_grad for array in problem.model.values()):
        problem = replace(problem, history=task.choose_history())
    emitted = wavelet[:, None] if wavelet.ndim == 2 else wavelet
    emitted = emitted.expand(*problem.sources.shape[:2], -1)
    fine = numerics.upsample(emitted.to(problem.like), task.substeps)
    traces = cast(FirstOrderEngine, task.engine).simulate(problem, fine)
    found = numerics.downsample(traces, task.substeps, wavelet.shape[-1])
    if isinstance(components, str):
        return found
    return found.unflatten(1, (len(names), -1)).transpose(0, 1)  # type: ignore[no-untyped-call]


def _find_kinds(kind: str | ArrayLike, ndim: int) -> SourceKinds:
    """Return the kinds of sources of a name or a moment tensor; raise ValueError otherwise."""
    if isinstance(kind, str):
        return {kind: np.ones(())}
    try:
        tensor = np.asarray(kind, dtype=np.float64)
    except (TypeError, ValueError):  # it is no array of numbers
        tensor = np.zeros(0)
    is_square = tensor.shape == (ndim, ndim) and bool(np.isfinite(tensor).all())
    if not is_square or not np.allclose(tensor, tensor.T, rtol=1e-6, atol=0.0):
        raise ValueError(
            f"source_kind is {kind!r}; expected the name of a kind, or a symmetric moment tensor "
            f"({ndim}, {ndim})"
        )
    return moment_kinds(tensor, AXES[ndim])


def _find_directions(
    directions: ArrayLike | None, gauge: float | None, receivers: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the direction of the fibre at each receiver; raise ValueError if there is none."""
    if directions is None or gauge is None or not 0.0 < float(gauge) < np.inf:
        raise ValueError(
            f"directions is {directions!r} and gauge {gauge}; expected the directions of the fibre "
            "and a positive length (m) for the component strain"
        )
    try:
        along = np.asarray(directions, dtype=np.float64)
        length = np.linalg.norm(along, axis=-1, keepdims=True)
        if not (np.isfinite(length) & (length > 0.0)).all():
            raise ValueError
        return np.broadcast_to(along / length, np.broadcast_shapes(along.shape, receivers.shape))
    except (TypeError, ValueError):
        raise ValueError(
            f"directions is {directions!r}; expected finite vectors (ndim,), (receiver, ndim) or "
            "(shot, receiver, ndim), none of length 0"
        ) from None
