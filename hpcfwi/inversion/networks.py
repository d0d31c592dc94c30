"""Networks that compute a model from coordinates, in place of values on a grid.

A network is a `torch.nn.Module` that is called with coordinates (..., ndim), and returns values
(..., count), of about the size of 1, one for each of the model's parameters. Coordinates go from -1
to 1 along the grid's shortest axis, and proportionally further along longer axes. Its constructor
takes the grid's shape and the count, and its keyword parameters are keys of `[model.network]`. If
the value at a point depends only on the coordinates of this point, the network has
`pointwise = True` and is called with some of the points, (point, ndim); otherwise it is called with
all of them, (z, x, 2) or (z, y, x, 3). `registry.NETWORKS` names those of this module: `Siren`, a
network of sines (Sitzmann et al. 2020), and `Cnn`, a network of convolutions from a fixed random
image.

The points are divided into blocks, which do not depend on the number of ranks. Blocks are
distributed over ranks, and their gradients are added up exactly, so that the bits do not depend on
the number of ranks. `wrappers` turns an optimizer of models into one of weights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from math import cos, pi, sqrt
from typing import Annotated, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.optim.adam import adam

from hpcfwi.config.survey import NetworkSection
from hpcfwi.errors import InputError
from hpcfwi.inversion.parameters import Limits
from hpcfwi.model import PARAMETERS, Model, rms_difference
from hpcfwi.operators.stack import pull_back
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.exact import Sums
from hpcfwi.wave.numerics import one_thread

# Number of points in a block.
BLOCK = 4096
# Adam's rate in the fit to the initial model (Sitzmann et al. 2020, for similar tasks).
RATE = 1e-3

Weights = Model[Tensor]
"""The parameters of a network by name, in the form of a model, whose grid is not used."""

log = logging.getLogger("hpcfwi")


@dataclass(frozen=True)
class NetworkModel:
    """The representation of models by a network; its methods are collective.

    The value of a parameter is the output of the network times the standard deviation of the
    initial model's free cells, plus their mean. It is then brought within the limits.

    reproducible: True if bits must not depend on the number of ranks and threads.
    """

    section: NetworkSection
    limits: Limits
    context: Context
    reproducible: bool

    def fit(self) -> Weights:
        """Return the first weights of the network, fitted to the initial model.

        Adam finds them on rank 0, with cells drawn at random if the network is pointwise.
        """
        context = self.context
        context.heartbeat.begin("fitting the network to the initial model")
        log.info("Fitting a network of %d weights to the initial model", sum(self.sizes))
        found = context.from_root(self._fit)
        arrays = {name: array.to(context.device) for name, array in found.items()}
        weights = Model(self._initial.grid, arrays)
        made, initial = self.make(weights).as_arrays(), self._initial.as_arrays()
        for name, array in made.arrays.items():
            off = rms_difference(array, initial[name], ~self.limits.fixed[name].cpu().numpy())
            unit, title = PARAMETERS[name].unit, PARAMETERS[name].title
            log.info("The fitted %s differs from the initial one by %.1f %s", title, off, unit)
        return weights

    def make(self, weights: Weights) -> Model:
        """Return the model of these weights, on every rank."""
        count = len(self._initial.arrays)
        values = torch.zeros(self._points, count, device=self.context.device)
        with torch.no_grad(), self._computing():
            for where in self._mine:
                values[where] = self._call(weights.arrays, where)
        return self.limits.apply(self._scale(self.context.sum(values)))

    def pull_back(self, weights: Weights, model: Model, gradient: Model) -> Weights:
        """Return the gradient with respect to the weights, given that with respect to a model."""
        # Cells that would leave the limits do not contribute to the gradient.
        free = self.limits.within(model, gradient * -1.0) * -1.0
        spreads = self._spreads
        pulls = torch.stack([free[name] * spread for name, (_, spread) in spreads.items()], -1)
        pulls = pulls.reshape(self._points, -1).float()
        found = []
        with self._computing():
            for where in self._mine:
                call = partial(self._call_model, where=where)
                found.append(pull_back(call, weights, pulls[where]).arrays)
        return Model(weights.grid, self._add_up(weights, found))

    def push(self, weights: Weights, direction: Weights) -> Model:
        """Return the first-order change of the model with the weights in a direction."""
        change = torch.zeros(self._points, len(self._initial.arrays), device=self.context.device)
        at = dict(weights.arrays)
        along = {name: direction[name].to(array) for name, array in at.items()}
        with torch.no_grad(), self._computing():
            for where in self._mine:
                call = partial(self._call, where=where)
                _, change[where], *_ = jvp(call, (at,), (along,))
        change = self.context.sum(change)
        return self.limits.free(self._scale(change, is_change=True))

    @property
    def drawn(self) -> Weights:
        """The random weights that the network's seed gives."""
        return Model(self._initial.grid, dict(self._network.named_parameters()))

    @property
    def sizes(self) -> list[int]:
        return [weight.numel() for weight in self._network.parameters()]

    @property
    def _initial(self) -> Model:
        return self.limits.initial

    @property
    def _points(self) -> int:
        return self._initial.any.numel()

    @property
    def _computing(self) -> Callable[[], AbstractContextManager[None]]:
        return one_thread if self.reproducible else nullcontext

    @cached_property
    def _network(self) -> nn.Module:
        """The network with the random weights of its seed, the same on every rank."""
        shape, count = self._initial.grid.shape, len(self._initial.arrays)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.section.seed)
            network: nn.Module = self.section.bind()(shape, count)
        return network.to(self.context.device)

    @cached_property
    def _coordinates(self) -> Tensor:
        """The coordinates of all points, (point, ndim)."""
        grid = self._initial.grid
        extents = [(n - 1) * h for n, h in zip(grid.shape, grid.spacing, strict=True)]
        half = min(extents) / 2.0
        axes = [
            torch.linspace(-extent / 2.0 / half, extent / 2.0 / half, n, dtype=torch.float64)
            for extent, n in zip(extents, grid.shape, strict=True)
        ]
        points = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, grid.ndim)
        return points.float().to(self.context.device)

    @cached_property
    def _spreads(self) -> Mapping[str, tuple[float, float]]:
        """Mean and standard deviation of each parameter's initial cells that may change."""
        free = {n: a[~self.limits.fixed[n]].double() for n, a in self._initial.arrays.items()}
        return {
            name: (float(values.mean()), float(values.std(correction=0)) or 1.0)
            for name, values in free.items()
        }

    @cached_property
    def _blocks(self) -> list[slice]:
        if not self._is_pointwise:
            return [slice(0, self._points)]
        return [slice(k, min(k + BLOCK, self._points)) for k in range(0, self._points, BLOCK)]

    @property
    def _is_pointwise(self) -> bool:
        return bool(getattr(self._network, "pointwise", False))

    @property
    def _mine(self) -> list[slice]:
        """The blocks of this rank."""
        return self._blocks[self.context.rank :: self.context.size]

    def _call(self, arrays: Mapping[str, Tensor], where: slice | Tensor) -> Tensor:
        """Return values (point, count) of the network with these weights at some points.

        Raises `InputError` if the network returns another shape.
        """
        points, count = self._coordinates, len(self._initial.arrays)
        if self._is_pointwise:
            points = points[where]
        else:
            points = points.reshape(*self._initial.grid.shape, -1)
        values: Tensor = functional_call(self._network, dict(arrays), points)
        expected = (*points.shape[:-1], count)
        if tuple(values.shape) != expected:
            raise InputError(
                "model.network.kind",
                f"the network has returned {tuple(values.shape)} for coordinates "
                f"{tuple(points.shape)}, expected {expected}",
                "Return a value for each point and parameter.",
            )
        return values if self._is_pointwise else values.reshape(-1, count)[where]

    def _call_model(self, weights: Weights, where: slice) -> Tensor:
        return self._call(weights.arrays, where)

    def _scale(self, values: Tensor, is_change: bool = False) -> Model:
        """Return the model of values (point, count) of the network, or a change of a model."""
        grid, arrays = self._initial.grid, {}
        for column, (name, (mean, spread)) in zip(values.T, self._spreads.items(), strict=True):
            array = column.reshape(grid.shape) * spread
            arrays[name] = array if is_change else array + mean
        return Model(grid, arrays)

    def _add_up(self, weights: Weights, blocks: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return the sums over the blocks of all ranks."""
        mine = {
            name: max((float(block[name].abs().max()) for block in blocks), default=0.0)
            for name in weights.arrays
        }
        ranks = self.context.all_gather(mine)
        magnitudes = {name: max(rank[name] for rank in ranks) for name in mine}
        shapes = {name: tuple(array.shape) for name, array in weights.arrays.items()}
        count, device = len(self._blocks), self.context.device
        sums = Sums(shapes, magnitudes, count, device, self.reproducible)
        for block in blocks:
            sums.add(block)
        return {name: total.float() for name, total in sums.totals(self.context)}

    def _fit(self) -> dict[str, Tensor]:
        fixed = torch.stack([self.limits.fixed[name] for name in self._initial.arrays], -1)
        cells = (~fixed).any(-1).flatten().nonzero()[:, 0]
        columns = [
            (self._initial[name] - mean) / spread for name, (mean, spread) in self._spreads.items()
        ]
        targets = torch.stack(columns, -1).reshape(self._points, -1).float()
        weights = dict(self._network.named_parameters())
        draws, steps = torch.Generator().manual_seed(self.section.seed), self.section.fit
        arrays: list[Tensor] = [*weights.values()]
        means, squares = ([torch.zeros_like(array) for array in arrays] for _ in range(2))
        counts = [torch.tensor(0.0) for _ in arrays]
        with self._computing():
            for step in range(steps):
                drawn = cells
                if self._is_pointwise:
                    places = torch.randint(cells.numel(), (BLOCK,), generator=draws)
                    drawn = cells[places.to(cells.device)]
                loss = (self._call(weights, drawn) - targets[drawn]).square().mean()
                gradients = [*torch.autograd.grad(loss, arrays, materialize_grads=True)]
                rate = 0.5 * RATE * (1.0 + cos(pi * (step / steps)))
                with torch.no_grad():
                    adam(
                        arrays, gradients, means, squares, [], counts, lr=rate, eps=1e-8, beta1=0.9,
                        beta2=0.999, amsgrad=False, weight_decay=0.0, maximize=False,
                    )  # fmt: skip
        return {name: weight.detach().cpu().clone() for name, weight in weights.items()}


CHANNELS = "Number of channels of each layer."
LEVELS = "Number of doublings of the image's size, from the random image to the model."


class Cnn(nn.Module):
    """Convolutions and doublings of a small random image, which is fixed.

    This is the deep image prior (Ulyanov, Vedaldi and Lempitsky 2018), used for inversion by Zhu et
    al. (2022): convolutions of noise fit layers before they fit noise.
    """

    pointwise = False

    def __init__(
        self,
        shape: tuple[int, ...],
        count: int,
        *,
        channels: Annotated[int, Field(gt=0, le=10_000, description=CHANNELS)] = 32,
        levels: Annotated[int, Field(gt=0, le=10, description=LEVELS)] = 3,
    ) -> None:
        super().__init__()
        convolution = nn.Conv2d if len(shape) == 2 else nn.Conv3d
        self._mode = "bilinear" if len(shape) == 2 else "trilinear"
        self._sizes = [
            tuple(-(-n // 2**level) for n in shape) for level in range(levels - 1, -1, -1)
        ]
        first = tuple(-(-n // 2**levels) for n in shape)
        self.register_buffer("seed", torch.randn(1, channels, *first))
        self.hidden = nn.ModuleList(
            convolution(channels, channels, 3, padding=1, padding_mode="replicate")
            for _ in self._sizes
        )
        self.last = convolution(channels, count, 3, padding=1, padding_mode="replicate")

    def forward(self, coordinates: Tensor) -> Tensor:  # noqa: ARG002
        """Return values (grid's shape, count); the coordinates are not used."""
        found = cast(Tensor, self.seed)
        for layer, size in zip(self.hidden, self._sizes, strict=True):
            found = nn.functional.interpolate(found, size, mode=self._mode)
            found = nn.functional.leaky_relu(layer(found), 0.1)
        return cast(Tensor, self.last(found))[0].movedim(0, -1)


WIDTH = "Number of units of each hidden layer."
DEPTH = "Number of hidden layers after the first."
OMEGA = """Frequency of the sines of the first layer, which decides what is learnt first.

In 2-D the shortest of their wavelengths is about six lengths of the shortest axis over this."""


class Siren(nn.Module):
    """Layers of sines of the coordinates (Sitzmann et al. 2020, equation 4 and section 3.2).

    Sun et al. (2023, "Implicit seismic full waveform inversion with deep neural representation")
    use it for inversion.
    """

    pointwise = True

    def __init__(
        self,
        shape: tuple[int, ...],
        count: int,
        *,
        width: Annotated[int, Field(gt=0, le=10_000, description=WIDTH)] = 64,
        depth: Annotated[int, Field(gt=0, le=100, description=DEPTH)] = 3,
        omega: Annotated[float, Field(gt=0.0, le=1e4, description=OMEGA)] = 30.0,
    ) -> None:
        super().__init__()
        self._omega = omega
        sizes = [len(shape), *[width] * (depth + 1)]
        self.hidden = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(sizes))
        self.last = nn.Linear(width, count)
        with torch.no_grad():
            for number, layer in enumerate([*self.hidden, self.last]):
                n = layer.in_features
                bound = 1.0 / n if number == 0 else sqrt(6.0 / n) / omega
                layer.weight.uniform_(-bound, bound)

    def forward(self, coordinates: Tensor) -> Tensor:
        """Return values (..., count) at coordinates (..., ndim)."""
        found = coordinates
        for layer in self.hidden:
            found = torch.sin(self._omega * layer(found))
        return cast(Tensor, self.last(found))
