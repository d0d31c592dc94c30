"""Wrappers of optimizers: other unknowns than the parameters of a model, or a denoiser.

Unknowns are functions of the parameters in each cell, which `parameters` describes, or the
weights of a network. `networks` computes models from weights, and gradients with respect to weights
from those with respect to models.

The module has two denoisers of scikit-image, which `registry.DENOISERS` names; `operators.tiles`
distributes their tiles over ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hpcfwi.config.inversion import PriorSection
from hpcfwi.errors import InversionFailure, StepFailure
from hpcfwi.inversion.line_search import as_model
from hpcfwi.inversion.networks import NetworkModel, Weights
from hpcfwi.inversion.objective import Evaluation
from hpcfwi.inversion.optimizers import Evaluator, Optimizer, OptimizerCost
from hpcfwi.inversion.parameters import Limits, Unknowns
from hpcfwi.model import Model
from hpcfwi.operators.tiles import Tiles
from hpcfwi.parallel.context import Context
from hpcfwi.wave.numerics import one_thread

Denoiser = Callable[[Tensor, float], Tensor]
"""A function of images (image, 1, z, x) or (image, 1, z, y, x) and a strength, to such images."""


# Size of the compared patches, and distance within which they are searched, in points.
PATCH, REACH = 5, 8
# Differences of patches up to this share of the noise are ignored (Darbon et al. 2008).
SIMILAR = 0.8
# The iteration ends at this change of the objective, as a share of its first value.
CLOSE = 1e-7
MOST = 500


def denoise_nlm(images: Tensor, strength: float) -> Tensor:
    """Return the nonlocal means of images (Buades, Coll and Morel 2005).

    Each point becomes the mean of points with similar surroundings: repeated structures, such as
    layers, become clear, and other structures stay.

    Parameters
    ----------
    images
        (image, 1, z, x) or (image, 1, z, y, x), with values between about 0 and 1.
    strength
        The standard deviation of the noise.
    """
    from skimage.restoration import denoise_nl_means

    noise = {"h": SIMILAR * strength, "sigma": strength}
    denoise = partial(denoise_nl_means, patch_size=PATCH, patch_distance=REACH, **noise)
    return _denoise_each(denoise, images)


def denoise_tv(images: Tensor, strength: float) -> Tensor:
    """Return the proximal operator of the total variation (Chambolle 2004, equation 2).

    Layers and edges are preserved, and values between them become constant.

    Parameters
    ----------
    images
        (image, 1, z, x) or (image, 1, z, y, x), with values between about 0 and 1.
    strength
        The weight of the total variation.
    """
    from skimage.restoration import denoise_tv_chambolle

    denoise = partial(denoise_tv_chambolle, weight=strength, eps=CLOSE, max_num_iter=MOST)
    return _denoise_each(denoise, images)


def _denoise_each(denoise: Callable[..., Any], images: Tensor) -> Tensor:
    made = torch.empty_like(images)
    for image, result in zip(images.flatten(0, 1), made.flatten(0, 1), strict=True):
        result.copy_(torch.from_numpy(denoise(image.cpu().numpy())))
    return made


class Denoised:
    """An `Optimizer` whose steps end with a denoised model, every so many epochs.

    The method is that of Venkatakrishnan, Bouman and Wohlberg (2013), with a step of the optimizer
    in place of the proximal operator of the misfit (as in Kamilov, Mansour and Wohlberg 2017,
    algorithm 1). The denoiser gets each parameter on a scale from 0 to 1; kept cells are unchanged.

    keep: returns the nearest model within the limits; reproducible: True if the denoiser computes
    on one thread, because its bits may depend on the number of threads.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        limits: Limits,
        keep: Callable[[Model], Model],
        section: PriorSection,
        denoiser: Denoiser,
        context: Context,
        reproducible: bool,
    ) -> None:
        self._optimizer, self._limits, self._keep = optimizer, limits, keep
        self._section, self._steps, shape = section, 0, limits.initial.grid.shape
        patch, overlap = section.patch or max(shape), section.overlap if section.patch else 0
        self._tiles = Tiles(
            denoiser, context, patch=patch, overlap=overlap, batch=1, axes=len(shape)
        )
        self._computing = one_thread if reproducible else nullcontext

    def step(
        self, model: Model, evaluate: Evaluator, progress: float = 0.0
    ) -> tuple[Model, Evaluation]:
        found, evaluation = self._optimizer.step(model, evaluate, progress)
        self._steps += 1
        if self._steps % self._section.every == 0:
            denoised = {name: self._denoise(name, array) for name, array in found.arrays.items()}
            found = self._keep(Model(model.grid, denoised))
        return found, evaluation

    def cost(self, shots: int) -> OptimizerCost:
        return self._optimizer.cost(shots)

    def state(self) -> Mapping[str, Any]:
        return {"steps": self._steps, "optimizer": dict(self._optimizer.state())}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._steps = state["steps"]
        self._optimizer.restore(state["optimizer"])

    def _denoise(self, name: str, array: Tensor) -> Tensor:
        lowest, highest = map(float, self._limits.bounds.get(name, torch.aminmax(array)))
        extent = highest - lowest or 1.0
        image = ((array - lowest) / extent)[None, None]
        with self._computing():
            made = self._tiles(image, self._section.strength)[0, 0]
        if not torch.isfinite(made).all():
            raise InversionFailure(
                f'the denoiser "{self._section.denoiser}" of inversion.prior returned values of '
                f"{name} that are not finite for finite images with values between 0 and 1: test "
                "the denoiser separately, or try another inversion.prior.strength"
            )
        return made.to(array) * extent + lowest


