"""Every example runs unchanged, and its results are as it claims."""

from __future__ import annotations

from runpy import run_path

import matplotlib
import numpy as np
import pytest
import torch

from hpcfwi.model import Model
from tests.ranks import ROOT, run_ranks

EXAMPLES = ROOT / "examples"


@pytest.fixture
def run(monkeypatch):
    """Return a function that runs an example and returns its variables."""
    monkeypatch.setattr(matplotlib, "rcParams", matplotlib.rcParams.copy())
    matplotlib.use("agg")
    yield lambda name: run_path(str(EXAMPLES / f"{name}.py"))
    # Imported here, since it is slow and examples import it anyway
    from matplotlib import pyplot

    pyplot.close("all")


ON_RANKS = """
import sys
from runpy import run_path
import matplotlib
import torch
matplotlib.use("agg")
kept = {}
for script in sys.argv[2:]:
    left = run_path(script)
    kept[script] = {n: v for n, v in left.items() if isinstance(v, torch.Tensor | list)}
if left["context"].is_root:
    torch.save([*kept.values()], sys.argv[1])
"""


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory):
    """Return the tensors and lists of examples on rank 0, by number of ranks."""

    def run(n):
        path = tmp_path_factory.mktemp("found") / "found.pt"
        names = ("denoiser", "data_parallel", "siren")
        scripts = [str(EXAMPLES / f"{name}.py") for name in names]
        done = run_ranks(n, ["-c", ON_RANKS, str(path), *scripts], warm=("torch._dynamo",))
        assert done.stdout.count(f"{n} ranks") == len(scripts)
        return torch.load(path)

    return {n: run(n) for n in (1, 4)}


def error(left, found):
    """Return the error of a model relative to that of the starting model."""
    true, start = left["true"], left["start"]
    return float((torch.as_tensor(found) - true).norm() / (start - true).norm())


def test_first_gradient_example_agrees_with_finite_differences(run):
    left = run("first_gradient")
    assert left["predicted"].item() == pytest.approx(left["measured"].item(), rel=0.01)


def test_adam_example_reduces_misfit_and_error(run):
    left = run("adam")
    assert left["misfits"][-1] < 0.05 * left["misfits"][0]
    assert error(left, left["vp"].detach()) < 0.9


def test_lbfgs_example_converges_if_scaled_and_stops_at_once_if_not(run):
    left = run("lbfgs")
    assert left["misfits"][-1] < 0.01 * left["misfits"][0]
    assert error(left, left["vp"]) < 0.7
    assert len(left["unscaled"]) == 1


def test_scipy_lbfgsb_example_stays_within_its_bounds(run):
    left = run("scipy_lbfgsb")
    assert left["found"].fun < 0.01
    assert error(left, left["vp"]) < 0.5
    assert left["vp"].min() >= 1800.0
    assert left["vp"].max() <= 2000.0


def test_lsqr_example_explains_data_and_improves_on_migration(run):
    left = run("lsqr")
    found = Model(left["grid"], {"vp": torch.from_numpy(left["solved"])})
    data = left["data"]
    explained = left["born"](found)
    assert (explained - data).square().sum() < 0.15 * data.square().sum()
    below, true = slice(8, None), left["reflectors"]
    alike = [
        np.corrcoef(left[name][below].ravel(), true[below].ravel())[0, 1]
        for name in ("migrated", "solved")
    ]
    assert alike[1] > alike[0] + 0.1


@pytest.mark.long
def test_denoiser_example_has_same_bits_on_four_ranks_and_reduces_error(on_ranks):
    (one, *_), (four, *_) = on_ranks[1], on_ranks[4]
    assert all(torch.equal(one[name], four[name]) for name in ("found", "plain"))
    assert error(one, one["found"]) < 0.95 * error(one, one["plain"])


@pytest.mark.long
def test_data_parallel_example_gives_same_model_on_four_ranks(on_ranks):
    (_, one, _), (_, four, _) = on_ranks[1], on_ranks[4]
    assert four["misfits"] == pytest.approx(one["misfits"], rel=1e-3)
    change = one["found"] - one["start"]
    assert (four["found"] - one["found"]).norm() < 1e-3 * change.norm()
    assert one["misfits"][-1] < 0.3 * one["misfits"][0]


@pytest.mark.long
def test_siren_example_takes_same_steps_on_four_ranks(on_ranks):
    (*_, one), (*_, four) = on_ranks[1], on_ranks[4]
    assert one["misfits"][-1] < 0.05 * one["misfits"][0]
    assert error(one, one["found"]) < 0.8
    assert four["misfits"][:5] == pytest.approx(one["misfits"][:5], rel=1e-3)
    assert four["misfits"][-1] < 0.05 * four["misfits"][0]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_deepinv_tv_example_reduces_total_variation_and_error(run):
    pytest.importorskip("deepinv")
    left = run("deepinv_tv")

    def variation(image):
        return float(image.diff(dim=0).abs().sum() + image.diff(dim=1).abs().sum())

    plain, found, body = (left[name] for name in ("plain", "found", "body"))
    assert variation(found) < 0.5 * variation(plain)
    assert (found - body).norm() < (plain - body).norm()


def test_pylops_example_has_exact_transpose_and_smoothing_reduces_error(run):
    pytest.importorskip("pylops")
    left = run("pylops_smooth")
    # The product with the data of the change itself is a sum of squares. It is never close to 0,
    # unlike the product of two random vectors in PyLops's `dottest`.
    operator, change = left["Op"], np.random.default_rng(1).standard_normal(left["Op"].shape[1])
    data = operator.matvec(change.astype(np.float32))
    squares = np.vdot(data.astype(float), data)
    assert np.isclose(np.vdot(change, operator.rmatvec(data)), squares, rtol=1e-4)
    plain, smooth, lens = left["plain"], left["smooth"], left["lens"].numpy()
    assert np.linalg.norm(smooth - lens) < 0.9 * np.linalg.norm(plain - lens)
