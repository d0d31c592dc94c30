"""The program of the ranks in the tests of the adapters for deepinv."""

from __future__ import annotations

import sys

import deepinv
import torch

from hpcfwi.interop.deepinv import as_physics, distribute
from hpcfwi.operators import Shots
from hpcfwi.parallel.launch import launch
from tests.operators.examples import GRID, METHOD, make_model, make_survey

STEPS = {"max_iter": 15, "early_stop": False}
TILES = {"patch": 8, "overlap": 2}


def make_physics(number, device=None, shared=None):  # noqa: ARG001
    """Return a well-conditioned blur in double precision, whose width depends on `number`."""
    filters = 0.05 * torch.rand(
        (1, 1, 3, 3 + 2 * (number % 2)),
        generator=torch.Generator().manual_seed(number),
        dtype=torch.float64,
    )
    filters[..., 1, filters.shape[-1] // 2] += 0.8
    return deepinv.physics.Blur(filters, padding="circular")


def make_images():
    """Return two images of one channel."""
    return torch.rand(2, 1, 16, 14, dtype=torch.float64, generator=torch.Generator().manual_seed(9))


def make_fidelities(count):
    """Return a fidelity for each of the physics."""
    return [deepinv.optim.L2(sigma=1.0 + number) for number in range(count)]


def try_all(physics, fidelity, tile):
    """Return the results of all methods of a stacked physics and its fidelity.

    `tile` makes the denoiser and the priors from those of deepinv.
    """
    x = make_images()
    y, start = physics.A(x), x.flip(2)
    smooth = tile(deepinv.models.MedianFilter(kernel_size=3))
    sparse = deepinv.optim.L1Prior()
    power = {"tol": 1e-9, "max_iter": 1000, "verbose": False}
    step = {"stepsize": 0.2, **STEPS}
    descend = deepinv.optim.GD(data_fidelity=fidelity, prior=deepinv.optim.ZeroPrior(), **step)
    fista = deepinv.optim.FISTA(data_fidelity=fidelity, prior=sparse, lambda_reg=0.01, **step)
    plug = deepinv.optim.PnP(smooth)
    denoise = deepinv.optim.PGD(data_fidelity=fidelity, prior=plug, sigma_denoiser=0.1, **step)
    free = x.clone().requires_grad_()
    sum(part.square().sum() for part in physics.A(free)).backward()
    return {
        "A": torch.stack([*y]),
        "measured": torch.stack([*physics(x)]),
        "A_adjoint": physics.A_adjoint(y),
        "A_vjp": physics.A_vjp(start, y),
        "A_adjoint_A": physics.A_adjoint_A(x),
        "A_dagger": physics.A_dagger(y, solver="CG", tol=1e-10, max_iter=200),
        "compute_norm": physics.compute_norm(x[:1], **power, squared=False),
        "compute_sqnorm": physics.compute_sqnorm(x[:1], **power),
        "prox_l2": physics.prox_l2(start, y, 0.5, tol=1e-10, max_iter=200),
        "autograd": free.grad,
        "fn": fidelity.fn(start, y, physics),
        "grad": fidelity.grad(start, y, physics),
        "prox": fidelity.prox(start, y, physics, gamma=0.1, max_iter_inter=5),
        "smooth": smooth(x, 0.1),
        "L1 prox": tile(sparse).prox(x, gamma=0.3),
        "L1 grad": tile(deepinv.optim.Tikhonov()).grad(x),
        "gradient descent": descend(y, physics),
        "FISTA": fista(y, physics),
        "plug and play": denoise(y, physics),
    }


def try_ranks(context, count):
    """Return the results for physics, fidelity, denoiser and priors made by `distribute`."""
    physics = distribute(make_physics, context, count=count)
    fidelity = deepinv.optim.StackedPhysicsDataFidelity(make_fidelities(count))
    return try_all(
        physics, distribute(fidelity, context), lambda thing: distribute(thing, context, **TILES)
    )


def try_shots(context):
    """Return the results of shots and their linearization as physics."""
    shots, model = Shots(make_survey(), GRID, **METHOD).on(context), make_model()
    image = model["vp"][None, None]
    physics, linear = as_physics(shots, model), as_physics(shots.linearize(model))
    data, fidelity = physics(image), deepinv.optim.L2()
    scattered = linear.A(image)
    step = 1.0 / linear.compute_sqnorm(image, max_iter=5).item()
    descend = deepinv.optim.GD(
        data_fidelity=fidelity, prior=deepinv.optim.ZeroPrior(), stepsize=step, max_iter=3
    )
    return {
        "data": data,
        "vjp": physics.A_vjp(image, data),
        "adjoint": linear.A_adjoint(data),
        "descend": descend(scattered, linear),
        "fn": distribute(fidelity, context).fn(image, 0.5 * data, physics),
        "grad": distribute(fidelity, context).grad(image, 0.5 * data, physics),
    }


def main(path):
    """Compute all results on all ranks, and save them on rank 0."""
    context = launch()
    found = {f"{count}: {n}": v for count in (5, 2) for n, v in try_ranks(context, count).items()}
    found |= {f"shots: {name}": value for name, value in try_shots(context).items()}
    same = context.all_gather({name: value.tolist() for name, value in found.items()})
    assert all(rank == same[0] for rank in same)
    if context.is_root:
        torch.save(found, path)
    context.close()


if __name__ == "__main__":
    main(sys.argv[1])
