"""Wrappers of any optimizer: a denoiser between its steps, or a network whose weights it updates.

`registry.DENOISERS` names denoisers; `operators.tiles` shares their tiles among ranks. `networks`
makes models of weights, and gradients of weights from those of models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hpcfwi.config.inversion import PriorSection
from hpcfwi.errors import InversionFailure, StepFailure
from hpcfwi.inversion.networks import Represented, Weights
from hpcfwi.inversion.objective import Evaluation
from hpcfwi.inversion.optimizers import Evaluate, Optimizer, Price
from hpcfwi.inversion.optimizers.line_search import as_model
from hpcfwi.inversion.parameters import Limits
from hpcfwi.model import Model
from hpcfwi.operators.tiles import Tiles
from hpcfwi.operators.vectors import one_thread
from hpcfwi.parallel.context import Context

Denoiser = Callable[[Tensor, float], Tensor]
"""Makes images of the same shape of (image, 1, z, x) or (image, 1, z, y, x), and a strength."""


class Denoised:
    """An `Optimizer` whose steps end with a denoised model, every so many epochs.

    After Venkatakrishnan, Bouman and Wohlberg (2013), with a step of the optimiser in place of the
    proximal operator of the misfit (as in Kamilov, Mansour and Wohlberg 2017, algorithm 1). The
    denoiser is given each parameter on a scale from 0 to 1; cells that are kept stay as they are.

    reproducible: whether the denoiser computes on one thread, as its bits would depend on how many
    there are.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        limits: Limits,
        section: PriorSection,
        denoiser: Denoiser,
        context: Context,
        reproducible: bool,
    ) -> None:
        self._optimizer, self._limits, self._section = optimizer, limits, section
        shape = limits.initial.grid.shape
        patch, overlap = (
            (max(shape), 0) if section.patch is None else (section.patch, section.overlap)
        )
        self._tiles = Tiles(
            denoiser, context, patch=patch, overlap=overlap, batch=1, axes=len(shape)
        )
        self._computing = one_thread if reproducible else nullcontext
        self._steps = 0

    def step(
        self, model: Model, evaluate: Evaluate, progress: float = 0.0
    ) -> tuple[Model, Evaluation]:
        """The next model, and the evaluation of this one; collective."""
        found, evaluation = self._optimizer.step(model, evaluate, progress)
        self._steps += 1
        if self._steps % self._section.every == 0:
            found = self._limits.apply(self._denoise(found))
        return found, evaluation

    def price(self, shots: int) -> Price:
        return self._optimizer.price(shots)

    def state(self) -> Mapping[str, Any]:
        """A copy of what the next step depends on beside the model, as a checkpoint keeps it."""
        return {"steps": self._steps, "optimizer": dict(self._optimizer.state())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        self._steps = state["steps"]
        self._optimizer.restore(state["optimizer"])

    def _denoise(self, model: Model) -> Model:
        found = {name: self._denoise_one(name, array) for name, array in model.arrays.items()}
        return Model(model.grid, found)

    def _denoise_one(self, name: str, array: Tensor) -> Tensor:
        lowest, highest = self._limits.bounds.get(name, torch.aminmax(array))
        lowest, highest = float(lowest), float(highest)
        extent = highest - lowest or 1.0
        image = ((array - lowest) / extent)[None, None]
        with self._computing():
            made = self._tiles(image, self._section.strength)[0, 0]
        if not torch.isfinite(made).all():
            raise InversionFailure(
                f'the denoiser "{self._section.denoiser}" of inversion.prior made values of {name} '
                "that are not finite, of images with values between 0 and 1 that are: try it by "
                "itself, or another inversion.prior.strength"
            )
        return made.to(array) * extent + lowest


class Reparametrized:
    """An `Optimizer` of a model that steps the weights of the network that makes it.

    make: the optimiser of the weights, of the first ones and their limits; weights: to begin with,
    None where these are to be fitted to the initial model.
    """

    def __init__(
        self,
        represented: Represented,
        make: Callable[[Weights, Limits], Optimizer],
        weights: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self._represented, self._make = represented, make
        self._inner: Optimizer | None = None
        self._weights: Weights
        if weights is not None:
            self._begin(as_model(weights, represented.drawn))

    def make_model(self) -> Model:
        """Return the model that the weights make; collective."""
        self._ready()
        return self._represented.make(self._weights)

    def step(
        self, model: Model, evaluate: Evaluate, progress: float = 0.0
    ) -> tuple[Model, Evaluation]:
        """The next model, and the evaluation of this one; collective."""
        inner, through = self._ready(), _Through(self._represented, evaluate)
        through.know(self._weights, model)
        self._weights, _ = inner.step(self._weights, through, progress)
        return through.make(self._weights), through.first

    def price(self, shots: int) -> Price:
        return self._ready().price(shots)

    def state(self) -> Mapping[str, Any]:
        """A copy of what the next step depends on beside the model, as a checkpoint keeps it."""
        inner = self._ready()
        weights = {name: array.cpu().clone() for name, array in self._weights.arrays.items()}
        return {"weights": weights, "optimizer": dict(inner.state())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        weights = as_model(state["weights"], self._represented.drawn)
        self._begin(weights).restore(state["optimizer"])

    def _ready(self) -> Optimizer:
        return self._inner or self._begin(self._represented.fit())

    def _begin(self, weights: Weights) -> Optimizer:
        self._weights = weights
        self._inner = self._make(weights, _Finite.of(weights))
        return self._inner


@dataclass(frozen=True)
class _Finite(Limits):
    """Weights may be anything but infinite."""

    @classmethod
    def of(cls, weights: Weights) -> _Finite:
        nothing = weights.map(lambda array: torch.zeros_like(array, dtype=torch.bool))
        return cls(weights, nothing.arrays, {})

    def apply(self, model: Weights) -> Weights:
        """The same weights; raises `StepFailure` where one is not finite."""
        if not all(torch.isfinite(array).all() for array in model.arrays.values()):
            raise StepFailure(
                "the last step led to weights of the network that are not finite. Take a smaller "
                "inversion.optimizer.lr or step, which is that of the weights."
            )
        return model


class _Through:
    """An `Evaluate` of weights, which evaluates the models that they make."""

    def __init__(self, represented: Represented, evaluate: Evaluate) -> None:
        self._represented, self._evaluate = represented, evaluate
        self._known: tuple[Weights, Model] | None = None
        self._first: Evaluation | None = None

    @property
    def first(self) -> Evaluation:
        """The evaluation of the model with which the step began."""
        assert self._first is not None, "optimisers evaluate the model that they begin with"
        return self._first

    def know(self, weights: Weights, model: Model) -> None:
        """Take a model for what weights make, the same object: what is known of it is known."""
        self._known = weights, model

    def make(self, weights: Weights) -> Model:
        if self._known is None or self._known[0] is not weights:
            self._known = weights, self._represented.make(weights)
        return self._known[1]

    def __call__(self, weights: Weights) -> Evaluation:
        model = self.make(weights)
        found = self._evaluate(model)
        self._first = self._first or found
        return replace(found, gradient=self._pull(weights, model, found.gradient))

    def product(self, weights: Weights, direction: Weights, shots: int | None = None) -> Weights:
        model = self.make(weights)
        change = self._represented.push(weights, direction)
        return self._pull(weights, model, self._evaluate.product(model, change, shots))

    def remember(self, weights: Weights, evaluation: Evaluation) -> None:
        """Nothing: what is said of the weights says nothing of the model's gradient."""

    def precondition(self, gradient: Weights) -> Weights:
        """The same: what is asked for is done to gradients of models."""
        return gradient

    def _pull(self, weights: Weights, model: Model, gradient: Model) -> Weights:
        return self._represented.pull_back(weights, model, gradient)
