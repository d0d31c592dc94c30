"""Stacks as deepinv's physics, and its physics, fidelities, priors and denoisers on several ranks.

The results are types of deepinv, so that its optimizers accept them. All ranks run these side by
side, each the whole of it, from the same start; methods are collective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hpcfwi.model import Model
from hpcfwi.operators import Born, MemberStack, Shots, Stack, Tiles
from hpcfwi.operators.vectors import gather_outputs
from hpcfwi.parallel.context import Context

try:
    from deepinv.models import Denoiser
    from deepinv.optim import DataFidelity, Prior, StackedPhysicsDataFidelity
    from deepinv.physics import LinearPhysics, Physics, StackedPhysics
    from deepinv.utils import TensorList
except (ImportError, RuntimeError) as error:
    raise ImportError(
        f"deepinv cannot be imported ({error}); expected pip install 'hpcfwi[deepinv]', with the "
        f"torchvision that was built for torch {torch.__version__}"
    ) from error


class Tensors:
    """The form of inputs and outputs for deepinv: tensors as they are.

    The outputs of all members are a TensorList.
    """

    def read(self, x: Any) -> Any:
        """An input."""
        return x

    def show(self, x: Any) -> Any:
        """An input of ours."""
        return x

    def read_outputs(self, y: Any) -> Any:
        """Convert the outputs of all members."""
        return y

    def show_outputs(self, ys: Any) -> Any:
        """Convert the outputs of all members."""
        return TensorList([*ys])

    def read_one(self, y: Tensor) -> Tensor:
        """The output of one member."""
        return y

    def show_one(self, y: Tensor) -> Tensor:
        """The output of one member."""
        return y


class Images(Tensors):
    """The form of images: models are (1, parameter, z, x), data (1, shot, receiver, time)."""

    def __init__(self, like: Model) -> None:
        self._grid, self._names = like.grid, [*like.arrays]

    def read(self, x: Tensor) -> Model:
        """A model."""
        return Model(self._grid, dict(zip(self._names, x[0], strict=True)))

    def show(self, x: Model) -> Tensor:
        """An image of a model."""
        return torch.stack([x[name] for name in self._names])[None]

    def read_outputs(self, y: Tensor) -> Tensor:
        """All shots."""
        return y[0]

    def show_outputs(self, ys: Tensor) -> Tensor:
        """All shots."""
        return ys[None]

    def read_one(self, y: Tensor) -> Tensor:
        """Return the data of one shot, (receiver, time)."""
        return y[0]

    def show_one(self, y: Tensor) -> Tensor:
        """Return the data of one shot, (1, receiver, time)."""
        return y[None]


class StackPhysics(Physics):  # type: ignore[misc]
    """A stack as one of deepinv's physics; `A` is differentiable, also across ranks.

    noisy: members that measure with noise, where they have any.
    """

    def __init__(self, operators: Stack, form: Tensors, noisy: Stack | None = None) -> None:
        super().__init__()
        self.operators, self.form, self.noisy = operators, form, noisy

    def forward(self, x: Any) -> Any:
        """Return the measurement: `A` and noise, drawn by the rank of each member."""
        if self.noisy is None:
            return self.A(x)
        return self.form.show_outputs(self.noisy(self.form.read(x)))

    def A(self, x: Any) -> Any:  # noqa: N802
        """The outputs of all members."""
        return self.form.show_outputs(self.operators(self.form.read(x)))

    def A_vjp(self, x: Any, v: Any) -> Any:  # noqa: N802
        """The transpose of the derivative at x, applied to v."""
        form = self.form
        return form.show(self.operators.vjp(form.read(x), form.read_outputs(v)))


class LinearStackPhysics(StackPhysics, LinearPhysics):  # type: ignore[misc]
    """A linear stack; no gradients flow through its adjoint."""

    def A_adjoint(self, y: Any) -> Any:  # noqa: N802
        """The adjoint, added up over members."""
        return self.form.show(self.operators.adjoint(self.form.read_outputs(y)))

    def A_vjp(self, x: Any, v: Any) -> Any:  # noqa: ARG002, N802
        """The adjoint, as it is linear."""
        return self.A_adjoint(v)

    def A_adjoint_A(self, x: Any) -> Any:  # noqa: N802
        """The adjoint of what members make of x; no output leaves its rank."""
        return self.form.show(self.operators.normal(self.form.read(x)))

    def A_dagger(  # noqa: N802
        self, y: Any, solver: str = "CG", max_iter: int | None = None, tol: float | None = None
    ) -> Any:
        """The least-squares solution: by `Stack.pseudoinverse`, or another solver of deepinv's."""
        if solver != "CG":
            return super().A_dagger(y, solver, max_iter, tol)
        found = self.operators.pseudoinverse(
            self.form.read_outputs(y), tol or self.tol, max_iter or self.max_iter
        )
        return self.form.show(found)

    def compute_sqnorm(
        self,
        x0: Any,
        *,
        max_iter: int = 100,
        tol: float = 1e-3,
        verbose: bool = True,  # noqa: ARG002
    ) -> Tensor:
        """The square of `Stack.norm`; `compute_norm` makes of it what deepinv's does."""
        norm = self.operators.norm(self.form.read(x0), tol, max_iter)
        return torch.tensor(norm**2, dtype=x0.real.dtype, device=x0.device)


