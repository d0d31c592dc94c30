"""deepinv on ranks: the results of its own stacks, with the same bits on any number of ranks."""

from __future__ import annotations

import pytest
import torch

from hpcfwi.operators import Shots
from hpcfwi.parallel.context import Context
from tests.operators.examples import GRID, METHOD, make_model, make_survey
from tests.ranks import run_ranks
from tests.wave.examples import relative

try:
    import deepinv
except (ImportError, RuntimeError) as error:
    pytest.skip(f"deepinv cannot be imported: {error}", allow_module_level=True)

from hpcfwi.interop.deepinv import as_physics, distribute
from tests.interop.programs import (
    make_fidelities,
    make_images,
    make_physics,
    try_all,
    try_ranks,
    try_shots,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
ALONE = Context.alone()


@pytest.fixture(scope="module")
def found():
    stacks = {f"{count}: {n}": v for count in (5, 2) for n, v in try_ranks(ALONE, count).items()}
    return stacks | {f"shots: {name}": value for name, value in try_shots(ALONE).items()}


@pytest.mark.parametrize("count", [5, 2])
def test_distributed_physics_and_fidelity_match_stacks_of_deepinv(count, found):
    physics = deepinv.physics.StackedLinearPhysics([make_physics(n) for n in range(count)])
    fidelity = deepinv.optim.StackedPhysicsDataFidelity(make_fidelities(count))
    # deepinv adds a small term to the matrix that it inverts, and starts power iterations with
    # other random numbers
    loose = {"A_dagger": 1e-6, "compute_norm": 1e-4, "compute_sqnorm": 1e-4}
    for name, value in try_all(physics, fidelity, lambda thing: thing).items():
        assert relative(found[f"{count}: {name}"], value) < loose.get(name, 1e-12), name


@pytest.mark.long
@pytest.mark.parametrize("n", [3])
def test_results_on_several_ranks_have_bits_of_serial_results(n, found, tmp_path):
    path = tmp_path / "found.pt"
    run_ranks(n, ["-m", "tests.interop.programs", str(path)], warm=("deepinv",))
    ranks = torch.load(path)
    assert set(ranks) == set(found)
    for name, value in found.items():
        assert torch.equal(ranks[name], value), name


def test_shots_as_physics_act_on_images(found):
    shots, model = Shots(make_survey(), GRID, **METHOD), make_model()
    data = shots(model)
    assert torch.equal(found["shots: data"], data[None])
    assert torch.equal(found["shots: vjp"], shots.vjp(model, data)["vp"][None, None])
    assert torch.equal(found["shots: adjoint"], found["shots: vjp"])
    half = 0.5 * float((0.5 * data).square().sum())
    assert found["shots: fn"].item() == pytest.approx(half, rel=1e-12)
    assert relative(found["shots: grad"], 0.5 * found["shots: vjp"]) < 1e-12


def test_gradient_descent_of_deepinv_reduces_residual_of_linearized_shots(found):
    born = Shots(make_survey(), GRID, **METHOD).linearize(make_model())
    image = make_model()["vp"][None, None]
    physics = as_physics(born)
    aim = physics.A(image)
    start, end = physics.A_adjoint(aim), found["shots: descend"]
    assert (physics.A(end) - aim).norm() < (physics.A(start) - aim).norm()


def test_noise_of_distributed_physics_is_that_of_its_members():
    noisy = [
        deepinv.physics.Denoising(deepinv.physics.GaussianNoise(0.1 * (n + 1))) for n in range(3)
    ]
    physics, x = distribute(noisy, ALONE), torch.zeros(1, 1, 64, 64)
    assert [float(y.std()) for y in physics(x)] == pytest.approx([0.1, 0.2, 0.3], rel=0.1)
    assert not any(y.any() for y in physics.A(x))


def test_denoiser_gets_the_noise_level_of_each_image():
    class Scale(deepinv.models.Denoiser):
        def forward(self, x, sigma):
            return x * self._handle_sigma(sigma, reference_tensor=x)

    x, sigma = make_images(), torch.tensor([1.0, 2.0])
    tiled = distribute(Scale(), ALONE, patch=4, overlap=1)
    assert torch.equal(tiled(x, sigma), x * sigma[:, None, None, None])
    assert torch.equal(tiled(x, 0.5), x * 0.5)


def test_nonlinear_operators_become_physics_without_adjoint():
    square = deepinv.physics.Physics(A=torch.square)
    x = make_images()
    physics = distribute([square, square], ALONE)
    assert not isinstance(physics, deepinv.physics.LinearPhysics)
    assert relative(physics.A_vjp(x, [x, x]), 4.0 * x * x) < 1e-12


def test_one_fidelity_for_all_members_equals_a_list_of_equal_ones():
    x, physics = make_images(), distribute(make_physics, ALONE, count=2)
    y = physics.A(x.flip(3))
    one = distribute(deepinv.optim.L2(), ALONE)
    each = distribute([deepinv.optim.L2(), deepinv.optim.L2()], ALONE)
    assert torch.equal(one.grad(x, y, physics), each.grad(x, y, physics))
    assert torch.equal(one.fn(x, y, physics), each(x, y, physics))


def test_unsupported_object_or_reduction_is_refused():
    with pytest.raises(TypeError, match="found 5; expected physics, a data fidelity, a prior"):
        distribute(5, ALONE)
    with pytest.raises(ValueError, match="the stack's reduce is None; expected 'sum' or 'mean'"):
        distribute([make_physics(0)], ALONE, reduce=None)
