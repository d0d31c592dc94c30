"""The part of the engines of first-order equations that surrounds their time loops.

An engine has a class of `FirstOrderShots`, which compute the recorded fields from rates, factors of
sources and signals, with the derivative and its transpose. Everything else, from the parameters of
the model to the rates, and from the recorded fields to the traces, is differentiated by autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from hpcfwi.wave.problem import Gradients, Problem, crop, forward_level, make_dual, make_leaves
from hpcfwi.wave.staggered import StaggeredScheme, combine, discretize, sample_signal


@dataclass(frozen=True, eq=False)
class Discrete:
    """The numbers of a simulation, differentiable in the model and the wavelet of its problem.

    rates: the distinct ones of the scheme; factors: of each emission, (shot, source, tap); signal:
    (shot, signal times source, time), for the signals of `StaggeredScheme.signals`.
    """

    scheme: StaggeredScheme
    rates: list[Tensor]
    factors: list[Tensor]
    signal: Tensor

    @property
    def varying(self) -> list[int]:
        """The numbers of the rates with respect to which a derivative may be wanted."""
        return [number for number, rate in enumerate(self.rates) if rate.requires_grad]


class Derivatives(NamedTuple):
    """The gradients of a function of the recorded fields, shot by shot.

    signal: (shot, signal times source, time); rates: (shot, ...) on the padded grid, None if none
    is wanted; factors: of each emission, (shot, source, tap); energies: (shot, ...) on the padded
    grid, the time sums of the squared samples and of the squared adjoint fields, or none.
    """

    signal: Tensor
    rates: list[Tensor | None]
    factors: list[Tensor]
    energies: list[Tensor]


class FirstOrderShots(Protocol):
    """Shots of a problem: their recorded fields, the derivative of these and its transpose.

    The rates, and which of them vary, are given when the object is made, see `MakeShots`.
    """

    def simulate(self, signal: Tensor, factors: Sequence[Tensor]) -> Tensor:
        """Return the recorded fields (shot, trace, time)."""

    def scatter(self, rates: Sequence[Tensor | None], factors: Sequence[Tensor | None]) -> Tensor:
        """Return the change of the recorded fields with the rates and the factors."""

    def backpropagate(self, arriving: Tensor) -> Derivatives | None:
        """Return the gradients, given the one with respect to the recorded fields.

        None on a rank that does not lead its crew.
        """


MakeShots = Callable[[Problem, Discrete, bool], FirstOrderShots]
"""A function of a problem, its numbers, and True if gradients may be wanted."""


def discretize_shots(problem: Problem, wavelet: Tensor) -> Discrete:
    """Return the numbers of a problem, for wavelets (shot, source, time)."""
    scheme = discretize(problem)
    factors = [
        torch.as_tensor(e.points.weights).to(wavelet) * e.strength.flatten()[e.points.cells]
        for e in scheme.emissions
    ]
    signals = [sample_signal(kind, wavelet, problem.dt) for kind in scheme.signals]
    return Discrete(scheme, scheme.distinct_rates, factors, torch.cat(signals, dim=1))


@dataclass(frozen=True, eq=False)
class FirstOrderState:
    """The simulated shots, and two graphs: before and after the recorded fields.

    model, wavelet: leaves of the graph of `discrete`; recorded: the fields (shot, trace, time), the
    leaf of the graph of `traces`, (shot, receiver, time).
    """

    shots: FirstOrderShots
    discrete: Discrete
    model: Mapping[str, Tensor]
    wavelet: Tensor
    recorded: Tensor
    traces: Tensor


def forward(
    make: MakeShots, problem: Problem, wavelet: Tensor, keep: bool
) -> tuple[Tensor, FirstOrderState | None]:
    """Return traces (shot, receiver, time), and a state; see `Engine.forward`."""
    with torch.set_grad_enabled(keep):
        leaves = make_leaves(problem, keep)
        wavelet = wavelet.detach().clone().requires_grad_(keep)
        discrete = discretize_shots(leaves, wavelet)
        shots = make(problem, discrete, keep)
        found = shots.simulate(discrete.signal, discrete.factors)
        recorded = found.requires_grad_(keep)
        traces = combine(recorded, discrete.scheme)
    state = (
        FirstOrderState(shots, discrete, leaves.model, wavelet, recorded, traces) if keep else None
    )
    return traces.detach(), state


@torch.enable_grad()
def backward(problem: Problem, state: FirstOrderState, adjoint_source: Tensor) -> Gradients:
    """Return the gradients, shot by shot; see `Engine.backward`."""
    (arriving,) = torch.autograd.grad(
        state.traces, state.recorded, adjoint_source, retain_graph=True
    )
    found, discrete = state.shots.backpropagate(arriving), state.discrete
    if found is None:
        return Gradients({}, torch.zeros_like(state.wavelet), None, None)
    (wavelet,) = torch.autograd.grad(
        discrete.signal, state.wavelet, found.signal, retain_graph=True
    )
    leaves = [state.model[name] for name in problem.wanted]
    each = []
    for shot in range(problem.n_shots if leaves else 0):
        numbers = [*discrete.rates, *(factor[shot] for factor in discrete.factors)]
        pairs = [
            (number, gradient[shot])
            for number, gradient in zip(numbers, [*found.rates, *found.factors], strict=True)
            if gradient is not None and number.requires_grad
        ]
        outputs, gradients = zip(*pairs, strict=True)
        each.append(
            torch.autograd.grad(
                outputs,
                leaves,
                gradients,
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
        )
    model = {
        name: torch.stack([arrays[place] for arrays in each])
        for place, name in enumerate(problem.wanted)
    }
    energies = [crop(energy, *problem.padding) for energy in found.energies]
    return Gradients(model, wavelet, *(energies or (None, None)))


def scatter(problem: Problem, state: FirstOrderState, direction: Mapping[str, Tensor]) -> Tensor:
    """Return the first-order change of the traces with the model; see `Engine.scatter`."""
    with forward_level():
        discrete = discretize_shots(make_dual(problem, direction), state.wavelet.detach())
        rates, factors = (
            [forward_ad.unpack_dual(each).tangent for each in some]  # type: ignore[no-untyped-call]
            for some in (discrete.rates, discrete.factors)
        )
    recorded = state.shots.scatter(rates, factors)
    return combine(recorded, discrete.scheme)
