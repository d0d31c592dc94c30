"""First-order optimizers, which take the steps of torch with fixed cells and bounds."""

from __future__ import annotations

import subprocess
import sys
from copy import deepcopy
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.config.inversion import InversionSection
from hpcfwi.inversion.objective import Evaluation, Times
from hpcfwi.inversion.optimizers import Adam
from hpcfwi.inversion.parameters import Limits
from hpcfwi.model import Grid, Model
from hpcfwi.parallel.shards import LINE, WHOLE, Shard, Shards
from tests.parallel.together import on_ranks

SHAPE = (6, 7)
ADAM = {"name": "adam", "lr": 25.0, "eps": 1e-22, "betas": [0.8, 0.99]}
SGD = {"name": "sgd", "lr": 3.0, "momentum": 0.5}
WATER = np.zeros(SHAPE, dtype=bool)
WATER[:2] = True


class Updater:
    """A model and the optimizer that updates it by given gradients."""

    def __init__(self, initial, fixed, section, shards=WHOLE):
        grid = Grid(initial.shape, (10.0, 10.0), (0.0, 0.0))
        self.model = Model(grid, {"vp": torch.tensor(initial)})
        limits = Limits(self.model, {"vp": torch.tensor(fixed)}, section.bounds_by_name)
        self.optimizer = section.optimizer.bind()(self.model, limits, shards)
        self.precondition = lambda gradient: gradient

    @property
    def vp(self):
        return self.model["vp"]

    def step(self, gradient):
        evaluate = Mock(wraps=evaluator(gradient), precondition=self.precondition)
        before = self.model
        self.model, evaluation = self.optimizer.step(before, evaluate)
        evaluate.assert_called_once_with(before)
        assert evaluation.misfit == 1.0


def evaluator(gradient):
    """Return an evaluator with this gradient, which is not preconditioned, for each model."""

    def evaluate(model):
        found = Model(model.grid, {"vp": gradient})
        return Evaluation(1.0, 0.0, found, {}, (), {}, Times(), 1)

    evaluate.precondition = lambda gradient: gradient
    return evaluate


def make_updater(optimizer, fixed=None, bounds=None):
    section = InversionSection.model_validate(
        {"epochs": 1, "batch": 1, "optimizer": optimizer, "bounds": bounds}
    )
    initial = np.random.default_rng(1).uniform(1500, 3500, SHAPE).astype(np.float32)
    fixed = np.zeros(SHAPE, dtype=bool) if fixed is None else fixed
    return initial, Updater(initial, fixed, section)


def gradients(n, scale=1.0):
    generator = torch.Generator().manual_seed(2)
    return [scale * torch.randn(SHAPE, generator=generator) for _ in range(n)]


def make_torch_method(optimizer, model):
    method = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer["name"]]
    return method([model], **{key: value for key, value in optimizer.items() if key != "name"})


@pytest.mark.parametrize(
    "optimizer", [ADAM, SGD, {"name": "adam", "lr": 1.0}, {"name": "sgd", "lr": 1.0}]
)
def test_steps_match_optimizers_of_torch(optimizer):
    initial, updater = make_updater(optimizer)
    model = torch.tensor(initial)
    own = make_torch_method(optimizer, model)
    for gradient in gradients(4):
        model.grad = gradient.clone()
        own.step()
        updater.step(gradient)
        assert torch.equal(updater.vp, model)
    assert not np.array_equal(updater.vp.numpy(), initial)


@given(st.sampled_from([ADAM, SGD]), st.sampled_from([1e-3, 1.0, 1e3]), st.integers(1, 5))
def test_water_keeps_its_bits_and_other_cells_stay_within_bounds(optimizer, scale, n):
    initial, updater = make_updater(optimizer, WATER, [1600.0, 3400.0])
    for gradient in gradients(n, scale):
        updater.step(gradient)
        vp = updater.vp.numpy()
        np.testing.assert_array_equal(vp[WATER], initial[WATER])
        assert vp[~WATER].min() >= 1600.0
        assert vp[~WATER].max() <= 3400.0


def test_gradient_in_fixed_water_has_no_effect():
    runs = []
    for scale in (1.0, 1e6):
        _, updater = make_updater(ADAM, WATER)
        for gradient in gradients(3):
            gradient[WATER] *= scale
            updater.step(gradient)
        runs.append(updater.vp)
    assert torch.equal(*runs)


@pytest.mark.parametrize("optimizer", [ADAM, SGD])
def test_steps_continue_from_a_state_to_the_bit(optimizer):
    _, whole = make_updater(optimizer, WATER)
    _, continued = make_updater(optimizer, WATER)
    first, second, third, fourth = gradients(4)
    for gradient in (first, second):
        whole.step(gradient)
    state = deepcopy(whole.optimizer.state())  # a checkpoint is a copy
    continued.model = whole.model
    continued.optimizer.restore(state)
    for gradient in (third, fourth):
        whole.step(gradient)
        continued.step(gradient)
    assert torch.equal(whole.vp, continued.vp)


@pytest.mark.parametrize("optimizer", [ADAM, SGD])
def test_later_steps_do_not_change_a_state(optimizer):
    _, updater = make_updater(optimizer, WATER)
    first, second, third = gradients(3)
    updater.step(first)
    state = updater.optimizer.state()
    copy = deepcopy(state)
    updater.step(second)
    updater.optimizer.restore(state)
    updater.step(third)
    for name, array in state["state"][0].items():
        assert torch.equal(array, copy["state"][0][name]), name


