"""Stacks as physics of deepinv, and deepinv's physics, fidelities, priors and denoisers on ranks.

The results are types of deepinv, so that its optimizers accept them. Every rank runs the complete
optimizer from the same initial values; the methods are collective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hpcfwi.model import Model
from hpcfwi.operators import MemberStack, Shots, Stack, Tiles
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
    """Conversion of inputs and outputs between deepinv and a stack; tensors are not changed.

    Methods `read...` convert from deepinv to the stack, `show...` from the stack to deepinv.
    Outputs are those of all members, or that of one member. Those of all members are a TensorList
    in deepinv.
    """

    def read(self, x: Any) -> Any:
        return x

    def show(self, x: Any) -> Any:
        return x

    def read_outputs(self, y: Any) -> Any:
        return y

    def show_outputs(self, y: Any) -> Any:
        return y if isinstance(y, Tensor) else TensorList([*y])


class Images(Tensors):
    """Conversion between images of deepinv and models and data of shots.

    Models are images (1, parameter, z, x) in deepinv. Data of all shots are (1, shot, receiver,
    time), and those of one shot (1, receiver, time).

    like: a model with the grid and the names of the parameters.
    """

    def __init__(self, like: Model) -> None:
        self._grid, self._names = like.grid, [*like.arrays]

    def read(self, x: Tensor) -> Model:
        return Model(self._grid, dict(zip(self._names, x[0], strict=True)))

    def show(self, x: Model) -> Tensor:
        return torch.stack([x[name] for name in self._names])[None]

    def read_outputs(self, y: Tensor) -> Tensor:
        return y[0]

    def show_outputs(self, y: Tensor) -> Tensor:
        return y[None]


class StackPhysics(Physics):  # type: ignore[misc]
    """A stack as a physics of deepinv; `A` is differentiable, also across ranks.

    operators: the stack; form: the conversion of inputs and outputs; noisy: the stack of the
    members with their noise, None if they have no noise.
    """

    def __init__(self, operators: Stack, form: Tensors, noisy: Stack | None = None) -> None:
        super().__init__()
        self.operators, self.form, self.noisy = operators, form, noisy

    def forward(self, x: Any) -> Any:
        """Return the outputs of all members with noise, which the rank of each member draws."""
        if self.noisy is None:
            return self.A(x)
        return self.form.show_outputs(self.noisy(self.form.read(x)))

    def A(self, x: Any) -> Any:  # noqa: N802
        """Return the outputs of all members."""
        return self.form.show_outputs(self.operators(self.form.read(x)))

    def A_vjp(self, x: Any, v: Any) -> Any:  # noqa: N802
        """Return the transposed derivative at x, applied to v."""
        form = self.form
        return form.show(self.operators.vjp(form.read(x), form.read_outputs(v)))


class LinearStackPhysics(StackPhysics, LinearPhysics):  # type: ignore[misc]
    """A linear stack as a physics of deepinv; its adjoint is not differentiable."""

    def A_adjoint(self, y: Any) -> Any:  # noqa: N802
        """Return the adjoint applied to y, summed over members."""
        return self.form.show(self.operators.adjoint(self.form.read_outputs(y)))

    def A_vjp(self, x: Any, v: Any) -> Any:  # noqa: ARG002, N802
        """Return the adjoint applied to v, because the stack is linear."""
        return self.A_adjoint(v)

    def A_adjoint_A(self, x: Any) -> Any:  # noqa: N802
        """Return the adjoint of `A` applied to `A(x)`; outputs are not sent to other ranks."""
        return self.form.show(self.operators.normal(self.form.read(x)))

    def A_dagger(  # noqa: N802
        self, y: Any, solver: str = "CG", max_iter: int | None = None, tol: float | None = None
    ) -> Any:
        """Return the least-squares solution, by `Stack.pseudoinverse` for "CG", else by deepinv."""
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
        """Return the square of `Stack.norm`; deepinv's `compute_norm` uses it."""
        norm = self.operators.norm(self.form.read(x0), tol, max_iter)
        return torch.tensor(norm**2, dtype=x0.real.dtype, device=x0.device)


