"""Wave equations as differentiable functions of their model, and as a PyTorch module.

`acoustic` is for the equation (1 / v^2) p_tt - laplacian(p) = s(t) delta(x - x_s). It maps a model
and a wavelet to traces, and supports autograd and the transforms of `torch.func`. `Acoustic` is the
same operator as a module whose parameter is the model. `propagate` is for any wave equation.
Simulation and backpropagation are in `simulation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from hpcfwi.model import AXES
from hpcfwi.survey import STRAIN, Components, SourceKinds, Spectrum, moment_kinds
from hpcfwi.wave import numerics
from hpcfwi.wave.engines import FirstOrderEngine
from hpcfwi.wave.equation import Attenuation, FirstOrderEquation
from hpcfwi.wave.history import Auto, History, graph_is_kept
from hpcfwi.wave.problem import SecondDerivative
from hpcfwi.wave.simulation import (
    Acquisition,
    Method,
    Simulation,
    as_positions,
    check_kinds,
    select_arrays,
    set_up,
    simulate,
    write_out,
)


def acoustic(
    vp: Tensor,
    spacing: float | Sequence[float],
    dt: float,
    wavelet: Tensor,
    sources: Tensor | NDArray[np.float64],
    receivers: Tensor | NDArray[np.float64],
    *,
    order: int = 8,
    boundary: int = 20,
    free_surface: bool = False,
    boundary_frequency: float | None = None,
    max_velocity: float | None = None,
    engine: str = "auto",
    history: str | Auto | History = "auto",
) -> Tensor:
    """Return the pressure at the receivers of every shot, differentiable in `vp` and `wavelet`.

    Parameters
    ----------
    vp
        (nz, nx) or (nz, ny, nx), m/s, float32 or float64; the result has its type and device.
    spacing
        Grid spacing, m: one for all axes or one for each.
    dt
        Sampling of the wavelet and of the traces, s. If it is too long for a stable scheme, each
        step is divided into the smallest sufficient number of substeps.
    wavelet
        (time,) for all shots, (shot, time), or (shot, source, time).
    sources, receivers
        (shot, ndim), or (shot, source, ndim) where several sources of a shot act at once, and
        (shot, receiver, ndim) or (receiver, ndim), m from the grid's first point.
    order
        Order of the differences in space: 2, 4, 6 or 8.
    boundary
        Cells of absorbing boundary (CPML) around the model.
    free_surface
        If True, p = 0 at z = 0, in place of the absorbing boundary above.
    boundary_frequency, max_velocity
        Frequency (Hz) and velocity (m/s) that the boundary is tuned to; by default the wavelet's
        peak frequency and the model's maximum. If both are given, gradients do not depend on
        `vp.max()`.
    engine
        "auto", "eager", "cpu", "gpu" or "deepwave".
    history
        "auto", "snapshots", "boundary", "recompute", or an object of `hpcfwi.wave.history`, such as
        `Snapshots(interval=1)`, which gives the exact gradient of the discrete scheme.

    Returns
    -------
    (shot, receiver, time); sample n is p at n dt, and p is 0 up to the first sample.

    Raises
    ------
    TypeError
        If `vp` or `wavelet` is not a tensor.
    ValueError
        If an argument has the wrong shape or an impossible value, velocities seem to be in km/s,
        a source lies on the free surface, or a gradient with respect to positions is requested.
    MemoryError
        If no history fits into the available memory, or into the given one.
    NotImplementedError
        If a second derivative with respect to `vp` or `wavelet` is requested.

    Warns
    -----
    UserWarning
        If `dt` seems to be in ms or positions in cells, or if a receiver lies on the free surface.

    Notes
    -----
    A source is a point of the equation above: v^2 dt^2 s(t) / (volume of a cell) is added to p at
    its cell, and traces do not depend on the spacing. Deepwave's `scalar` adds -v^2 dt^2 s(t): the
    traces of `acoustic` are its traces times -1 / h^2 in 2-D, and times -1 / h^3 in 3-D.
    """
    _check_arguments({"vp": vp, "wavelet": wavelet}, sources, receivers)
    method = Method(
        order=order,
        boundary=boundary,
        free_surface=free_surface,
        boundary_frequency=boundary_frequency,
        max_velocity=max_velocity,
        engine=engine,
        history=history,
    )
    places = [
        points if isinstance(points, Tensor) else torch.tensor(np.asarray(points))
        for points in (sources, receivers)
    ]
    if len(places[0]) == 0:
        return _make_no_traces([vp], wavelet, places[1].shape[-2])
    keep = torch.is_grad_enabled() and (vp.requires_grad or wavelet.requires_grad)
    asked = _Asked(spacing, float(dt), method, keep)
    data: Tensor = _Acoustic.apply(vp, wavelet, *places, asked)  # type: ignore[no-untyped-call]
    return data


def _check_arguments(tensors: Mapping[str, object], *positions: object) -> None:
    """Raise TypeError for a value that is not a tensor, ValueError for positions with a gradient.

    positions: of the sources, and of the receivers.
    """
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{name} is a {type(value).__module__}.{type(value).__qualname__}; expected a "
                f"torch.Tensor: torch.as_tensor({name})"
            )
    for name, points in zip(("sources", "receivers"), positions, strict=False):
        if isinstance(points, Tensor) and points.requires_grad:
            raise ValueError(
                f"{name} requires a gradient, but there is none with respect to positions; "
                f"expected {name}.detach()"
            )


def _make_no_traces(arrays: Sequence[Tensor], wavelet: Tensor, receivers: int) -> Tensor:
    """Return the traces of no shots, of which a gradient may be requested with those of others."""
    nothing = 0.0 * sum((array.sum() for array in arrays), wavelet.sum().to(arrays[0]))
    return nothing.expand(0, receivers, wavelet.shape[-1])


@dataclass(eq=False)
class _Asked:
    """The arguments of `acoustic` that are not tensors, and the simulation made with them."""

    spacing: float | Sequence[float]
    dt: float
    method: Method
    keep: bool
    simulation: Simulation | None = field(default=None, init=False)

    def tuned_to(self, wavelet: Tensor) -> _Asked:
        """Return the same arguments with the boundary tuned to this wavelet."""
        method = self.method
        if method.boundary_frequency is None:
            peak = Spectrum.of(wavelet.detach().cpu().numpy(), self.dt).peak
            method = replace(method, boundary_frequency=peak)
        return replace(self, method=method, keep=False)

    def kept(self, *tensors: Tensor) -> Simulation:
        """Return the simulation with its history, which is made if there is none."""
        if self.simulation is None or not self.keep:
            self.simulation = self.simulate(*tensors, keep=True)
            self.keep = True
        return self.simulation

    def simulate(self, *tensors: Tensor, keep: bool) -> Simulation:
        """Simulate shots with these arguments."""
        vp, wavelet, sources, receivers = tensors
        shots = Acquisition(self.dt, wavelet, sources, receivers)
        return simulate({"vp": vp}, self.spacing, shots, self.method, keep=keep, illuminate=False)


class _Acoustic(torch.autograd.Function):
    """Traces as a function of vp and wavelet, in the form for the transforms of `torch.func`.

    Its inputs are vp, wavelet, sources, receivers and an `_Asked`.
    """

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        *tensors, asked = inputs
        asked.simulation = asked.simulate(*tensors, keep=asked.keep)
        # The result is detached from the simulation's tensor, because its graph will refer to the
        # simulation.
        data: Tensor = asked.simulation.data
        return data.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        *tensors, ctx.asked = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, adjoint_source: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        fixed = [tensor.detach() for tensor in inputs]
        nothing = SecondDerivative.apply(*inputs[:2])  # type: ignore[no-untyped-call]
        vp, wavelet = _Gradient.apply(adjoint_source, *fixed, ctx.asked)  # type: ignore[no-untyped-call]
        if torch.is_grad_enabled():
            vp, wavelet = vp + nothing, wavelet + nothing
        if not graph_is_kept():
            ctx.asked.simulation = None
        return vp, wavelet, None, None, None

    @staticmethod
    def jvp(ctx: Any, vp: Tensor | None, wavelet: Tensor | None, *_: Tensor | None) -> Tensor:
        inputs = ctx.saved_tensors
        nothing = SecondDerivative.apply(*inputs[:2])  # type: ignore[no-untyped-call]
        return _Push.apply(vp, wavelet, *inputs, ctx.asked) + nothing  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        """Map over shots at once, and over models one after the other."""
        if in_dims[0] is not None:
            return _map(_Acoustic, info, in_dims, inputs), 0
        vp, *tensors, asked = inputs
        each = (_take(number, tensors, in_dims[1:]) for number in range(info.batch_size))
        written = [write_out(*shots) for shots in each]  # type: ignore[arg-type]
        together = (torch.cat(parts) for parts in zip(*written, strict=True))
        data = _Acoustic.apply(vp, *together, asked)  # type: ignore[no-untyped-call]
        return data.unflatten(0, (info.batch_size, -1)), 0


class _Gradient(torch.autograd.Function):
    """The gradients with respect to vp and wavelet, as a function of the adjoint source."""

    @staticmethod
    def forward(adjoint_source: Tensor, *inputs: Any) -> tuple[Tensor, Tensor]:
        *tensors, asked = inputs
        wavelet = tensors[1]
        found = asked.kept(*tensors).backpropagate(adjoint_source)
        emitted = _as_given(found.wavelet[None], wavelet.ndim)[0]
        return found.model["vp"].sum(0), emitted.to(wavelet)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        _, *tensors, ctx.asked = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, vp: Tensor, wavelet: Tensor) -> tuple[Tensor | None, ...]:
        """Return the derivatives; the gradient is linear in the adjoint source."""
        pushed = _Push.apply(vp, wavelet, *ctx.saved_tensors, ctx.asked)  # type: ignore[no-untyped-call]
        return pushed, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, adjoint_source: Tensor, *_: Tensor | None) -> tuple[Tensor, Tensor]:
        return _Gradient.apply(adjoint_source, *ctx.saved_tensors, ctx.asked)  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *inputs: Any
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        """Map over shots that were simulated together at once, over models one after the other."""
        adjoint_source, _, wavelet, *_, asked = inputs
        count, simulation = info.batch_size, asked.simulation
        if in_dims[1] is None and simulation is not None and in_dims[0] is not None:
            together = adjoint_source.movedim(in_dims[0], 0).flatten(0, 1)
            if len(together) == len(simulation.data):
                found = simulation.backpropagate(together)
                emitted = found.wavelet.reshape(count, -1, *found.wavelet.shape[1:])
                ndim = wavelet.ndim - (in_dims[2] is not None)
                by_wavelet = _as_given(emitted, ndim).to(wavelet)
                by_vp = found.model["vp"]
                return (by_vp.reshape(count, -1, *by_vp.shape[1:]).sum(1), by_wavelet), (0, 0)
        return _map(_Gradient, info, in_dims, inputs), (0, 0)


class _Push(torch.autograd.Function):
    """The derivative of the traces with respect to vp and the wavelet in given directions."""

    @staticmethod
    def forward(by_vp: Tensor | None, by_wavelet: Tensor | None, *inputs: Any) -> Tensor:
        vp, wavelet, *places, asked = inputs
        found: Tensor | float = 0.0
        if asked.method.engine == "eager":
            raise NotImplementedError(
                'the engine "eager" computes scattered waves by forward-mode derivatives of torch, '
                "which are not available within torch's transforms; "
                'use engine="cpu", or simulate(...).scatter'
            )
        if by_vp is not None:
            found = asked.kept(vp, wavelet, *places).scatter({"vp": by_vp})
        if by_wavelet is not None:
            tuned = asked.tuned_to(wavelet)
            found = found + tuned.simulate(vp, by_wavelet, *places, keep=False).data
        assert isinstance(found, Tensor), "one of the two has a direction"
        return found.detach().clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        *_, ctx.asked = inputs
        ctx.save_for_backward(*inputs[2:6])

    @staticmethod
    def backward(ctx: Any, adjoint_source: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients: the transpose, as the derivative is linear in the directions."""
        vp, wavelet = _Gradient.apply(adjoint_source, *ctx.saved_tensors, ctx.asked)  # type: ignore[no-untyped-call]
        return vp, wavelet, None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        """Map over the inputs one after the other."""
        return _map(_Push, info, in_dims, inputs), 0