def rename(memory):
    memory["exp_avg_sr"] = memory.pop("exp_avg_sq")


WRONG = {
    "a name": rename,
    "a shape": lambda memory: memory.update(exp_avg=torch.zeros(3)),
    "a type": lambda memory: memory.update(exp_avg=torch.zeros(SHAPE, dtype=torch.int32)),
    "a number in place of an array": lambda memory: memory.update(exp_avg=1.0),
    "a negative square": lambda memory: memory["exp_avg_sq"].sub_(1.0),
    "a negative step": lambda memory: memory["step"].fill_(-1.0),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_state_of_adam_is_refused(wrong):
    _, updater = make_updater(ADAM)
    updater.step(gradients(1)[0])
    state = deepcopy(updater.optimizer.state())
    updater.optimizer.restore(state)
    WRONG[wrong](state["state"][0])
    with pytest.raises((ValueError, TypeError, LookupError, AttributeError)):
        updater.optimizer.restore(state)


def test_state_is_restored_to_the_device_of_the_model():
    _, updater = make_updater(ADAM)
    updater.step(gradients(1)[0])
    kept = updater.optimizer.state()
    grid = Grid(SHAPE, (10.0, 10.0), (0.0, 0.0))
    elsewhere = Model(grid, {"vp": torch.zeros(SHAPE, device="meta")})
    optimizer = Adam(elsewhere, Limits(elsewhere, {}, {}), lr=1.0)
    optimizer.restore(kept)
    (memory,) = optimizer.state()["state"].values()
    devices = {name: array.device.type for name, array in memory.items()}
    assert devices == {"exp_avg": "meta", "exp_avg_sq": "meta", "step": "cpu"}


LARGE = (31, 47)


def step_in_shards(optimizer, context, n):
    """Return an updater after `n` gradients; its rank keeps a shard of the state."""
    section = InversionSection.model_validate({"epochs": 1, "batch": 1, "optimizer": optimizer})
    initial = np.random.default_rng(1).uniform(1500, 3500, LARGE).astype(np.float32)
    shards = Shards(context) if section.optimizer.sharded else WHOLE
    updater = Updater(initial, np.zeros(LARGE, dtype=bool), section, shards)
    generator = torch.Generator().manual_seed(2)
    for _ in range(n):
        updater.step(torch.randn(LARGE, generator=generator))
    return updater


@pytest.mark.parametrize("optimizer", [ADAM, SGD])
def test_sharded_steps_match_whole_steps_to_the_bit(optimizer):
    (whole,) = on_ranks(1, lambda context: step_in_shards(optimizer, context, 3))
    for size in (1, 2, 3, 5):
        sharded = {**optimizer, "sharded": True}
        for found in on_ranks(size, lambda c, o=sharded: step_in_shards(o, c, 3)):
            assert torch.equal(found.vp, whole.vp)


def test_rank_stores_only_its_shard_of_the_state():
    cells = LARGE[0] * LARGE[1]
    for size in (1, 2, 3, 5):
        sharded = {**ADAM, "sharded": True}
        for rank in on_ranks(size, lambda c, o=sharded: step_in_shards(o, c, 1)):
            (memory,) = rank.optimizer.state()["state"].values()
            kept = [memory[name] for name in ("exp_avg", "exp_avg_sq")]
            shards = [array.values if isinstance(array, Shard) else array for array in kept]
            bytes_kept = sum(shard.untyped_storage().nbytes() for shard in shards)
            assert bytes_kept <= 2 * 4 * (cells / size + LINE)
            assert size > 1 or bytes_kept == rank.optimizer.cost(1).remembered * cells
            for own, shard in zip(rank.optimizer._memories[0].values(), shards, strict=False):
                assert own.untyped_storage().nbytes() == shard.untyped_storage().nbytes()


def test_first_order_step_does_not_import_torch_dynamo():
    steps = (
        "import sys; from tests.inversion.optimizers.test_gradient import *\n"
        "make_updater(ADAM)[1].step(gradients(1)[0])\n"
        "print('torch._dynamo' in sys.modules)"
    )
    command = [sys.executable, "-c", steps]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_preconditioner_does_not_mix_fixed_and_free_cells():
    initial = np.full(SHAPE, 2000.0, dtype=np.float32)
    updater = Updater(initial, WATER, InversionSection.model_validate(
        {"epochs": 1, "batch": 1, "optimizer": {"name": "sgd", "lr": 1.0}}
    ))  # fmt: skip
    updater.precondition = lambda gradient: gradient.map(lambda a: a.mean().expand(a.shape))
    gradient = torch.ones(SHAPE)
    gradient[:2] = -1e6
    updater.step(gradient)
    share = 1.0 - WATER.mean()
    np.testing.assert_allclose(updater.vp[2:], 2000.0 - share, rtol=1e-6)
    assert (updater.vp[:2] == 2000.0).all()


def test_adam_steps_by_lr_for_gradients_far_below_1e_8():
    initial = Model(Grid((1, 2), (1.0, 1.0), (0.0, 0.0)), {"vp": torch.full((1, 2), 2000.0)})
    limits = Limits(initial, {"vp": torch.zeros(1, 2, dtype=torch.bool)}, {})
    gradient = Model(initial.grid, {"vp": torch.tensor([[1e-15, -1e-15]])})
    evaluate = Mock(return_value=Mock(gradient=gradient), precondition=lambda found: found)
    found, _ = Adam(initial, limits, lr=25.0).step(initial, evaluate)
    assert found["vp"].tolist() == [pytest.approx([1975.0, 2025.0])]
