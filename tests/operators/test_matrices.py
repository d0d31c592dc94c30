"""Stacks as other people's linear operators: their solvers find known answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import lsmr, lsqr, svds

from hpcfwi.model import Model
from hpcfwi.operators import MemberStack, Shots, distribute
from hpcfwi.operators.vectors import randomize
from hpcfwi.parallel.context import Context
from tests.operators.examples import GRID, METHOD, make_model, make_survey
from tests.operators.programs import Blur
from tests.ranks import run_ranks
from tests.wave.examples import relative


@pytest.fixture(scope="module")
def born():
    return Shots(make_survey(shots=2), GRID, **METHOD).linearize(make_model())


def test_they_act_on_flat_vectors_as_the_stack_on_models_and_traces(born):
    matrix, x = born.as_scipy(), randomize(born.model)
    data = born(x)
    assert matrix.shape == (data.numel(), 240)
    assert matrix.dtype == np.float64
    np.testing.assert_array_equal(matrix @ x["vp"].numpy().ravel(), data.numpy().ravel())
    back = matrix.T @ data.numpy().ravel()
    np.testing.assert_array_equal(back, born.adjoint(data)["vp"].numpy().ravel())


def test_scipys_largest_singular_value_is_the_norm(born):
    (largest,) = svds(born.as_scipy(), k=1, return_singular_vectors=False)
    assert born.norm(tolerance=1e-8) == pytest.approx(largest, rel=1e-4)


def test_steps_of_scipys_lsqr_are_those_of_the_pseudoinverse(born):
    """Both are conjugate gradients on the normal equations."""
    data = born(randomize(born.model))
    found = lsqr(born.as_scipy(), data.numpy().ravel(), atol=0.0, btol=0.0, iter_lim=15)[0]
    ours = born.pseudoinverse(data, tolerance=0.0, iterations=15)
    assert relative(torch.from_numpy(found).reshape(GRID.shape), ours["vp"]) < 1e-6


def test_scipys_lsmr_explains_the_data(born):
    data = born(randomize(born.model))
    found = lsmr(born.as_scipy(), data.numpy().ravel(), atol=0.0, btol=0.0, maxiter=100)[0]
    there = born(Model(GRID, {"vp": torch.from_numpy(found).reshape(GRID.shape)}))
    assert relative(there, data) < 0.01


def test_members_of_several_shapes_and_complex_numbers_lie_one_after_the_other():
    class Head(Blur):
        """The first samples."""

        def A(self, x):  # noqa: N802
            return x[: self.shift]

        def A_adjoint(self, y):  # noqa: N802
            return torch.cat([y, y.new_zeros(6 - len(y))])

    stack = distribute([Head(2), Head(6)], Context.alone(), gather="broadcast")
    x = torch.arange(6) + 1j * torch.ones(6, dtype=torch.float64)
    matrix = stack.as_scipy(x)
    assert matrix.shape == (8, 6)
    np.testing.assert_array_equal(matrix @ x.numpy(), np.concatenate([x[:2], x]))
    found = lsqr(matrix, matrix @ x.numpy())[0]
    np.testing.assert_allclose(found, x.numpy(), atol=1e-6)


def test_what_no_solver_can_work_with_is_refused(born):
    with pytest.raises(ValueError, match="gather is False and reduce 'sum'; expected all outputs"):
        born.on(born.context, gather=False).as_scipy()
    with pytest.raises(TypeError, match="MemberStack does not know what its inputs look like"):
        MemberStack([Blur(1)]).as_scipy()


RANKS = """
import torch
from scipy.sparse.linalg import lsqr
import hpcfwi
from hpcfwi.operators import Shots, distribute
from hpcfwi.operators.vectors import randomize
from tests.operators.examples import GRID, METHOD, make_model, make_survey
with hpcfwi.launch() as context:
    shots = distribute(Shots(make_survey(shots=2), GRID, **METHOD), context)
    born = shots.linearize(make_model())
    data = born(randomize(born.model)).numpy().ravel()
    found = lsqr(born.as_scipy(), data, iter_lim=5)[0]
    print(found.tobytes().hex()[:4000])
"""


def test_on_three_ranks_they_find_the_bits_of_one():
    alone, three = (run_ranks(n, RANKS, warm=True) for n in (1, 3))
    assert alone.returncode == three.returncode == 0, three.stderr
    assert three.stdout.splitlines() == alone.stdout.splitlines() * 3


def test_pylops_solves_with_them(born):
    pylops = pytest.importorskip("pylops")
    data = born(randomize(born.model))
    matrix = born.as_pylops()
    assert pylops.utils.dottest(matrix, *matrix.shape, rtol=1e-10)
    found = pylops.optimization.basic.cgls(matrix, data.numpy().ravel(), niter=10, tol=0.0)[0]
    expected = lsqr(born.as_scipy(), data.numpy().ravel(), atol=0.0, btol=0.0, iter_lim=10)[0]
    assert relative(torch.from_numpy(found), torch.from_numpy(expected)) < 1e-6
    sparse = pylops.optimization.sparsity.fista(matrix, data.numpy().ravel(), niter=5, eps=1e-12)[0]
    assert np.linalg.norm(matrix @ sparse - data.numpy().ravel()) < float(data.norm())


def test_without_pylops_one_sentence_says_what_to_install(born, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pylops", None)
    with pytest.raises(ImportError, match=r"pip install 'hpcfwi\[pylops\]'"):
        born.as_pylops()
