"""How shots are simulated: from a model and a survey to what the wave engines are asked.

Which history suits the memory of the ranks is found in `resources`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.inversion.window import Aperture, Window
from hpcfwi.model import Grid, Model
from hpcfwi.survey import Survey
from hpcfwi.wave import Acquisition, Auto, Method, Simulation
from hpcfwi.wave.history import History
from hpcfwi.wave.task import Task, set_up


@dataclass(frozen=True)
class Simulator:
    """How shots are simulated: everything but the model's values and the shots themselves.

    method: the same for every shot of the survey, so that a shot's result does not depend on its
    batch; aperture: which part of the model and of its receivers a shot has.
    """

    grid: Grid
    method: Method
    aperture: Aperture

    def simulate(
        self,
        model: Model,
        survey: Survey,
        keep: bool,
        illuminate: bool = False,
        window: Window | None = None,
    ) -> Simulation:
        """Simulate the shots of a (part of a) survey in a model, whose arrays are tensors.

        window: where, and with which of their receivers; everything where None.
        """
        return Simulation(self.set_up(model, survey, window, illuminate), keep)

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
        windows = self.aperture.find_windows(self.grid, survey)
        return np.array([float(window.size) for window in windows])
