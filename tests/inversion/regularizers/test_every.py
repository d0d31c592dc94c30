"""What every regulariser keeps to."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from hpcfwi.inversion.regularizers.tikhonov import tikhonov
from hpcfwi.inversion.regularizers.total_variation import total_variation
from hpcfwi.model import Grid, Model, resample, resample_onto
from hpcfwi.report.metrics import read_metrics
from hpcfwi.storage.models import read_model, write_model
from tests.inversion.examples import true_model, write_input

EACH_BY_NAME = {"tikhonov": tikhonov, "tv": total_variation}
EACH = pytest.mark.parametrize(
    "regularize", [partial(tikhonov, weight=0.1), partial(total_variation, weight=0.1)]
)


@EACH
def test_what_was_known_before_costs_nothing(regularize):
    grid = Grid((6, 5), (10.0, 10.0), (0.0, 0.0))
    start = Model(grid, {"vp": torch.rand(6, 5)})
    penalty, gradient = regularize(start, start)
    assert penalty == 0.0
    assert not gradient["vp"].any()


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("regularize", ["tikhonov", "tv"])
def test_a_model_file_takes_the_place_of_the_initial_one(regularize, hpcfwi, tmp_path):
    prior = resample(true_model(), (40.0, 40.0))
    write_model(tmp_path / "prior.h5", prior)
    losses = []
    for weight in (0.0, 1e-3):
        keys = {"name": regularize, "weight": weight, "prior": "prior.h5"}
        changes = {"inversion.regularize": keys, "inversion.epochs": 1}
        path, run = write_input(tmp_path, changes), tmp_path / str(weight)
        assert hpcfwi("run", path, "--output", run) == 0
        losses.append(read_metrics(run / "metrics.jsonl")[0]["loss"])
    initial = read_model(tmp_path / "0.0" / "initial.h5").as_tensors(torch.device("cpu"))
    known = resample_onto(prior, initial.grid).as_tensors(torch.device("cpu"))
    penalty, _ = EACH_BY_NAME[regularize](initial, known, weight=1e-3)
    assert penalty > 0.0
    assert losses[1] - losses[0] == pytest.approx(penalty, rel=1e-3)


@EACH
def test_its_bits_do_not_depend_on_the_threads(regularize):
    grid = Grid((301, 703), (10.0, 10.0), (0.0, 0.0))
    start, model = (Model(grid, {"vp": torch.rand(301, 703)}) for _ in range(2))
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(regularize(model, start))
    torch.set_num_threads(before)
    for penalty, gradient in found[1:]:
        assert penalty == found[0][0]
        assert torch.equal(gradient["vp"], found[0][1]["vp"])
