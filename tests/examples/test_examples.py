"""Every example runs as it stands, and has found what it says."""

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
    """What is left of an example when it has run: its names and their values."""
    monkeypatch.setattr(matplotlib, "rcParams", matplotlib.rcParams.copy())
    matplotlib.use("agg")
    yield lambda name: run_path(str(EXAMPLES / f"{name}.py"))
    # It is imported by examples
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
    """What rank 0 has of tensors and lists when examples have run on so many ranks."""

    def run(n):
        path = tmp_path_factory.mktemp("found") / "found.pt"
        names = ("denoiser", "data_parallel", "siren")
        scripts = [str(EXAMPLES / f"{name}.py") for name in names]
        done = run_ranks(n, ["-c", ON_RANKS, str(path), *scripts], warm=("torch._dynamo",))
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(f"{n} ranks") == len(scripts)
        return torch.load(path)

    return {n: run(n) for n in (1, 4)}


def error(left, found):
    """Of a model, as a part of that of the start."""
    true, start = left["true"], left["start"]
    return float((torch.as_tensor(found) - true).norm() / (start - true).norm())


def test_the_first_gradient_is_that_of_finite_differences(run):
    left = run("first_gradient")
    assert left["predicted"].item() == pytest.approx(left["measured"].item(), rel=0.01)


def test_adam_finds_most_of_the_misfit(run):
    left = run("adam")
    assert left["misfits"][-1] < 0.05 * left["misfits"][0]
    assert error(left, left["vp"].detach()) < 0.9


def test_lbfgs_does_when_it_is_scaled_and_stops_at_once_when_it_is_not(run):
    left = run("lbfgs")
    assert left["misfits"][-1] < 0.01 * left["misfits"][0]
    assert error(left, left["vp"]) < 0.7
    assert len(left["unscaled"]) == 1


def test_scipys_stays_within_its_bounds(run):
    left = run("scipy_lbfgsb")
    assert left["found"].fun < 0.01
    assert error(left, left["vp"]) < 0.5
    assert left["vp"].min() >= 1800.0
    assert left["vp"].max() <= 2000.0


def test_lsqrs_image_explains_the_data_and_is_nearer_to_the_reflectors_than_the_first(run):
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
def test_plug_and_play_has_the_same_bits_on_four_ranks_and_is_better_than_without(on_ranks):
    (one, *_), (four, *_) = on_ranks[1], on_ranks[4]
    assert all(torch.equal(one[name], four[name]) for name in ("found", "plain"))
    assert error(one, one["found"]) < 0.95 * error(one, one["plain"])


@pytest.mark.long
def test_data_parallel_finds_the_same_on_four_ranks(on_ranks):
    (_, one, _), (_, four, _) = on_ranks[1], on_ranks[4]
    assert four["misfits"] == pytest.approx(one["misfits"], rel=1e-3)
    change = one["found"] - one["start"]
    assert (four["found"] - one["found"]).norm() < 1e-3 * change.norm()
    assert one["misfits"][-1] < 0.3 * one["misfits"][0]


@pytest.mark.long
def test_a_network_in_shards_takes_the_steps_of_one_process(on_ranks):
    (*_, one), (*_, four) = on_ranks[1], on_ranks[4]
    assert one["misfits"][-1] < 0.05 * one["misfits"][0]
    assert error(one, one["found"]) < 0.8
    assert four["misfits"][:5] == pytest.approx(one["misfits"][:5], rel=1e-3)
    assert four["misfits"][-1] < 0.05 * four["misfits"][0]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_deepinvs_total_variation_is_smaller_and_nearer_to_the_truth(run):
    pytest.importorskip("deepinv")
    left = run("deepinv_tv")

    def variation(image):
        return float(image.diff(dim=0).abs().sum() + image.diff(dim=1).abs().sum())

    plain, found, body = (left[name] for name in ("plain", "found", "body"))
    assert variation(found) < 0.5 * variation(plain)
    assert (found - body).norm() < (plain - body).norm()


def test_pylops_operator_has_its_transpose_and_a_smooth_change_is_nearer(run):
    pylops = pytest.importorskip("pylops")
    left = run("pylops_smooth")
    assert pylops.utils.dottest(left["Op"], rtol=1e-3)
    plain, smooth, lens = left["plain"], left["smooth"], left["lens"].numpy()
    assert np.linalg.norm(smooth - lens) < 0.9 * np.linalg.norm(plain - lens)
