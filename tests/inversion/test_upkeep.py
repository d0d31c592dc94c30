"""What ranks take beside their waves is what was counted before."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from hpcfwi.config import load_config
from hpcfwi.inversion.preparation import prepare
from hpcfwi.inversion.upkeep import weigh_upkeep
from hpcfwi.model import Grid, Model
from hpcfwi.operators.capacity import largest_task
from hpcfwi.parallel.context import Context
from hpcfwi.storage.models import write_model
from tests.inversion.examples import write_input
from tests.ranks import run_ranks

CPU = torch.device("cpu")
POINTS = 1400
# By itself glibc keeps arrays of this size when they are freed, see decision 048
GIVING_BACK = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}

MEASURE = """
import json, sys
from pathlib import Path
import torch
from hpcfwi.host import peak_resident_bytes, resident_bytes
from hpcfwi.parallel.launch.start import launch
from hpcfwi.run.job import run_job
from hpcfwi.wave import warm_up
context = launch(gpus=False)
warm_up("cpu", 4, torch.zeros(1, 1))
before = resident_bytes()
run_job(Path(sys.argv[1]), [], context, quiet=True)
taken = context.all_gather(peak_resident_bytes() - before)
if context.is_root:
    print(json.dumps(taken))
context.close()
"""


def experiment_of(folder, changes=None):
    return prepare(load_config(write_input(folder, changes)), Context.alone())


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """An input whose model outweighs the program, with little to compute."""
    folder = tmp_path_factory.mktemp("large")
    grid = Grid((POINTS, POINTS), (20.0, 20.0), (0.0, 0.0))
    depth = np.linspace(1500.0, 3000.0, POINTS, dtype=np.float32)[:, None]
    write_model(folder / "large.h5", Model(grid, {"vp": np.tile(depth, POINTS)}))
    return write_input(
        folder,
        {
            "model.file": "large.h5",
            "survey.sources.count": 2,
            "survey.duration": 0.2,
            "wave.history": {"kind": "recompute", "states": 1},
            "inversion.epochs": 2,
            "inversion.batch": 2,
            "output.every": 1,
            "output.checkpoint": 1,
        },
    )


@pytest.mark.long
def test_two_ranks_take_what_was_counted(large):
    done = run_ranks(2, ["-c", MEASURE, str(large)], env=GIVING_BACK)
    assert done.returncode == 0, done.stderr
    taken = json.loads(done.stdout.splitlines()[-1])
    experiment = prepare(load_config(large), Context.alone())
    simulator, survey = experiment.compared(), experiment.survey
    initial = experiment.initial.as_tensors(CPU)
    task = largest_task(simulator, initial, survey, simulator.costs(survey))
    waves = task.footprint(task.choose_history())
    for rank, found in enumerate(taken):
        upkeep = weigh_upkeep(experiment, 2, rank)
        counted = waves + upkeep.models + upkeep.each_shot + upkeep.ahead(CPU, has_state=False)
        assert found == pytest.approx(counted, rel=0.2)


def test_what_is_there_by_now_is_not_ahead(tmp_path):
    upkeep = weigh_upkeep(experiment_of(tmp_path), 2, rank=0)
    both = [upkeep.ahead(CPU, has_state) for has_state in (False, True)]
    assert both[0] - both[1] == upkeep.state + upkeep.remembered > 0


def test_figures_and_observed_traces_are_in_the_memory_of_the_host(tmp_path):
    upkeep, other = (weigh_upkeep(experiment_of(tmp_path), 2, rank) for rank in (0, 1))
    assert other == replace(upkeep, records=0)
    on_card = upkeep.ahead(torch.device("cuda:0"), has_state=True)
    assert on_card == upkeep.update == upkeep.ahead(CPU, True) - upkeep.traces - upkeep.records


def test_rank_0_gathers_what_is_kept_in_slabs(tmp_path):
    whole = weigh_upkeep(experiment_of(tmp_path), 3, rank=0)
    sharded = {"inversion.optimizer": {"name": "adam", "lr": 20.0, "sharded": True}}
    slabs = weigh_upkeep(experiment_of(tmp_path, sharded), 3, rank=0)
    assert slabs.remembered < 0.4 * whole.remembered
    assert slabs.records - whole.records == whole.remembered
