"""Distributed operators on 1 to 4 ranks, whose results have the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcfwi.operators import Fidelity, MemberStack, Shots, distribute
from hpcfwi.parallel.context import Context
from tests.operators.examples import GRID, METHOD, make_model, make_survey
from tests.operators.programs import KINDS, Blur, sines
from tests.ranks import long_form, run_ranks
from tests.wave.examples import relative


@pytest.fixture(scope="module")
def serial():
    alone = Context.alone()
    return {
        f"{count} {kind}: {name}": value
        for count in (5, 2)
        for kind, found in KINDS.items()
        for name, value in found(alone, count).items()
    }


@pytest.mark.parametrize("n", [3, long_form(2), long_form(4)])
def test_results_on_several_ranks_have_bits_of_serial_results(n, serial, tmp_path):
    path = tmp_path / "found.pt"
    run_ranks(n, ["-m", "tests.operators.programs", str(path)], warm=True)
    found = torch.load(path)
    assert set(found) == set(serial)
    for name, value in serial.items():
        whole = value if isinstance(value, torch.Tensor) else value["vp"]
        assert torch.equal(found[name], whole.flatten()), name


def test_sums_over_members_match_plain_addition(serial):
    model, stack = make_model(), Shots(make_survey(), GRID, **METHOD)
    data = stack(model)
    terms = distribute(stack, Context.alone(), reduce=None).vjp(model, data)
    plain = sum(term["vp"] for term in terms)
    assert relative(serial["5 shots: vjp"]["vp"], plain) < 1e-12
    assert relative(serial["5 shots: mean vjp"]["vp"], plain / 5) < 1e-12
    assert relative(serial["5 shots: gradient"], 2.0 * plain) < 1e-12


def test_fidelity_is_half_squared_residual_and_its_gradient(serial):
    stack = Shots(make_survey(), GRID, **METHOD)
    data = stack(make_model())
    half = 0.5 * float((0.5 * data).square().sum())
    assert serial["5 shots: misfit"].item() == pytest.approx(half, rel=1e-12)
    assert serial["5 shots: mean misfit"].item() == pytest.approx(half / 5, rel=1e-12)
    slope = stack.vjp(make_model(), 0.5 * data)
    assert relative(serial["5 shots: slope"]["vp"], slope["vp"]) < 1e-12


def test_fidelity_accepts_any_differentiable_distance():
    functions = distribute(sines, Context.alone(), count=3, shared=0.5)
    x = torch.linspace(0.1, 1.0, 7, dtype=torch.float64)
    observed = [y * 0.8 for y in functions(x)]
    fidelity = Fidelity(functions, observed, lambda y, d: (y - d).abs().sum())
    free = x.clone().requires_grad_()
    total = sum((torch.sin(0.5 * (n + 1) * free) - observed[n]).abs().sum() for n in range(3))
    total.backward()
    assert fidelity.fn(x) == pytest.approx(float(total.detach()), rel=1e-12)
    assert relative(fidelity.grad(x), free.grad) < 1e-12


def test_pseudoinverse_inverts_user_defined_operators(serial):
    x = torch.randn(50, dtype=torch.complex128, generator=torch.Generator().manual_seed(1))
    assert relative(serial["5 others: deblurred"].real, x.real) < 1e-6
    assert relative(serial["5 others: deblurred"].imag, x.imag) < 1e-6


def test_norm_of_user_defined_operators_is_largest_singular_value(serial):
    matrices = [np.eye(50) + np.roll(np.eye(50), 1 + n, axis=0) for n in range(5)]
    largest = np.linalg.norm(np.vstack(matrices), 2)
    assert serial["5 others: norm"].item() == pytest.approx(largest, rel=1e-2)


def test_sum_is_accurate_for_members_of_very_different_magnitudes():
    scales = (0.0, 1e-30, 1e30)
    stack = MemberStack([_scaled(scale) for scale in scales])
    x = torch.rand(5, dtype=torch.float64)
    ys = [x, x, x]
    assert relative(stack.adjoint(ys), sum(scales) * x) < 1e-12


def _scaled(scale):
    blur = Blur(1)
    blur.A = blur.A_adjoint = lambda x: scale * x
    return blur


def test_object_that_is_no_operator_is_refused():
    alone = Context.alone()
    with pytest.raises(TypeError, match="found 5; expected a stack, a list of operators"):
        distribute(5, alone)
    with pytest.raises(TypeError, match="found 'a' in a stack; expected apply and adjoint"):
        distribute(["a"], alone)(torch.zeros(3))


def test_empty_stack_and_unknown_options_are_refused():
    alone = Context.alone()
    with pytest.raises(ValueError, match="a stack has no members"):
        distribute([], alone)
    with pytest.raises(ValueError, match="gather is 'all'; expected concatenated, naive"):
        distribute([Blur(1)], alone, gather="all")
    with pytest.raises(ValueError, match="reduce is 'max'; expected 'sum', 'mean' or None"):
        distribute([Blur(1)], alone, reduce="max")


def test_missing_adjoint_input_or_reduction_is_refused():
    alone = Context.alone()
    with pytest.raises(TypeError, match="member 0 of a stack has no adjoint"):
        distribute([torch.sin], alone).adjoint([torch.zeros(3)])
    with pytest.raises(TypeError, match="no input was given"):
        distribute([Blur(1)], alone).norm()
    with pytest.raises(ValueError, match="the stack's reduce is None"):
        Fidelity(distribute([Blur(1)], alone, reduce=None), [torch.zeros(3)])


UNEQUAL = """
import torch
from hpcfwi.operators import distribute
from hpcfwi.parallel.launch import launch
context = launch()
pads = [lambda x, n=n: torch.cat([x, x[:n]]) for n in range(3)]
x = torch.arange(4.0)
for gather in ("concatenated", "naive", "broadcast"):
    ys = distribute(pads, context, gather=gather)(x)
    assert [y.tolist() for y in ys] == [pad(x).tolist() for pad in pads], ys
types = [lambda x, d=d: x.to(d) for d in (torch.float32, torch.float64)]
for gather in ("naive", "broadcast"):
    ys = distribute(types, context, gather=gather)(x)
    assert [y.dtype for y in ys] == [torch.float32, torch.float64], ys
try:
    distribute(types, context)(x)
except ValueError as error:
    print(error)
context.close()
"""


def test_outputs_may_have_different_shapes_but_different_types_need_naive_or_broadcast():
    done = run_ranks(2, UNEQUAL, warm=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all("outputs of 2 types" in line and "gather='broadcast'" in line for line in lines)