class OptimizerOfUnknowns:
    """An `Optimizer` of unknowns from which the model follows.

    make: returns the optimizer, given the first unknowns and their limits; find_unknowns: returns
    the unknowns of models with these limits.
    """

    def __init__(
        self,
        make: Callable[[Model, Limits], Optimizer],
        find_unknowns: Callable[[Limits], Unknowns],
        initial: Model,
        limits: Limits,
    ) -> None:
        self._unknowns = unknowns = find_unknowns(limits)
        first = unknowns.of(initial)
        fixed = {name: limits.fixed[name] for name in first.arrays}
        within = _LimitsOfUnknowns(first, fixed, {}, limits.linear, unknowns=unknowns)
        self._optimizer = make(first, within)

    def step(
        self, model: Model, evaluate: Evaluator, progress: float = 0.0
    ) -> tuple[Model, Evaluation]:
        unknowns = self._unknowns
        start = unknowns.of(model)
        through = _ThroughUnknowns(unknowns, evaluate, (start, model))
        found, evaluation = self._optimizer.step(start, through, progress)
        gradient = unknowns.pull_back_to_model(model, evaluation.gradient)
        return through.make(found), replace(evaluation, gradient=gradient)

    def cost(self, shots: int) -> OptimizerCost:
        return self._optimizer.cost(shots)

    def state(self) -> Mapping[str, Any]:
        return self._optimizer.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._optimizer.restore(state)


@dataclass(frozen=True, kw_only=True)
class _LimitsOfUnknowns(Limits):
    """The limits of unknowns, which follow from those of their models."""

    unknowns: Unknowns

    def within(self, model: Model, direction: Model) -> Model:
        """Return a direction without the changes of parameters that would leave the limits."""
        made, change = self.unknowns.make(model), self.unknowns.push(model, direction)
        kept = self.unknowns.limits.within(made, change)
        return self.unknowns.push_to_unknowns(made, kept)

    def apply(self, model: Model) -> Model:
        """Return the unknowns of the nearest model within the limits."""
        return self.unknowns.of(self.unknowns.make(model))


