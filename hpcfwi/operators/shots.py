"""The shots of a survey as a stack of operators from a model to traces, and their linearization.

Data are (shot, receiver, time) tensors, and models have tensors in the precision of the waves. The
operators are independent of misfits and of inversions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.model import Grid, Model
from hpcfwi.operators.simulator import (
    Aperture,
    Chunks,
    Simulator,
    Window,
    limit_to_history,
    plan_memory,
    set_up_largest,
    share_of_rank,
)
from hpcfwi.operators.stack import Cotangent, Gather, Reduce, Stack, Summand
from hpcfwi.parallel.context import Context
from hpcfwi.survey import Survey
from hpcfwi.wave import Auto, Method, Simulation
from hpcfwi.wave.history import parse

T = TypeVar("T")
EVERYWHERE = Aperture()


@dataclass(frozen=True)
class Alike:
    """Shots that are simulated together: their numbers, their window, and the traces that count."""

    shots: list[int]
    window: Window
    counts: NDArray[np.bool_]


class Shots(Stack):
    """The simulations of a survey's shots: a model -> traces (shot, receiver, time).

    The number of shots at a time and their history depend on the memory, as in an inversion. Traces
    that do not count (`Survey.mask`, aperture) are zero. Applying it raises ValueError if survey,
    grid, method and model do not match.

    Parameters
    ----------
    survey
        Sources, receivers, wavelets and the time axis.
    grid
        The grid of the models.
    aperture
        The part of the model and of the receivers that each shot has; by default all.
    memory
        Bytes for the simulations of a rank; by default the free memory less `reserved`.
    reserved
        Bytes that other things of a rank take at the same time.
    context, gather, reduce
        As in `Stack`.
    **method
        Parameters of `wave.Method`, by name: `order`, `boundary`, `engine`, `history` and so on. By
        default, the boundary is tuned to the frequencies of the survey, so that the bits of a shot
        do not depend on other shots, and to the largest velocity of each model. If `max_velocity`
        is given, gradients do not depend on the fastest cell.
    """

    def __init__(
        self,
        survey: Survey,
        grid: Grid,
        *,
        aperture: Aperture = EVERYWHERE,
        memory: int | None = None,
        reserved: int = 0,
        context: Context | None = None,
        gather: Gather = "concatenated",
        reduce: Reduce = "sum",
        **method: Any,
    ) -> None:
        super().__init__(survey.n_shots, context, gather, reduce)
        asked = Method(**method)
        history, frequency = parse(asked.history), asked.boundary_frequency
        if isinstance(history, Auto) and history.frequency is None:
            history = replace(history, frequency=survey.spectrum.highest())
        if frequency is None:
            frequency = survey.spectrum.peak
        tuned = replace(asked, history=history, boundary_frequency=frequency)
        self.survey, self.grid = survey, grid
        self._memory, self._reserved = memory, reserved
        self._simulator = Simulator(grid, tuned, aperture)
        self._settled: dict[torch.dtype, tuple[Simulator, Chunks]] = {}

    def on(self, context: Context, **ways: Any) -> Self:
        moved = super().on(context, **ways)
        if context is not self.context:
            moved._settled = {}
        return moved

    def linearize(self, model: Model) -> Born:
        """Return the derivative of the traces with respect to the model, at this one."""
        self.check(model)
        return Born(self, model)

    def check(self, x: Any) -> None:
        if not isinstance(x, Model) or not all(isinstance(a, Tensor) for a in x.arrays.values()):
            raise TypeError(
                f"found {_describe(x)}; expected a hpcfwi.model.Model of tensors: "
                "Model(grid, {name: tensor})"
            )
        for name, array in x.arrays.items():
            if tuple(array.shape) != tuple(self.grid.shape):
                raise ValueError(
                    f"{name} is {tuple(array.shape)}; expected {tuple(self.grid.shape)}, the grid "
                    "of the shots"
                )
        if x.grid != self.grid and not self.grid.agrees(x.grid):
            raise ValueError(
                f"the model is on {x.grid}; expected the grid of the shots, {self.grid}"
            )

    def find(self, ys: Any) -> Callable[[int], Tensor]:
        traces_of, shape = super().find(ys), self.survey.shape[1:]

        def find(number: int) -> Tensor:
            traces = traces_of(number)
            if not isinstance(traces, Tensor) or traces.shape != shape:
                raise ValueError(
                    f"found {_describe(traces)} as the traces of shot {number}; expected a "
                    f"torch.Tensor {shape} (receiver, time)"
                )
            return traces

        return find

    def _push(self, x: Model, numbers: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        def push(simulation: Simulation, batch: Alike) -> list[Tensor]:
            return list(self.embed(self._traces(x, simulation, batch), batch))

        return self.simulate(self._medium(x), numbers, push, keep=self.is_linear())

    def _pull(self, x: Model, numbers: Sequence[int], cotangent: Cotangent) -> Iterator[Summand]:
        def pull(simulation: Simulation, batch: Alike) -> list[Summand]:
            whole = self.embed(self._traces(x, simulation, batch), batch)
            pairs = zip(batch.shots, whole, strict=True)
            return self.send_back(simulation, batch, [cotangent(*pair) for pair in pairs])

        medium = self._medium(x)
        return (summand for _, summand in self.simulate(medium, numbers, pull, keep=True))

    def _medium(self, x: Model) -> Model:
        """Return the model in which shots are simulated for an input."""
        return x

    def _traces(self, x: Model, simulation: Simulation, batch: Alike) -> Tensor:  # noqa: ARG002
        """Return the traces of an input."""
        return simulation.data

    def _join(self, parts: Mapping[str, Tensor]) -> Model:
        return Model(self.grid, parts)

    def _shape(self, part: Tensor) -> tuple[int, ...]:  # noqa: ARG002
        return self.grid.shape

    def _pack(self, outputs: Sequence[Tensor]) -> Tensor:
        if outputs:
            return torch.stack(list(outputs))
        return torch.zeros((0, *self.survey.shape[1:]), device=self.context.device)

    def simulate(
        self,
        model: Model,
        numbers: Sequence[int],
        work: Callable[[Simulation, Alike], list[T]],
        keep: bool,
    ) -> Iterator[tuple[int, T]]:
        """Yield the results of `work` for the simulations of these shots, with their numbers.

        Raises MemoryError if the memory does not suffice for one shot.
        """
        simulator, chunks = self._settle(model)
        every = np.array(numbers, dtype=np.int64)

        def work_alike(places: NDArray[np.int64], survey: Survey, window: Window) -> list[T]:
            simulation = simulator.simulate(model, survey, keep, window=window)
            counts = simulator.aperture.within_offsets(survey.sources, survey.receivers)
            if survey.mask is not None:
                counts = counts & survey.mask
            return work(simulation, Alike(every[places].tolist(), window, counts))

        for place, found in chunks.for_each_shot(self.survey.select(every), simulator, work_alike):
            yield int(every[place]), found
        if chunks.exhausted:
            raise MemoryError(
                f"rank {self.context.rank} on {self.context.host} ran out of memory with one shot "
                "at a time; expected more memory, or a history that needs less of it"
            )

    def _settle(self, model: Model) -> tuple[Simulator, Chunks]:
        """Return the simulator with a history that fits on all ranks; at first collective."""
        dtype = model.any.dtype
        if dtype not in self._settled:
            context, simulator = self.context, self._simulator
            most_at_once = context.shots_at_once if context.device.type == "cpu" else len(self.mine)
            share = share_of_rank(context, max(1, most_at_once), self._reserved, limit=self._memory)
            shares = context.all_gather(share)
            costs = simulator.aperture.costs(self.grid, self.survey)
            plan = plan_memory(set_up_largest(simulator, model, self.survey, costs), shares, True)
            wanted = simulator.method.history
            assert not isinstance(wanted, str), "parsed when the stack was made"
            # The sampling interval stays, even if a fast model divides steps into more substeps.
            simulator = simulator.with_history(replace(plan.history, interval=wanted.interval))
            self._settled[dtype] = simulator, Chunks(plan.at_once, context)
        return self._settled[dtype]

    def embed(self, traces: Tensor, batch: Alike) -> Tensor:
        """Return traces of shots with all receivers of the survey, zero if they do not count."""
        whole = traces.new_zeros(len(traces), *self.survey.shape[1:])
        whole[:, batch.window.trace_mask] = traces
        return whole * torch.from_numpy(batch.counts).to(traces)[..., None]

    def send_back(
        self, simulation: Simulation, batch: Alike, residuals: Sequence[Tensor]
    ) -> list[Summand]:
        """Apply the transpose of a simulation's derivative to traces (receiver, time)."""
        residual = torch.stack([each.to(simulation.data) for each in residuals])
        residual = residual * torch.from_numpy(batch.counts).to(residual)[..., None]
        residual = residual[:, batch.window.trace_mask].contiguous()
        residual = limit_to_history(residual, simulation, self.survey.dt)
        found = simulation.backpropagate(residual).model
        return [
            Summand(
                shot, {name: field[place] for name, field in found.items()}, batch.window.slices
            )
            for place, shot in enumerate(batch.shots)
        ]