class StackFidelity(DataFidelity):  # type: ignore[misc]
    """The distances of a stack's outputs to data, each taken by the rank of its member.

    fidelities: deepinv's, one for each member, or one for all, of which the distance counts.
    Results have the same bits on any number of ranks.
    """

    def __init__(self, fidelities: Any) -> None:
        super().__init__()
        self.fidelities = fidelities

    def fn(self, x: Any, y: Any, physics: StackPhysics, *args: Any, **kwargs: Any) -> Tensor:
        """Return the sum for each image, or the mean, as the stack's `reduce` says."""
        stack, form = physics.operators, physics.form
        y_of, outputs = stack.find(form.read_outputs(y)), stack.push(form.read(x))
        mine = {
            number: self._of(number).d(
                form.show_one(output), form.show_one(y_of(number)), *args, **kwargs
            )
            for number, output in outputs.items()
        }
        every = gather_outputs(mine, len(stack), stack.context, "naive")
        total = torch.stack(every).sum(dim=0)
        return total / len(stack) if stack.reduce == "mean" else total

    def grad(self, x: Any, y: Any, physics: StackPhysics, *args: Any, **kwargs: Any) -> Any:
        """The gradient of that."""
        stack, form = physics.operators, physics.form
        y_of = stack.find(form.read_outputs(y))

        def slope(number: int, output: Tensor) -> Tensor:
            pair = form.show_one(output), form.show_one(y_of(number))
            return form.read_one(self._of(number).grad_d(*pair, *args, **kwargs).detach())

        return form.show(stack.pull(form.read(x), slope))

    def _of(self, number: int) -> Any:
        alike = isinstance(self.fidelities, DataFidelity)
        return self.fidelities if alike else self.fidelities[number]


class TiledDenoiser(Denoiser):  # type: ignore[misc]
    """A denoiser, tile by tile; ways: as `Tiles` has them."""

    def __init__(self, denoiser: Callable[..., Tensor], context: Context, **ways: Any) -> None:
        super().__init__(device=context.device)
        self.whole = denoiser
        self._tiles = Tiles(denoiser, context, **ways)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Apply it to images, with its other arguments such as a noise level."""
        return self._tiles(x, *args, **kwargs)


class TiledPrior(Prior):  # type: ignore[misc]
    """A prior whose `grad` and `prox` are taken tile by tile; ways: as `Tiles` has them."""

    def __init__(self, prior: Any, context: Context, **ways: Any) -> None:
        super().__init__()
        self.whole, self.explicit_prior = prior, prior.explicit_prior
        self._grad = Tiles(prior.grad, context, **ways)
        self._prox = Tiles(prior.prox, context, **ways)

    def fn(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The prior's value, of the whole image on every rank."""
        return self.whole.fn(x, *args, **kwargs)

    def grad(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return its gradient."""
        return self._grad(x, *args, **kwargs)

    def prox(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return its proximity operator."""
        return self._prox(x, *args, **kwargs)


def as_physics(stack: Stack, like: Model | None = None) -> StackPhysics:
    """A stack as one of deepinv's physics, linear where the stack is; collective.

    For shots an input is an image (1, parameter, z, x), an output one (1, shot, receiver, time);
    `like` is a model for shots, of which only grid and names matter, and is known of their
    linearisation. Of any other stack inputs are what members take, and outputs a TensorList.

    Raises ValueError where the stack's `reduce` is None, as deepinv has no use for parts of a sum.
    """
    if stack.reduce is None:
        raise ValueError("the stack's reduce is None; expected 'sum' or 'mean'")
    form = Images(stack._known(like)) if isinstance(stack, Shots | Born) else Tensors()
    return (LinearStackPhysics if stack.is_linear() else StackPhysics)(stack, form)


def distribute(thing: Any, context: Context, *, count: int | None = None, **ways: Any) -> Any:
    """Distribute an object of deepinv over ranks, as an object of deepinv; collective.

    thing: a stacked physics, a list of physics, or a factory (number, device, shared) -> physics
    with `count`: one physics, which also measures with its members' noise; a stacked data fidelity,
    a list of them, or one for all: for such a physics; a prior or a denoiser: tile by tile.
    ways: as `operators.distribute` has them.

    Raises TypeError for anything else.
    """
    if isinstance(thing, StackedPhysicsDataFidelity):
        return StackFidelity(thing.data_fidelity_list)
    if isinstance(thing, DataFidelity):
        return StackFidelity(thing)
    if isinstance(thing, Prior):
        return TiledPrior(thing.to(context.device), context, **ways)
    if isinstance(thing, StackedPhysics):
        thing = thing.physics_list
    if isinstance(thing, Sequence):
        if thing and isinstance(thing[0], DataFidelity):
            return StackFidelity(thing)
        return _distribute_physics(
            lambda number: thing[number].to(context.device), len(thing), context, ways
        )
    if callable(thing) and count is not None:
        shared = ways.pop("shared", None)
        return _distribute_physics(
            lambda number: thing(number, context.device, shared), count, context, ways
        )
    if isinstance(thing, torch.nn.Module):
        thing = thing.to(context.device)
    if callable(thing):
        return TiledDenoiser(thing, context, **ways)
    raise TypeError(
        f"found {thing!r}; expected physics, a data fidelity, a prior or a denoiser of deepinv's"
    )


def _distribute_physics(
    make: Callable[[int], Any], count: int, context: Context, ways: dict[str, Any]
) -> StackPhysics:
    made = cache(make)
    physics = as_physics(MemberStack(made, count, context, **ways))
    gather = physics.operators.gather
    physics.noisy = MemberStack(lambda number: made(number).forward, count, context, gather)
    return physics
