"""Stacks as matrices for the solvers of SciPy and PyLops, against known solutions."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
import torch

from hpcfwi.model import Model
from hpcfwi.operators import MemberStack, Shots, distribute
from hpcfwi.operators.vectors import randomize
from hpcfwi.parallel.context import Context
from tests.operators.examples import GRID, METHOD, make_model, make_survey
from tests.operators.programs import Blur
from tests.ranks import run_ranks

LIKE = torch.zeros(5, 4, dtype=torch.float64)


class Dense:
    """A user-defined matrix that acts on flattened images."""

    def __init__(self, seed, rows=12, dtype=torch.float64):
        generator = torch.Generator().manual_seed(seed)
        self.matrix = torch.randn(rows, 20, generator=generator, dtype=dtype)

    def apply(self, x):
        return self.matrix @ x.flatten().to(self.matrix)

    def adjoint(self, y):
        return (self.matrix.conj().T @ y).reshape(5, 4)


def whole(members):
    return torch.cat([member.matrix for member in members]).numpy()


@pytest.fixture
def members():
    return [Dense(0), Dense(1), Dense(2, rows=3)]


def test_products_of_stack_matrix_match_matrices_of_members(members):
    found = MemberStack(members).as_scipy(LIKE)
    expected = whole(members)
    assert found.shape == expected.shape
    assert found.dtype == np.float64
    np.testing.assert_allclose(found @ np.eye(20), expected, atol=1e-12)
    np.testing.assert_allclose(found.H @ np.eye(27), expected.T, atol=1e-12)


def test_complex_members_make_a_complex_matrix():
    members = [Dense(3, dtype=torch.complex128)]
    found = MemberStack(members).as_scipy(LIKE.to(torch.complex128))
    assert found.dtype == np.complex128
    np.testing.assert_allclose(
        found.H @ (1j * np.eye(12)), 1j * whole(members).conj().T, atol=1e-12
    )


def test_adjoint_of_complex_outputs_is_real_for_real_inputs():
    members = [Dense(3, dtype=torch.complex128)]
    y = np.arange(12) * (1 - 2j)
    found = MemberStack(members).as_scipy(LIKE).rmatvec(y)
    np.testing.assert_allclose(found, (whole(members).conj().T @ y).real, atol=1e-11)


@pytest.mark.parametrize(("name", "limit"), [("lsqr", "iter_lim"), ("lsmr", "maxiter")])
def test_solvers_of_scipy_find_the_least_squares_solution(name, limit, members):
    data, solve = np.random.default_rng(0).normal(size=27), getattr(scipy.sparse.linalg, name)
    found = solve(
        MemberStack(members).as_scipy(LIKE), data, atol=1e-14, btol=1e-14, **{limit: 200}
    )[0]
    expected = np.linalg.lstsq(whole(members), data, rcond=None)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_scipy_eigsh_finds_largest_singular_values(members):
    matrix = MemberStack(members).as_scipy(LIKE)
    values = scipy.sparse.linalg.eigsh(
        matrix.H * matrix, 3, v0=np.ones(20), return_eigenvectors=False
    )
    expected = np.linalg.svd(whole(members))[1][:3] ** 2
    np.testing.assert_allclose(np.sort(values)[::-1], expected, rtol=1e-10)


def test_matrix_of_linearized_shots_needs_no_example_input():
    born = Shots(make_survey(shots=2), GRID, **METHOD).linearize(make_model())
    matrix, x = born.as_scipy(), randomize(born.model)
    assert matrix.shape == (2 * 4 * 60, 12 * 20)
    np.testing.assert_array_equal(matrix @ x["vp"].numpy().ravel(), born(x).numpy().ravel())
    back = Model(GRID, {"vp": torch.from_numpy((matrix.H @ np.ones(480)).reshape(GRID.shape))})
    assert torch.equal(back["vp"], born.adjoint(torch.ones_like(born(x)))["vp"])


def test_pylops_cgls_finds_least_squares_solution(members):
    pylops = pytest.importorskip("pylops")
    operator = MemberStack(members).as_pylops(LIKE)
    assert operator.dims == (5, 4)
    data = np.random.default_rng(0).normal(size=27)
    start = np.zeros(20)
    found = pylops.optimization.basic.cgls(operator, data, start, niter=60, tol=0.0)[0]
    expected = np.linalg.lstsq(whole(members), data, rcond=None)[0]
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-9, atol=1e-9)


def test_pylops_finds_regularized_least_squares_solution(members):
    pylops = pytest.importorskip("pylops")
    operator = MemberStack(members[:2]).as_pylops(LIKE)
    assert operator.dimsd == (2, 12)
    data, rough = np.random.default_rng(0).normal(size=24), pylops.FirstDerivative((5, 4), axis=1)
    found = pylops.optimization.leastsquares.regularized_inversion(
        operator, data, [rough], epsRs=[0.5], iter_lim=200, atol=1e-14, btol=1e-14
    )[0]
    stacked = np.vstack([whole(members[:2]), 0.5 * rough.todense()])
    expected = np.linalg.lstsq(stacked, np.append(data, np.zeros(20)), rcond=None)[0]
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-8, atol=1e-8)


def test_pylops_fista_finds_sparse_solution(members):
    pylops = pytest.importorskip("pylops")
    operator, sparse = MemberStack(members).as_pylops(LIKE), np.zeros(20)
    sparse[[3, 11]] = 1.0, -2.0
    step = 1.0 / np.linalg.norm(whole(members), 2) ** 2
    data = whole(members) @ sparse
    found = pylops.optimization.sparsity.fista(
        operator, data, niter=3000, eps=1e-6, alpha=step, tol=0.0
    )[0]
    np.testing.assert_allclose(found.ravel(), sparse, atol=1e-5)


def test_stack_that_is_no_matrix_is_refused():
    blurs, alone = [Blur(1)], Context.alone()
    with pytest.raises(TypeError, match="no input was given"):
        distribute(blurs, alone).as_scipy()
    with pytest.raises(ValueError, match="a solver needs complete vectors on every rank"):
        distribute(blurs, alone, gather=False).as_scipy(LIKE)
    with pytest.raises(TypeError, match="MemberStack is not linear; expected a linear stack"):
        distribute([torch.sin], alone).as_scipy(LIKE)
    with pytest.raises(TypeError, match="Shots is not linear; expected a linear stack"):
        Shots(make_survey(), GRID, **METHOD).as_scipy(make_model())


APART = """
import numpy as np, torch
from hpcfwi.operators import distribute
from hpcfwi.parallel.launch import launch
from tests.operators.programs import Blur
context = launch()
matrix = distribute([Blur(1), Blur(2)], context).as_scipy(torch.zeros(6, dtype=torch.float64))
assert np.array_equal(matrix @ np.ones(6), np.full(12, 2.0))
try:
    matrix @ np.full(6, context.rank)
except ValueError as error:
    print(error)
context.close()
"""


def test_different_vectors_on_ranks_are_an_error_on_all_ranks():
    done = run_ranks(2, APART, warm=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all("expected the same solver on all ranks" in line for line in lines)