class Born(Shots):
    """The derivative of shots at a model: a change of the model -> the scattered traces.

    It is exactly the derivative of the discrete scheme if the history samples every step. It is
    always the transpose of `adjoint`: for a history with larger intervals, both operators remove
    frequencies beyond those of the wavelet. Each application simulates the shots again.
    """

    def __init__(self, shots: Shots, model: Model) -> None:
        # The chosen history and number of shots at a time, too, are those of the shots.
        vars(self).update(vars(shots))
        used = self._simulator.method.find_equation().parameters
        self.model = model.select(name for name in model.arrays if name in used)

    def linearize(self, model: Model) -> Born:
        """Return the same stack, because the derivative of a linear one is itself."""
        self.check(model)
        return self

    def vjp(self, x: Model, ys: Any) -> Any:  # noqa: ARG002
        # The stack is linear, so that the derivative does not depend on x.
        return self.adjoint(ys)

    def check(self, x: Any) -> None:
        super().check(x)
        if not x.arrays.keys() & self.model.arrays.keys():
            raise ValueError(
                f"found {_describe(x)}; expected a change of {' or '.join(self.model.arrays)}"
            )

    def _back(self, numbers: Sequence[int], y_of: Callable[[int], Tensor]) -> Iterator[Summand]:
        def back(simulation: Simulation, batch: Alike) -> list[Summand]:
            return self.send_back(simulation, batch, [y_of(shot) for shot in batch.shots])

        return (summand for _, summand in self.simulate(self.model, numbers, back, keep=True))

    def _medium(self, x: Model) -> Model:  # noqa: ARG002
        return self.model

    def _traces(self, x: Model, simulation: Simulation, batch: Alike) -> Tensor:
        parts = {name: part[batch.window.slices] for name, part in x.arrays.items()}
        return limit_to_history(simulation.scatter(parts), simulation, self.survey.dt)

    def _known(self, like: Model | None) -> Model:
        return self.model if like is None else like

    def _describe_outputs(self, x: Model) -> list[tuple[tuple[int, ...], torch.dtype]]:
        return [(self.survey.shape[1:], x.any.dtype)] * len(self)


def _describe(thing: Any) -> str:
    """Return the type of a thing, or of the arrays of a model, and its shape if it has one."""
    if isinstance(thing, Model):
        arrays = ", ".join(f"{name}: {_describe(array)}" for name, array in thing.arrays.items())
        return f"a Model of {arrays}"
    shape = f" {tuple(thing.shape)}" if hasattr(thing, "shape") else ""
    return f"a {type(thing).__module__}.{type(thing).__qualname__}{shape}"