def _map(function: Any, info: Any, in_dims: Sequence[int | None], inputs: Sequence[Any]) -> Any:
    """Return the stacked results of a function, applied to each item of the inputs alone."""
    *tensors, asked = inputs
    each = [
        function.apply(*_take(number, tensors, in_dims), replace(asked))
        for number in range(info.batch_size)
    ]
    if isinstance(each[0], Tensor):
        return torch.stack(each)
    return tuple(torch.stack(parts) for parts in zip(*each, strict=True))


def _take(
    number: int, tensors: Sequence[Tensor | None], in_dims: Sequence[int | None]
) -> list[Tensor | None]:
    """Return item `number` of the tensors that are mapped over, and the others as they are."""
    return [
        tensor if tensor is None or dim is None else tensor.select(dim, number)
        for tensor, dim in zip(tensors, in_dims, strict=False)
    ]


def _as_given(gradient: Tensor, ndim: int) -> Tensor:
    """Return the gradient of wavelets (..., shot, source, time) in the shape of the argument."""
    if ndim == 2:
        return gradient.sum(-2)
    return gradient if ndim == 3 else gradient.flatten(-3, -2).sum(-2)


class Acoustic(torch.nn.Module):
    """A module that simulates shots in a model, which is its parameter `vp`.

    Parameters
    ----------
    vp
        (nz, nx) or (nz, ny, nx), m/s.
    spacing
        Grid spacing, m: one for all axes or one for each.
    dt
        Sampling of wavelets and traces, s.
    **options
        The keyword arguments of `acoustic`. Without `max_velocity` and `boundary_frequency`, the
        boundary of each part of a survey is tuned to that part.
    """

    def __init__(
        self, vp: Tensor, spacing: float | Sequence[float], dt: float, **options: Any
    ) -> None:
        super().__init__()
        _check_arguments({"vp": vp})
        self.vp = torch.nn.Parameter(vp.detach().clone())
        self.spacing, self.dt, self.options = spacing, dt, options

    def forward(
        self,
        wavelet: Tensor,
        sources: Tensor | NDArray[np.float64],
        receivers: Tensor | NDArray[np.float64],
    ) -> Tensor:
        """Return the traces (shot, receiver, time) of these shots, see `acoustic`.

        `DataParallel` divides every argument along its first axis, which must then be that of
        shots. Without shots there are no traces, and gradients are zero.
        """
        return acoustic(self.vp, self.spacing, self.dt, wavelet, sources, receivers, **self.options)


