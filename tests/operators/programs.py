"""The program of the ranks in the tests of distributed operators."""

from __future__ import annotations

import sys

import scipy
import torch

from hpcfwi.model import Model
from hpcfwi.operators import Fidelity, Shots, distribute
from hpcfwi.operators.vectors import parts_of, randomize
from hpcfwi.parallel.launch import launch
from tests.operators.examples import GRID, METHOD, make_model, make_survey


class Blur:
    """A linear operator as users write them: the sum of a signal and its shifted copy."""

    def __init__(self, shift):
        self.shift = shift

    def A(self, x):  # noqa: N802
        return x + x.roll(self.shift)

    def A_adjoint(self, y):  # noqa: N802
        return y + y.roll(-self.shift)


def sines(number, _, scale):
    """Return the nonlinear function of a member; a factory as users write them."""
    return lambda x: torch.sin(scale * (number + 1) * x)


def try_shots(context, shots):
    """Return the results of all methods of a stack of shots."""
    survey = make_survey(shots=shots)
    stack = distribute(Shots(survey, GRID, **METHOD), context)
    model = make_model()
    born = stack.linearize(model)
    x, data = randomize(model), stack(model)
    free = Model(GRID, {"vp": model["vp"].clone().requires_grad_()})
    stack(free).square().sum().backward()
    fidelity = Fidelity(stack, data * 0.5)
    mean = distribute(fidelity, context, reduce="mean")
    local = distribute(stack, context, gather=False)
    local_data = local(model)
    assert torch.equal(local_data, data[local.mine])
    alone = distribute(stack, context, reduce=None).vjp(model, data)
    assert len(alone) == len(local.mine)
    return {
        "data": data,
        "naive": distribute(stack, context, gather="naive")(model),
        "broadcast": distribute(stack, context, gather="broadcast")(model),
        "vjp": stack.vjp(model, data),
        "vjp of local data": local.vjp(model, local_data),
        "gradient": free["vp"].grad,
        "scattered": born(x),
        "adjoint": born.adjoint(data),
        "normal": born.normal(x),
        "norm": torch.tensor(born.norm(), dtype=torch.float64),
        "pseudoinverse": born.pseudoinverse(data, iterations=4),
        "misfit": torch.tensor(fidelity.fn(model), dtype=torch.float64),
        "slope": fidelity.grad(model),
        "mean misfit": torch.tensor(mean.fn(model), dtype=torch.float64),
        "mean slope": mean.grad(model),
        "mean vjp": distribute(stack, context, reduce="mean").vjp(model, data),
    }


def try_others(context, count):
    """Return results of user-defined operators: linear ones, and functions of a factory."""
    x = torch.randn(50, dtype=torch.complex128, generator=torch.Generator().manual_seed(1))
    blurs = distribute([Blur(1 + number) for number in range(count)], context)
    functions = distribute(sines, context, count=count, shared=0.5)
    free = x.real.clone().requires_grad_()
    sum(y.square().sum() for y in functions(free)).backward()
    matrix = blurs.as_scipy(x)
    data = matrix @ x.numpy()
    return {
        "blurred": torch.stack(blurs(x)),
        "lsqr": torch.from_numpy(scipy.sparse.linalg.lsqr(matrix, data, iter_lim=5)[0]),
        "deblurred": blurs.pseudoinverse(blurs(x), tolerance=1e-12),
        "norm": torch.tensor(blurs.norm(x), dtype=torch.float64),
        "sines": torch.stack(functions(x.real)),
        "gradient": free.grad,
    }


def average(image, reach, axes=2):
    """Return moving averages over `reach` points on each side, added up in a fixed order."""
    for axis in range(image.ndim - axes, image.ndim):
        size, total, count = image.shape[axis], torch.zeros_like(image), torch.zeros_like(image)
        for shift in range(-reach, reach + 1):
            length = size - abs(shift)
            if length > 0:
                source = image.narrow(axis, max(0, shift), length)
                total.narrow(axis, max(0, -shift), length).add_(source)
                count.narrow(axis, max(0, -shift), length).add_(1.0)
        image = total / count
    return image


def try_tiles(context, count):
    """Return moving averages of an image of `count` tiles along an axis, tile by tile."""
    image = torch.randn(2, 3, 8 * count, 11, generator=torch.Generator().manual_seed(2))
    volume = image[..., None].expand(-1, -1, -1, -1, 5).double()
    ways = {"patch": 8, "overlap": 9}
    return {
        "overlap": distribute(average, context, **ways)(image, 12),
        "one at a time": distribute(average, context, batch=1, **ways)(image, 12),
        "basic": distribute(average, context, strategy="basic", patch=8)(image, 3),
        "volume": distribute(average, context, axes=3, **ways)(volume, 3, 3),
    }


KINDS = {"shots": try_shots, "others": try_others, "tiles": try_tiles}


def main(path):
    """Compute all results on all ranks, and save them on rank 0."""
    context = launch()
    kept = {}
    for count in (5, 2):
        for kind, found in KINDS.items():
            for name, value in found(context, count).items():
                parts = parts_of(value)
                kept[f"{count} {kind}: {name}"] = torch.cat([p.flatten() for p in parts.values()])
    same = context.all_gather({name: value.tolist() for name, value in kept.items()})
    assert all(rank == same[0] for rank in same)
    if context.is_root:
        torch.save(kept, path)
    context.close()


if __name__ == "__main__":
    main(sys.argv[1])