class StackFidelity(DataFidelity):  # type: ignore[misc]
    """A data fidelity of a stack, whose terms are computed by the ranks of the members.

    fidelities: fidelities of deepinv, one for each member or one for all members, of which only the
    distance is used. Results have the same bits on any number of ranks.
    """

    def __init__(self, fidelities: Any) -> None:
        super().__init__()
        self.fidelities = fidelities

    def fn(self, x: Any, y: Any, physics: StackPhysics, *args: Any, **kwargs: Any) -> Tensor:
        """Return the sum or mean over members (the stack's `reduce`), one value per image."""
        stack, form = physics.operators, physics.form
        y_of, outputs = stack.find(form.read_outputs(y)), stack.push(form.read(x))
        mine = {
            number: self._of(number).d(
                form.show_outputs(output), form.show_outputs(y_of(number)), *args, **kwargs
            )
            for number, output in outputs.items()
        }
        every = gather_outputs(mine, len(stack), stack.context, "naive")
        total = torch.stack(every).sum(dim=0)
        return total / len(stack) if stack.reduce == "mean" else total

    def grad(self, x: Any, y: Any, physics: StackPhysics, *args: Any, **kwargs: Any) -> Any:
        stack, form = physics.operators, physics.form
        y_of = stack.find(form.read_outputs(y))

        def slope(number: int, output: Tensor) -> Tensor:
            pair = form.show_outputs(output), form.show_outputs(y_of(number))
            return form.read_outputs(self._of(number).grad_d(*pair, *args, **kwargs).detach())

        return form.show(stack.pull(form.read(x), slope))

    def _of(self, number: int) -> Any:
        alike = isinstance(self.fidelities, DataFidelity)
        return self.fidelities if alike else self.fidelities[number]


class TiledDenoiser(Denoiser):  # type: ignore[misc]
    """A denoiser that is applied tile by tile; ways: keyword arguments of `Tiles`."""

    def __init__(self, denoiser: Callable[..., Tensor], context: Context, **ways: Any) -> None:
        super().__init__(device=context.device)
        self.whole = denoiser
        self._tiles = Tiles(denoiser, context, **ways)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return denoised images; other arguments, such as a noise level, go to the denoiser."""
        return self._tiles(x, *args, **kwargs)


class TiledPrior(Prior):  # type: ignore[misc]
    """A prior whose `grad` and `prox` are computed by tiles; ways: keyword arguments of `Tiles`."""

    def __init__(self, prior: Any, context: Context, **ways: Any) -> None:
        super().__init__()
        self.whole, self.explicit_prior = prior, prior.explicit_prior
        self._grad = Tiles(prior.grad, context, **ways)
        self._prox = Tiles(prior.prox, context, **ways)

    def fn(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return the value of the prior; every rank computes it for the whole image."""
        return self.whole.fn(x, *args, **kwargs)

    def grad(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self._grad(x, *args, **kwargs)

    def prox(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self._prox(x, *args, **kwargs)


def as_physics(stack: Stack, like: Model | None = None) -> StackPhysics:
    """Return a stack as a physics of deepinv, which is linear if the stack is; collective.

    For shots, inputs are images (1, parameter, z, x) and outputs are (1, shot, receiver, time). For
    other stacks, inputs are those of the members, and outputs are a TensorList.

    Parameters
    ----------
    stack
        A stack of operators.
    like
        For `Shots`: a model with the grid and the names of the parameters; its values do not
        matter. `Born` does not need it.

    Raises
    ------
    ValueError
        The stack's `reduce` is None. deepinv needs the complete sum on every rank.
    """
    if stack.reduce is None:
        raise ValueError("the stack's reduce is None; expected 'sum' or 'mean'")
    form = Images(stack._known(like)) if isinstance(stack, Shots) else Tensors()
    return (LinearStackPhysics if stack.is_linear() else StackPhysics)(stack, form)


def distribute(thing: Any, context: Context, *, count: int | None = None, **ways: Any) -> Any:
    """Distribute an object of deepinv over ranks, as an object of deepinv; collective.

    Parameters
    ----------
    thing
        One of these:

        - a stacked physics, a list of physics, or a function (number, device, shared) -> physics
          that makes `count` of them. The result is one physics, with the noise of its members.
        - a stacked data fidelity, a list of data fidelities, or one for all members. The result is
          a data fidelity for a distributed physics.
        - a prior or a denoiser, which is applied tile by tile.
    context
        The rank's place in the job.
    count
        Number of physics, if `thing` is a function.
    ways
        Keyword arguments of `operators.distribute`.

    Raises
    ------
    TypeError
        `thing` is none of these.
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