class OptimizerOfWeights:
    """An `Optimizer` that updates the weights of the network that computes the model.

    make: returns the optimizer, given the first weights and their limits; weights: the first
    weights, None to fit them to the initial model.
    """

    def __init__(
        self,
        network_model: NetworkModel,
        make: Callable[[Weights, Limits], Optimizer],
        weights: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self._network_model, self._make = network_model, make
        self._inner: Optimizer | None = None
        self._weights: Weights
        if weights is not None:
            self._begin(as_model(weights, network_model.drawn))

    def make_model(self) -> Model:
        """Return the model of the weights; collective."""
        self._ready()
        return self._network_model.make(self._weights)

    def step(
        self, model: Model, evaluate: Evaluator, progress: float = 0.0
    ) -> tuple[Model, Evaluation]:
        inner = self._ready()
        through = _Through(self._network_model, evaluate, (self._weights, model))
        self._weights, _ = inner.step(self._weights, through, progress)
        assert through.first is not None, "optimizers evaluate the model that they begin with"
        return through.make(self._weights), through.first

    def cost(self, shots: int) -> OptimizerCost:
        return self._ready().cost(shots)

    def state(self) -> Mapping[str, Any]:
        inner = self._ready()
        weights = {name: array.cpu().clone() for name, array in self._weights.arrays.items()}
        return {"weights": weights, "optimizer": dict(inner.state())}

    def restore(self, state: Mapping[str, Any]) -> None:
        weights = as_model(state["weights"], self._network_model.drawn)
        self._begin(weights).restore(state["optimizer"])

    def _ready(self) -> Optimizer:
        return self._inner or self._begin(self._network_model.fit())

    def _begin(self, weights: Weights) -> Optimizer:
        self._weights = weights
        nothing = weights.map(partial(torch.zeros_like, dtype=torch.bool))
        self._inner = self._make(weights, _Finite(weights, nothing.arrays, {}))
        return self._inner


@dataclass(frozen=True)
class _Finite(Limits):
    """The limits of weights, which may have any finite value."""

    def apply(self, model: Weights) -> Weights:
        """Return the same weights; raise `StepFailure` if one is not finite."""
        if not all(torch.isfinite(array).all() for array in model.arrays.values()):
            raise StepFailure(
                "the last step led to weights of the network that are not finite. Use a smaller "
                "inversion.optimizer.lr or step, which apply to the weights."
            )
        return model


class _Through:
    """An `Evaluator` of unknowns, which evaluates their models.

    source: makes models, and transforms directions and gradients; start: the first unknowns and
    their model, which is kept as the same object so that its known evaluation can be used; first:
    the evaluation of this model.
    """

    def __init__(
        self, source: NetworkModel | Unknowns, evaluate: Evaluator, start: tuple[Model, Model]
    ) -> None:
        self._source, self._evaluate, self._known = source, evaluate, start
        self.first: Evaluation | None = None

    def make(self, unknowns: Model) -> Model:
        if self._known[0] is not unknowns:
            self._known = unknowns, self._source.make(unknowns)
        return self._known[1]

    def __call__(self, unknowns: Model) -> Evaluation:
        model = self.make(unknowns)
        found = self._evaluate(model)
        self.first = self.first or found
        gradient = self._source.pull_back(unknowns, model, found.gradient)
        return replace(found, gradient=gradient)

    def product(self, unknowns: Model, direction: Model, shots: int | None = None) -> Model:
        model = self.make(unknowns)
        change = self._source.push(unknowns, direction)
        product = self._evaluate.product(model, change, shots)
        return self._source.pull_back(unknowns, model, product)

    def remember(self, unknowns: Model, evaluation: Evaluation) -> None:
        """Do nothing, because the gradient of the model does not follow from that of weights."""

    def precondition(self, gradient: Model) -> Model:
        """Return the gradient unchanged, because gradients of weights have no place."""
        return gradient


class _ThroughUnknowns(_Through):
    """An `Evaluator` of unknowns in each cell.

    Preconditioners treat each array separately, and need not know what it means.
    """

    _source: Unknowns

    def remember(self, unknowns: Model, evaluation: Evaluation) -> None:
        model = self.make(unknowns)
        gradient = self._source.pull_back_to_model(model, evaluation.gradient)
        self._evaluate.remember(model, replace(evaluation, gradient=gradient))

    def precondition(self, gradient: Model) -> Model:
        return self._evaluate.precondition(gradient)
