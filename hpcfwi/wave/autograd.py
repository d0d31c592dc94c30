"""Wave equations as differentiable functions of their model, and as a PyTorch module.

`acoustic` is for the equation (1 / v^2) p_tt - laplacian(p) = s(t) delta(x - x_s). It maps a model
and a wavelet to traces, and supports autograd and the transforms of `torch.func`. `Acoustic` is the
same operator as a module whose parameter is the model. `propagate` is for any wave equation.
Simulation and backpropagation are in `simulation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.autograd import forward_ad

from hpcfwi.model import AXES
from hpcfwi.survey import (
    EXPLOSIVE,
    PRESSURE,
    STRAIN,
    Components,
    SourceKinds,
    Spectrum,
    moment_kinds,
)
from hpcfwi.wave import numerics
from hpcfwi.wave.engines import eager_staggered
from hpcfwi.wave.equation import Attenuation, FirstOrderEquation
from hpcfwi.wave.history import Auto, History, graph_is_kept
from hpcfwi.wave.problem import SecondDerivative
from hpcfwi.wave.simulation import (
    Acquisition,
    Method,
    Simulation,
    Task,
    as_positions,
    check_kinds,
    select_arrays,
    set_up,
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
    asked = _Asked(("vp",), spacing, float(dt), method)
    return _simulate(asked, [vp], wavelet, sources, receivers)


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


@dataclass(eq=False)
class _Asked:
    """The arguments of a simulation that are not tensors, and the simulation made with them.

    names: of the arrays of the model; wanted: those whose gradient may be wanted, None for all;
    keep: True if the simulation keeps its history.
    """

    names: tuple[str, ...]
    spacing: float | Sequence[float]
    dt: float
    method: Method
    components: Components = PRESSURE
    source_kinds: SourceKinds = field(default_factory=lambda: EXPLOSIVE)
    wanted: tuple[str, ...] | None = None
    keep: bool = False
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
            self.simulation = Simulation(self.set_up(*tensors), keep=True)
            self.keep = True
        return self.simulation

    def set_up(self, *tensors: Any) -> Task:
        """Return the task of simulating shots with these arguments."""
        *arrays, wavelet, sources, receivers = tensors
        kinds = self.components, self.source_kinds
        shots = Acquisition(self.dt, wavelet, sources, receivers, *kinds)
        model = dict(zip(self.names, arrays, strict=True))
        ways: dict[str, Any] = {"illuminate": False, "wanted": self.wanted}
        return set_up(model, self.spacing, shots, self.method, **ways)


def _simulate(
    asked: _Asked,
    arrays: Sequence[Tensor],
    wavelet: Tensor,
    *positions: Tensor | NDArray[np.float64],
) -> Tensor:
    """Return the traces of shots with these sources and receivers, which are differentiable."""
    sources, receivers = (
        points if isinstance(points, Tensor) else torch.tensor(np.asarray(points))
        for points in positions
    )
    if len(sources) == 0:
        # A gradient may be requested with that of other shots
        nothing = 0.0 * sum((array.sum() for array in arrays), wavelet.sum().to(arrays[0]))
        return nothing.expand(0, receivers.shape[-2], wavelet.shape[-1])
    differentiates = torch.is_grad_enabled()
    wanted = tuple(
        name
        for name, array in zip(asked.names, arrays, strict=True)
        if (differentiates and array.requires_grad)
        or forward_ad.unpack_dual(array).tangent is not None  # type: ignore[no-untyped-call]
    )
    keep = bool(wanted) or (differentiates and wavelet.requires_grad)
    asked = replace(asked, wanted=wanted, keep=keep)
    data: Tensor = _Traces.apply(*arrays, wavelet, sources, receivers, asked)  # type: ignore[no-untyped-call]
    return data


class _Traces(torch.autograd.Function):
    """Traces as a function of model and wavelet, in the form for the transforms of `torch.func`.

    Its inputs are the model's arrays, the wavelet, sources, receivers and an `_Asked`.
    """

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        *tensors, asked = inputs
        asked.simulation = Simulation(asked.set_up(*tensors), asked.keep)
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
        nothing = SecondDerivative.apply(*inputs[:-2])  # type: ignore[no-untyped-call]
        gradients = _Gradient.apply(adjoint_source, *fixed, ctx.asked)  # type: ignore[no-untyped-call]
        if torch.is_grad_enabled():
            gradients = [gradient + nothing for gradient in gradients]
        if not graph_is_kept():
            ctx.asked.simulation = None
        return *gradients, None, None, None

    @staticmethod
    def jvp(ctx: Any, *directions: Tensor | None) -> Tensor:
        inputs = ctx.saved_tensors
        nothing = SecondDerivative.apply(*inputs[:-2])  # type: ignore[no-untyped-call]
        return _Push.apply(*directions[:-3], *inputs, ctx.asked) + nothing  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        """Map over shots at once, and over models one after the other."""
        *tensors, asked = inputs
        count = len(asked.names)
        if any(dim is not None for dim in in_dims[:count]):
            return _map(_Traces, info, in_dims, inputs), 0
        each = (
            _take(number, tensors[count:], in_dims[count:]) for number in range(info.batch_size)
        )
        written = [write_out(*shots) for shots in each]  # type: ignore[arg-type]
        together = (torch.cat(parts) for parts in zip(*written, strict=True))
        data = _Traces.apply(*tensors[:count], *together, asked)  # type: ignore[no-untyped-call]
        return data.unflatten(0, (info.batch_size, -1)), 0


class _Gradient(torch.autograd.Function):
    """The gradients with respect to model and wavelet, as a function of the adjoint source."""

    @staticmethod
    def forward(adjoint_source: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
        *tensors, asked = inputs
        *arrays, wavelet, _, _ = tensors
        found = asked.kept(*tensors).backpropagate(adjoint_source)
        emitted = _as_given(found.wavelet[None], wavelet.ndim)[0]
        return (
            *(
                found.model[name].sum(0) if name in found.model else torch.zeros_like(array)
                for name, array in zip(asked.names, arrays, strict=True)
            ),
            emitted.to(wavelet),
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        _, *tensors, ctx.asked = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *directions: Tensor) -> tuple[Tensor | None, ...]:
        """Return the derivatives; the gradient is linear in the adjoint source."""
        pushed = _Push.apply(*directions, *ctx.saved_tensors, ctx.asked)  # type: ignore[no-untyped-call]
        return pushed, *[None] * (len(ctx.saved_tensors) + 1)

    @staticmethod
    def jvp(ctx: Any, adjoint_source: Tensor, *_: Tensor | None) -> tuple[Tensor, ...]:
        return _Gradient.apply(adjoint_source, *ctx.saved_tensors, ctx.asked)  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *inputs: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """Map over shots that were simulated together at once, over models one after the other."""
        adjoint_source, *tensors, asked = inputs
        count, simulation, first = info.batch_size, asked.simulation, in_dims[0]
        arrays = len(asked.names)
        is_one_model = all(dim is None for dim in in_dims[1 : 1 + arrays])
        if is_one_model and simulation is not None and first is not None:
            together = adjoint_source.movedim(first, 0).flatten(0, 1)
            if len(together) == len(simulation.data):
                found = simulation.backpropagate(together)
                emitted = found.wavelet.unflatten(0, (count, -1))
                ndim = tensors[arrays].ndim - (in_dims[1 + arrays] is not None)
                by_model = (found.model[n].unflatten(0, (count, -1)).sum(1) for n in asked.names)
                by_wavelet = _as_given(emitted, ndim).to(tensors[arrays])
                return (*by_model, by_wavelet), (0,) * (arrays + 1)
        return _map(_Gradient, info, in_dims, inputs), (0,) * (arrays + 1)


class _Push(torch.autograd.Function):
    """The derivative of the traces with respect to model and wavelet in given directions."""

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        *tensors, asked = inputs
        count = len(asked.names)
        (*by_model, by_wavelet), tensors = tensors[: count + 1], tensors[count + 1 :]
        found: Tensor | float = 0.0
        pairs = zip(asked.names, by_model, strict=True)
        direction = {name: array for name, array in pairs if array is not None}
        if direction:
            found = asked.kept(*tensors).scatter(direction)
        if by_wavelet is not None:
            tuned, emitted = asked.tuned_to(tensors[count]), [*tensors]
            emitted[count] = by_wavelet
            found = found + Simulation(tuned.set_up(*emitted), keep=False).data
        assert isinstance(found, Tensor), "one of them has a direction"
        return found.detach().clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        *tensors, ctx.asked = inputs
        ctx.save_for_backward(*tensors[len(ctx.asked.names) + 1 :])

    @staticmethod
    def backward(ctx: Any, adjoint_source: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients: the transpose, as the derivative is linear in the directions."""
        gradients = _Gradient.apply(adjoint_source, *ctx.saved_tensors, ctx.asked)  # type: ignore[no-untyped-call]
        return *gradients, *[None] * (len(ctx.saved_tensors) + 1)

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
    described = method.find_equation()
    if attenuation is not None and "qp" not in described.parameters:
        raise ValueError(f"waves of the equation {equation!r} are not attenuated: leave it out")
    like = next(iter(select_arrays(model, described).values()))
    kinds = _find_kinds(source_kind, like.ndim)
    check_kinds(names, kinds, described, like.ndim)
    places = as_positions(receivers, "receivers", like.ndim)
    of_each = np.repeat(np.arange(len(names), dtype=np.int8), places.shape[-2])
    recorded = Components(names, of_each, gauge)
    if STRAIN in names:
        along = np.concatenate([_find_directions(directions, gauge, places)] * len(names), axis=-2)
        recorded = replace(recorded, directions=along)
    places = np.concatenate([places] * len(names), axis=-2)
    arrays = [model[name] for name in described.parameters]
    asked = _Asked(described.parameters, spacing, float(dt), method, recorded, kinds)
    is_eager = isinstance(described, FirstOrderEquation) and len(sources) > 0
    if is_eager and method.choose_engine(like.device).NAME == "eager":
        # It has second derivatives, because it is differentiated by autograd
        task = asked.set_up(*arrays, wavelet, sources, places)
        emitted = wavelet[:, None] if wavelet.ndim == 2 else wavelet
        emitted = emitted.expand(*task.problem.sources.shape[:2], -1).to(like)
        problem = replace(task.problem, model=dict(zip(asked.names, arrays, strict=True)))
        fine = eager_staggered.simulate(problem, numerics.upsample(emitted, task.substeps))
        found = numerics.downsample(fine, task.substeps, wavelet.shape[-1])
    else:
        found = _simulate(asked, arrays, wavelet, sources, places)
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