def share_of_mean(total: Tensor, shots: int, ranks: int) -> Tensor:
    """Return the loss of a rank under DistributedDataParallel, for the mean over all shots.

    The wrapper averages gradients over ranks, as if all had equal numbers of shots.

    Parameters
    ----------
    total
        The sum of this rank's misfits.
    shots
        Number of shots of all ranks together.
    ranks
        Number of ranks.
    """
    return total * (ranks / shots)


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
        "auto", "snapshots", with the engines "cpu" and "gpu" also "recompute", or an object such as
        `hpcfwi.wave.history.Snapshots(interval=1)`, which gives the exact gradient of the discrete
        scheme; for "acoustic" see there.

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
    _check_arguments({**model, "wavelet": wavelet}, sources, receivers)
    names = (components,) if isinstance(components, str) else tuple(components)
    method = Method(
        order=order,
        boundary=boundary,
        free_surface=free_surface,
        boundary_frequency=boundary_frequency,
        max_velocity=max_velocity,
        engine=engine,
        history=history,
        equation=equation,
        attenuation=attenuation,
    )
    asked = method.find_equation()
    if attenuation is not None and "qp" not in asked.parameters:
        raise ValueError(f"waves of the equation {equation!r} are not attenuated: leave it out")
    ndim = next(iter(select_arrays(model, asked).values())).ndim
    kinds = _find_kinds(source_kind, ndim)
    check_kinds(names, kinds, asked, ndim)
    found = None
    if not isinstance(asked, FirstOrderEquation):
        found = acoustic(model["vp"], spacing, dt, wavelet, sources, receivers, **method.options)
    elif len(sources) == 0:
        arrays = [model[name] for name in asked.parameters]
        found = _make_no_traces(arrays, wavelet, np.shape(receivers)[-2])
    if found is not None:
        return found if isinstance(components, str) else torch.stack([found] * len(names))
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
