"""How shots are simulated: from a model and a survey to what the wave engines are asked.

Which history suits the memory of the ranks is found in `resources`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.model import Grid, Model
from hpcfwi.operators.coarsening import Coarsening
from hpcfwi.operators.window import Aperture, Window
from hpcfwi.survey import Survey
from hpcfwi.wave import Acquisition, Auto, Method, Simulation
from hpcfwi.wave.history import History
from hpcfwi.wave.simulation import Task, set_up


class LinearSimulation(Simulation):
    """Shots simulated in a model, and what a change of it scatters, to first order (Born).

    change: of the model's arrays, by name. Derivatives are those at the model, whatever the change.
    """

    def __init__(self, task: Task, keep: bool, change: Mapping[str, Tensor]) -> None:
        changes = any(bool(array.any()) for array in change.values())
        super().__init__(task, keep or changes)
        if changes:
            self.data = self.data + self.scatter(change)


@dataclass(frozen=True)
class Simulator:
    """How shots are simulated: everything but the model's values and the shots themselves.

    grid: where; method: the same for every shot of the survey, so that a shot's result does not
    depend on its batch; aperture: which part of the model and of its receivers a shot has;
    coarsening: from a model's own grid to this one, None where it is the same; background: a model
    of tensors on this grid around which traces change with models to first order only, None where
    they are those of the wave equation.
    """

    grid: Grid
    method: Method
    aperture: Aperture
    coarsening: Coarsening | None = None
    background: Model | None = None

    @property
    def cost(self) -> int:
        """What the simulation of a shot and its way back count for."""
        return 1 if self.background is None else 2

    def restrict(self, model: Model) -> Model:
        """A model, of tensors, as its waves see it: on their grid."""
        return model if self.coarsening is None else self.coarsening.restrict(model)

    def transpose(self, gradient: Model) -> Model:
        """The gradient with respect to a model, from that with respect to what waves see of it."""
        return gradient if self.coarsening is None else self.coarsening.transpose(gradient)

    def refine(self, field: Tensor) -> Tensor:
        """A field of the waves' grid on that of the model."""
        return field if self.coarsening is None else self.coarsening.refine(field)

    def simulate(
        self,
        model: Model,
        survey: Survey,
        keep: bool,
        illuminate: bool = False,
        window: Window | None = None,
    ) -> Simulation:
        """Simulate the shots of a (part of a) survey in a model as `restrict` gives it.

        window: where, and with which of their receivers; everything where None.
        """
        if self.background is None:
            return Simulation(self.set_up(model, survey, window, illuminate), keep)
        background = self.background.map(lambda array, like: array.to(like.device), model)
        task = self.set_up(background, survey, window, illuminate)
        inside = (slice(None),) if window is None else window.slices
        change = {name: array[inside] for name, array in (model - background).arrays.items()}
        return LinearSimulation(task, keep, change)

    def set_up(
        self, model: Model, survey: Survey, window: Window | None, illuminate: bool = True
    ) -> Task:
        """What `simulate` asks of the wave engines."""
        origin, receivers = np.asarray(self.grid.origin), survey.receivers
        if window is not None:
            receivers = receivers[..., window.trace_mask, :]
        wavelet = torch.as_tensor(np.ascontiguousarray(survey.wavelet), device=model.any.device)
        return set_up(
            model.arrays,
            self.grid.spacing,
            Acquisition(survey.dt, wavelet, survey.sources - origin, receivers - origin),
            self.method,
            window=None if window is None else window.slices,
            illuminate=illuminate,
        )

    def with_history(self, history: Auto | History) -> Simulator:
        """The same with another history."""
        return replace(self, method=replace(self.method, history=history))

    def costs(self, survey: Survey) -> NDArray[np.float64]:
        """What the shots of a survey take, beside each other: the cells that they have."""
        return self.aperture.costs(self.grid, survey)
