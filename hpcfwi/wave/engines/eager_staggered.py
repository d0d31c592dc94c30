"""The reference engine for first-order equations: plain torch, differentiated by autograd.

It keeps every step, so that it is for small models: tests, and research with a few shots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.autograd import forward_ad

from hpcfwi.wave.engines.eager import NAME as NAME
from hpcfwi.wave.engines.eager import Stencil
from hpcfwi.wave.engines.eager import available as available
from hpcfwi.wave.engines.eager import clear as clear
from hpcfwi.wave.engines.eager import count_updates as count_updates
from hpcfwi.wave.engines.eager import idle as idle
from hpcfwi.wave.equation import Derivative
from hpcfwi.wave.history import Kind
from hpcfwi.wave.numerics import staggered_difference
from hpcfwi.wave.problem import Gradients, Problem, forward_level, make_dual, make_leaves
from hpcfwi.wave.staggered import FieldPoints, StaggeredScheme, combine, discretize, sample_signal

HISTORIES: tuple[Kind, ...] = ("snapshots",)


@dataclass(frozen=True)
class EagerShot:
    """The differentiable forward pass of a shot: the leaves of its graph, and its traces."""

    model: Mapping[str, Tensor]
    wavelet: Tensor
    traces: Tensor


def footprint(problem: Problem, steps: int) -> int:
    """Return an upper bound of the bytes of both passes: 40 fields a step, and 8 for each term."""
    fields = 40 + 8 * len(problem.system.terms)
    cells = prod(problem.padded_shape) * problem.n_shots
    return fields * steps * cells * problem.like.element_size()


def forward(problem: Problem, wavelet: Tensor, keep: bool) -> tuple[Tensor, list[EagerShot] | None]:
    """Return the traces of all shots, and a state; see `Engine.forward`."""
    state = []
    for shot in range(problem.n_shots):
        leaves = make_leaves(problem.select([shot]), keep)
        emitted = wavelet[[shot]].detach().requires_grad_(keep)
        with torch.set_grad_enabled(keep):
            traces = simulate(leaves, emitted)
        state.append(EagerShot(leaves.model, emitted, traces))
    return torch.cat([each.traces for each in state]).detach(), state if keep else None


def backward(problem: Problem, state: list[EagerShot], adjoint_source: Tensor) -> Gradients:
    """Return the gradients, shot by shot; see `Engine.backward`."""
    gradients = [
        torch.autograd.grad(
            each.traces,
            [each.wavelet, *(each.model[name] for name in problem.wanted)],
            adjoint_source[shot : shot + 1],
            retain_graph=True,
            materialize_grads=True,
        )
        for shot, each in enumerate(state)
    ]
    wavelets, *arrays = zip(*gradients, strict=True)
    model = {name: torch.stack(some) for name, some in zip(problem.wanted, arrays, strict=True)}
    return Gradients(model, torch.cat(wavelets), None, None)


def scatter(problem: Problem, state: list[EagerShot], direction: Mapping[str, Tensor]) -> Tensor:
    """Return the first-order change of the traces with the model; see `Engine.scatter`."""
    found = []
    with forward_level():
        dual = make_dual(problem, direction)
        for shot, each in enumerate(state):
            traces = simulate(dual.select([shot]), each.wavelet.detach())
            found.append(forward_ad.unpack_dual(traces).tangent)  # type: ignore[no-untyped-call]
    return torch.cat(found)


def simulate(problem: Problem, wavelet: Tensor) -> Tensor:
    """Return the traces (shot, receiver, time) of wavelets (shot, source, time).

    They are differentiable in the wavelet and in the arrays of the problem's model.
    """
    scheme = discretize(problem)
    system = scheme.system
    zeros = wavelet.new_zeros((wavelet.shape[0], *scheme.shape))
    fields = dict.fromkeys(system.fields, zeros)
    differences = _Differences(problem, scheme, zeros)

    def at(points: FieldPoints) -> Stencil:
        return Stencil(points.cells, points.weights, zeros)

    emitted = [
        (emission, at(emission.points), sample_signal(emission.signal, wavelet, problem.dt))
        for emission in scheme.emissions
    ]
    recorders = [
        {name: at(points) for name, points in recording.points.items()}
        for recording in scheme.recordings
    ]
    read_in, relaxations = scheme.reading_stages, scheme.relaxations
    samples: list[list[Tensor]] = [[] for _ in recorders]
    for n in range(wavelet.shape[-1]):
        for number, stage in enumerate(system.stages):
            for stencils, when, found in zip(recorders, read_in, samples, strict=True):
                if when == number:
                    values = [each.sample(fields[name]) for name, each in stencils.items()]
                    found.append(torch.stack(values).sum(dim=0))
            needed = {term.derivative for terms in stage.values() for term in terms}
            by_derivative = {each: differences.of(fields, each) for each in sorted(needed)}
            relaxing = [each for each in relaxations if each.memory in stage]
            for it in relaxing:
                fields[it.field] = fields[it.field] + it.share * fields[it.memory]
                fields[it.memory] = it.decay * fields[it.memory]
            for name, terms in stage.items():
                for derivative in (term.derivative for term in terms):
                    rate = scheme.rates[name, derivative]
                    fields[name] = fields[name] + rate * by_derivative[derivative]
            for it in relaxing:
                fields[it.field] = fields[it.field] + it.share * fields[it.memory]
            for emission, stencil, signal in emitted:
                if emission.field in stage:
                    added = stencil.spread(signal[..., n])
                    fields[emission.field] = fields[emission.field] + emission.strength * added
    # Each trace is recorded once, and is 0 in the other recordings
    recorded = torch.stack([torch.stack(found, dim=-1) for found in samples]).sum(dim=0)
    return combine(recorded, scheme)


class _Differences:
    """Derivatives of fields (shot, ...), with the memory of the absorbing boundary."""

    def __init__(self, problem: Problem, scheme: StaggeredScheme, zeros: Tensor) -> None:
        self.scheme, self.mirrored = scheme, problem.free_surface
        self.weights = {
            name: staggered_difference(problem.order, h).tolist()
            for name, h in zip(scheme.axes, problem.spacing, strict=True)
        }
        self.memory: dict[Derivative, Tensor] = {}
        self.profiles = {}
        for axis, place in scheme.system.find_places():
            if scheme.system.multiaxial:
                shape, profile = scheme.shape, scheme.mixed_profile(axis, place)
            else:
                shape = tuple(-1 if each == axis else 1 for each in scheme.axes)
                profile = scheme.profiles[axis][axis in place]
            a, b = (torch.as_tensor(values).to(zeros) for values in (profile.a, profile.b))
            self.profiles[axis, place] = a.reshape(shape), b.reshape(shape)

    def of(self, fields: dict[str, Tensor], derivative: Derivative) -> Tensor:
        """Return a derivative; called once for each step and derivative."""
        axis, name = derivative
        between = axis not in self.scheme.system.fields[name].half
        found = self._difference(fields[name], axis, name, between)
        a, b = self.profiles[axis, self.scheme.system.place_of(derivative)]
        memory = a * found
        if derivative in self.memory:
            memory = memory + b * self.memory[derivative]
        self.memory[derivative] = memory
        return found + memory

    def _difference(self, values: Tensor, axis: str, name: str, between: bool) -> Tensor:
        """Return the difference along an axis, half a cell after the points if `between`.

        Outside the grid the field is zero, or its mirror image above a free surface.
        """
        dim = self.scheme.axes.index(axis) + 1
        weights, n = self.weights[axis], values.shape[dim]
        reach = len(weights)
        after = torch.zeros_like(values.narrow(dim, 0, reach))
        before = after
        if axis == "z" and self.mirrored:
            before = values.narrow(dim, int(between), reach).flip(dim)
            if self.scheme.system.fields[name].odd:
                before = -before
        padded = torch.cat([before, values, after], dim=dim)
        total = torch.zeros_like(values)
        for k, weight in enumerate(weights):
            later = padded.narrow(dim, reach + k + between, n)
            earlier = padded.narrow(dim, reach - k - 1 + between, n)
            total = total + weight * (later - earlier)
        return total
