"""Shots that are simulated together: the physical problem, and its discrete scheme."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import pad

from hpcfwi.model import AXES
from hpcfwi.survey import EXPLOSIVE, PRESSURE, Components, SourceKinds, select_kinds
from hpcfwi.wave import numerics
from hpcfwi.wave.equation import ACOUSTIC, Equation, FirstOrderEquation, System
from hpcfwi.wave.history import History
from hpcfwi.wave.numerics import Profile, Taps


@dataclass(frozen=True)
class Problem:
    """Shots on one model. Lengths in m, times in s, in axis order (z, x) or (z, y, x).

    For the acoustic equation, all engines of hpcfwi compute
    p[n + 1] = 2 p[n] - p[n - 1] + v2dt2 u[n] on the padded grid, where u[n] is the sum of the
    Laplacian of p[n], the terms of the CPML, and `source_scale` times the wavelet at the sources.
    v2dt2 is `square_speed`, which each engine has in its own layout. Backwards they compute q,
    which is v2dt2 times the adjoint of p. The image, the sum of q[n + 1] u[n] over the steps, is
    v2dt2 times the gradient with respect to v2dt2. First-order equations have a `StaggeredScheme`.

    model: the equation's arrays by name, (nz, nx) or (nz, ny, nx), detached; dt: of the
    simulation's step; sources: (shot, source, ndim), which act at once, and receivers: (shot,
    receiver, ndim), from the grid's first point; boundary: cells of CPML; boundary_frequency,
    max_velocity: Hz and m/s that it is tuned to; history: the stored data, with their interval;
    illuminate: True if illuminations are wanted. First-order equations have three more: wanted: the
    parameters that have a gradient; source_kinds, components: of the sources and of the traces.
    """

    model: Mapping[str, Tensor]
    spacing: tuple[float, ...]
    dt: float
    sources: NDArray[np.float64]
    receivers: NDArray[np.float64]
    order: int
    boundary: int
    free_surface: bool
    boundary_frequency: float
    max_velocity: float
    history: History
    illuminate: bool = False
    equation: Equation = ACOUSTIC
    wanted: tuple[str, ...] = ()
    source_kinds: SourceKinds = field(default_factory=lambda: EXPLOSIVE)
    components: Components = PRESSURE

    @property
    def like(self) -> Tensor:
        """One of the model's arrays, for their common shape, precision and device."""
        return next(iter(self.model.values()))

    @property
    def system(self) -> System:
        """The system of its equation, which is of first order."""
        assert isinstance(self.equation, FirstOrderEquation), "other equations are of second order"
        return self.equation.system(AXES[self.like.ndim])

    @property
    def n_shots(self) -> int:
        return int(self.sources.shape[0])

    @property
    def interval(self) -> int:
        """Steps from one sampled step to the next."""
        assert self.history.interval is not None, "resolved by simulation.set_up"
        return self.history.interval

    @property
    def padding(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Cells of padding before and after each axis of the model."""
        after = (self.boundary,) * self.like.ndim
        return (0 if self.free_surface else self.boundary, *after[1:]), after

    @property
    def padded_shape(self) -> tuple[int, ...]:
        return tuple(n + b + a for n, b, a in zip(self.like.shape, *self.padding, strict=True))

    @property
    def interior(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The cells of that grid that no absorbing term reaches: from first to last + 1."""
        return numerics.interior(self.padded_shape, *self.padding, self.order // 2)

    def select(self, shots: Any) -> Problem:
        """Return the problem of some shots, given by an index of NumPy."""
        return replace(
            self,
            sources=self.sources[shots],
            receivers=self.receivers[shots],
            source_kinds=select_kinds(self.source_kinds, shots),
            components=self.components.select_shots(shots),
        )

    def absorbing_profile(self, axis: int, shift: float = 0.0) -> Profile:
        """Return the CPML of an axis of the padded grid, see `numerics.absorbing_profile`."""
        return numerics.absorbing_profile(
            self.padded_shape[axis],
            self.padding[0][axis],
            self.padding[1][axis],
            self.spacing[axis],
            self.dt,
            self.max_velocity,
            self.boundary_frequency,
            shift,
        )

    def spread(
        self,
        positions: NDArray[np.float64],
        half: str = "",
        odd: bool = True,
        shifts: NDArray[np.float64] | None = None,
    ) -> Taps:
        """Return the taps of positions on the padded grid, see `numerics.spread`."""
        place = (self.spacing, self.padding[0], self.padded_shape, self.free_surface)
        return numerics.spread(positions, *place, half, odd, shifts)

    @cached_property
    def profiles(self) -> tuple[Profile, ...]:
        return tuple(map(self.absorbing_profile, range(self.like.ndim)))

    @cached_property
    def source_taps(self) -> Taps:
        return self.spread(self.sources)

    @cached_property
    def receiver_taps(self) -> Taps:
        return self.spread(self.receivers)

    @property
    def source_scale(self) -> float:
        """The factor of the sources, 1 / cell volume."""
        return 1.0 / float(np.prod(self.spacing))


def square_speed(problem: Problem, first: int = 0, end: int | None = None) -> Tensor:
    """Return (speed dt)^2 on the padded grid, 0 where the free surface keeps p at 0.

    first, end: only the planes `first` to `end` - 1 along z are returned.
    """
    before, after = problem.padding
    planes = torch.arange(problem.padded_shape[0], device=problem.like.device)[first:end]
    nearest = (planes - before[0]).clamp_(0, problem.like.shape[0] - 1)
    sides = [n for pair in reversed(list(zip(before, after, strict=True))[1:]) for n in pair]
    # `extend` takes ten times as long; the order of sums in its derivative is fixed
    speed = pad(problem.model["vp"].index_select(0, nearest), sides, mode="replicate")
    squared = speed.mul_(problem.dt).square_()
    if problem.free_surface and first == 0:
        squared[0] = 0.0
    return squared


def extend(model: Tensor, before: tuple[int, ...], after: tuple[int, ...]) -> Tensor:
    """Return a model on the padded grid, where its edge values continue outwards."""
    for axis, n in enumerate(model.shape):
        index = torch.arange(-before[axis], n + after[axis], device=model.device)
        model = model.index_select(axis, index.clamp(0, n - 1))
    return model


def fold(padded: Tensor, before: tuple[int, ...], after: tuple[int, ...]) -> Tensor:
    """Apply the transpose of `extend` to a stack (shot, ...) of padded arrays.

    Cells are added from the model outwards, so that the order of the sum is always the same.
    """
    for axis in range(1, padded.ndim):
        n = padded.shape[axis] - before[axis - 1] - after[axis - 1]
        first = before[axis - 1]
        inner = padded.narrow(axis, first, n).clone()
        for k in range(first - 1, -1, -1):
            inner.select(axis, 0).add_(padded.select(axis, k))
        for k in range(first + n, padded.shape[axis]):
            inner.select(axis, n - 1).add_(padded.select(axis, k))
        padded = inner
    return padded


def crop(padded: Tensor, before: tuple[int, ...], after: tuple[int, ...]) -> Tensor:
    """Return the model's part of a stack (shot, ...) of padded arrays."""
    sides = zip(before, padded.shape[1:], after, strict=True)
    return padded[(slice(None), *(slice(b, n - a) for b, n, a in sides))].contiguous()


def relative_change(problem: Problem, direction: Mapping[str, Tensor]) -> Tensor:
    """Return the relative change of v2dt2 with the model in a direction, on the padded grid.

    It is of first order. Its transpose maps an image to a gradient in `make_gradients`.
    """
    return extend(2.0 * direction["vp"] / problem.model["vp"], *problem.padding)


def make_leaves(problem: Problem, keep: bool) -> Problem:
    """Return a problem with copies of the arrays; the wanted ones require gradients if `keep`."""
    model = {
        name: array.detach().clone().requires_grad_(keep and name in problem.wanted)
        for name, array in problem.model.items()
    }
    return replace(problem, model=model)


@contextmanager
def forward_level() -> Iterator[None]:
    """Enter a level of torch's forward mode, of which there is one.

    Within a derivative of a function of ours there is one already, and tangents are not propagated.
    """
    is_nested = forward_ad._current_level >= 0 and not torch._C._is_fwd_grad_enabled()
    level = nullcontext() if is_nested else forward_ad.dual_level()
    with forward_ad._set_fwd_grad_enabled(True), level:
        yield


def make_dual(problem: Problem, direction: Mapping[str, Tensor]) -> Problem:
    """Return a problem whose arrays have this direction as their tangents of forward-mode."""
    model = {
        name: forward_ad.make_dual(array, direction[name]) if name in direction else array  # type: ignore[no-untyped-call]
        for name, array in problem.model.items()
    }
    return replace(problem, model=model)


@dataclass(frozen=True)
class Gradients:
    """The gradients of a misfit, shot by shot.

    model: with respect to the model's arrays, by name, each (shot, ...); wavelet: (shot, source,
    time), with the samples of the wavelet that was simulated; source_illumination and
    receiver_illumination: (shot, ...), time sums of squares in the forward and in the adjoint
    simulation, or None if they are not wanted or the engine has none. For the acoustic equation,
    these are the squares of p and q, see `Problem`. For first-order equations, they are those of
    the derivatives that are stored for the gradient, and of the adjoint fields.
    """

    model: Mapping[str, Tensor]
    wavelet: Tensor
    source_illumination: Tensor | None
    receiver_illumination: Tensor | None


def make_gradients(
    problem: Problem,
    image: Tensor,
    wavelet: Tensor,
    forward_energy: Tensor | None,
    adjoint_energy: Tensor | None,
) -> Gradients:
    """Return the gradients, given the sums of a backward sweep on the padded grid, (shot, ...).

    image: see `Problem`. The gradient with respect to the padded speed is 2 image / speed, where a
    padding cell has the speed of the cell that it repeats.
    """
    speed = fold(image, *problem.padding).mul_(2.0).div_(problem.model["vp"])
    illuminations = (
        None if energy is None else crop(energy, *problem.padding)
        for energy in (forward_energy, adjoint_energy)
    )
    return Gradients({"vp": speed}, wavelet, *illuminations)


class SecondDerivative(torch.autograd.Function):
    """A zero that is added to a derivative, and raises an error if it is differentiated itself.

    It is a function of the tensors on which the derivative depends in a way that is not known.
    """

    @staticmethod
    def forward(*tensors: Tensor) -> Tensor:
        """Return the zero, of shape ()."""
        return torch.zeros((), device=tensors[0].device)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing is kept."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, *tensors: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        """Return the zero, which is not mapped over."""
        return torch.zeros((), device=tensors[0].device), None

    @staticmethod
    def backward(ctx: Any, *_: Tensor | None) -> Any:
        """Raise NotImplementedError."""
        raise NotImplementedError(
            "waves and stacks of operators have no second derivatives; for products with the "
            "Gauss-Newton matrix use `normal` of hpcfwi.operators.Shots(...).linearize(model)"
        )

    jvp = backward
