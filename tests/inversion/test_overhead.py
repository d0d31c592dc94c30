"""The estimated memory of ranks besides their waves, against the memory that they take."""

from __future__ import annotations

import json
import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from hpcfwi.config import load_config
from hpcfwi.inversion.loop import first_state
from hpcfwi.inversion.memory import (
    COMPILER,
    ENGINE,
    EXCERPTED,
    FIGURES,
    FILES,
    IMAGED,
    IMAGES,
    LIMITS,
    MODEL_FILE,
    PICTURES,
    WRITTEN,
    MemoryOverhead,
    estimate_overhead,
)
from hpcfwi.inversion.preparation import prepare
from hpcfwi.inversion.stages import draw_signs, make_stages
from hpcfwi.model import PARAMETERS, Grid, Model
from hpcfwi.operators.simulator import largest_task
from hpcfwi.parallel import replicas
from hpcfwi.parallel.context import Context
from hpcfwi.report import panels
from hpcfwi.report.panels import EpochPicture
from hpcfwi.run.directory import RunDirectory
from hpcfwi.run.records import write_pictures
from hpcfwi.storage.models import read_model, write_model
from tests.inversion.examples import prepare_alone, prepared, write_input
from tests.parallel.together import on_ranks
from tests.ranks import run_ranks
from tests.run.test_equations import write_elastic

CPU = torch.device("cpu")
POINTS = 1400
# By default, glibc keeps freed arrays of this size, see decision 048
GIVING_BACK = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}

# The system records no peak of private memory, so a thread samples it
MEASURE = """
import json, sys, threading, time
from dataclasses import asdict
from pathlib import Path
import torch
from hpcfwi.config import load_config
from hpcfwi.inversion.preparation import prepare
from hpcfwi.inversion.memory import estimate_overhead
from hpcfwi.parallel.launch import launch
from hpcfwi.run.job import run_job
from hpcfwi.wave import Method, warm_up

def find(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))

def watch():
    global peak
    while True:
        peak = max(peak, find("RssAnon"))
        time.sleep(0.003)

path, folder, migrates, *settings = sys.argv[1:]
path, migrates = Path(path), migrates == "True"
settings.append(f"output.directory={folder}/run")
context = launch(gpus=False)
warm_up(Method(order=4, engine="cpu"), {"vp": torch.full((1, 1), 2000.0)})
peak = before = find("RssAnon")
threading.Thread(target=watch, daemon=True).start()
run_job(path, settings, context, migrates=migrates, quiet=True)
own = peak - before
experiment = prepare(load_config(path, settings, migrates), context)
# The system counts shared pages once they have been read
for model in (experiment.true, experiment.initial):
    model.arrays["vp"].sum()
overhead = estimate_overhead(experiment, context.size, context.rank)
results = context.all_gather((own, find("RssShmem"), asdict(overhead)))
if context.is_root:
    print(json.dumps(results))
context.close()
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Write an input whose model outweighs the program, with little to compute."""
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
            # Epochs are so short that states and pictures queue up to be written and drawn
            "inversion.epochs": 4,
            "inversion.batch": 2,
            "migration": {"iterations": 3},
            "output.every": 1,
            "output.checkpoint": 1,
        },
    )


SEARCHED = ('inversion.sampling="all"', "inversion.batch=2")
SMOOTHED = ("inversion.precondition={illumination=0.01, smooth=0.2}",)


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "migrates"),
    [
        ((), False),
        ((), True),
        (SMOOTHED, False),
        (('inversion.regularize={name="tv", weight=1e-3}',), False),
        ((*SEARCHED, 'inversion.optimizer={name="gauss-newton", step=10.0}'), False),
    ],
    ids=["adam", "migration", "smoothed", "tv", "gauss-newton"],
)
def test_two_ranks_take_the_estimated_memory(settings, migrates, large, tmp_path):
    words = [str(large), str(tmp_path), str(migrates), *settings]
    done = run_ranks(2, ["-c", MEASURE, *words], env=GIVING_BACK)
    results = json.loads(done.stdout.splitlines()[-1])
    experiment = prepare(load_config(large, settings, migrates), Context.alone())
    simulator, survey = experiment.make_simulator(), experiment.survey
    initial = experiment.initial.as_tensors(CPU)
    costs = simulator.aperture.costs(simulator.grid, survey)
    task = largest_task(simulator, initial, survey, costs)
    waves = task.footprint(task.choose_history())
    for own, shared, found in results:
        overhead = MemoryOverhead(**found)
        assert overhead.host == 2 * 4 * POINTS**2, "true and initial model"
        assert overhead.given < 1e5
        assert overhead.host <= shared < 1.1 * overhead.host
        # The engine was loaded before memory was first measured
        ahead = overhead.ahead(CPU, has_state=False) - overhead.engine
        counted = waves + overhead.given + overhead.each_shot + ahead
        print(f"{own / 1e6:.0f} MB where {counted / 1e6:.0f} were counted")
        assert own == pytest.approx(counted, rel=0.2)


# Receivers that move with the source, some of them beyond the end of the model
TOWED = {
    "survey.sources.count": 60,
    "survey.receivers": {"count": 90, "depth": 40.0, "offset": 0.0, "spacing": 10.0},
}
RECEIVERS, SPREAD = 60 * 90 * 2 * 8, 60 * (2 * 8) + 60 * 90 + 4 * 150


@pytest.fixture
def estimate_on_ranks(tmp_path, monkeypatch):
    """Return a function that returns the overhead of each of several ranks."""
    monkeypatch.setattr(replicas, "MEMORY", tmp_path)

    def estimate(size, changes, initial=None):
        grid = Grid((200, 150), (10.0, 10.0), (0.0, 0.0))
        depth = np.linspace(1500.0, 3000.0, 200, dtype=np.float32)[:, None]
        write_model(tmp_path / "large.h5", Model(grid, {"vp": np.tile(depth, 150)}))
        model = {"model.file": "large.h5", "model.initial": initial or {"smooth": 80.0}}
        path = write_input(tmp_path, {**model, **TOWED, **changes})
        config = load_config(path)
        return on_ranks(
            size, lambda rank: estimate_overhead(prepare(config, rank), size, rank.rank)
        )

    return estimate


@pytest.mark.parametrize("spacing", [None, 9.0])
@pytest.mark.parametrize("initial", [{"smooth": 80.0}, {"linear": [1500.0, 1.0]}])
def test_models_and_receivers_are_counted_once_per_host(estimate_on_ranks, spacing, initial):
    cells = 200 * 150 if spacing is None else 222 * 166
    for overhead in estimate_on_ranks(3, {"model.spacing": spacing}, initial):
        assert overhead.host == 2 * 4 * cells + RECEIVERS
        assert overhead.given == SPREAD, "each rank holds small arrays"


def test_models_are_counted_per_rank_without_shared_memory(
    estimate_on_ranks, monkeypatch, tmp_path
):
    monkeypatch.setattr(replicas, "MEMORY", tmp_path / "nowhere")
    for overhead in (*estimate_on_ranks(2, {}), *estimate_on_ranks(1, {})):
        assert (overhead.host, overhead.given) == (0, 2 * 4 * 200 * 150 + RECEIVERS + SPREAD)


def test_starting_model_and_prior_of_files_are_counted(estimate_on_ranks, tmp_path):
    prior = {"inversion.regularize": {"name": "tv", "weight": 1.0, "prior": "prior.h5"}}
    for name in ("start", "prior"):
        grid = Grid((100, 75), (20.0, 20.0), (0.0, 0.0))
        write_model(
            tmp_path / f"{name}.h5", Model(grid, {"vp": np.full((100, 75), 2e3, np.float32)})
        )
    (found, _) = estimate_on_ranks(2, prior, {"file": "start.h5"})
    assert found.host == 3 * 4 * 200 * 150 + RECEIVERS


ALL_SHOTS = {"inversion.sampling": "all", "inversion.batch": 3}


def sizes(arrays):
    return sum(array.nbytes for array in arrays)


def test_memory_of_a_stage_is_that_of_its_arrays(tmp_path):
    experiment = prepared(tmp_path)
    limits = experiment.limits(experiment.initial.as_tensors(CPU))
    kept = [*limits.initial.arrays.values(), *limits.fixed.values(), experiment.fixed]
    assert (
        estimate_overhead(experiment, 2, 0).stage == sizes(kept) == LIMITS * experiment.fixed.size
    )
    known = prepared(tmp_path, {"inversion.regularize": {"name": "tikhonov", "weight": 1.0}})
    kept += known.regularizer(CPU).keywords["prior"].arrays.values()
    assert estimate_overhead(known, 2, 0).stage == sizes(kept)


def test_taper_is_counted_once_per_host(tmp_path):
    plain = estimate_overhead(prepared(tmp_path), 2, 0)
    experiment = prepared(tmp_path, {"inversion.precondition": {"taper": 100.0}})
    found, alone = estimate_overhead(experiment, 2, 0), Context.alone()
    taper = make_stages(experiment, alone)[0].ready(alone).taper
    assert found == replace(plain, host=plain.host + taper.nbytes)


def test_rank_0_holds_a_copy_of_the_state_that_is_written(tmp_path):
    experiment = prepared(tmp_path)
    state = first_state(experiment, experiment, Context.alone())
    overhead = estimate_overhead(experiment, 2, 0)
    (memory,) = state.optimizer["state"].values()
    held = sizes([*state.model.arrays.values(), *(a for a in memory.values() if a.ndim)])
    assert held == WRITTEN * experiment.fixed.size + overhead.remembered
    sgd = {"inversion.optimizer": {"name": "sgd", "lr": 20.0}}
    less = estimate_overhead(prepared(tmp_path, sgd), 2, 0)
    assert overhead.records - less.records == overhead.remembered - less.remembered > 0


def test_written_state_of_lbfgs_shares_all_pairs_but_one_with_the_next(tmp_path):
    cells = prepared(tmp_path).fixed.size

    def find_records(**keys):
        lbfgs = {"name": "lbfgs", "step": 10.0, **keys}
        experiment = prepared(tmp_path, {**ALL_SHOTS, "inversion.optimizer": lbfgs})
        return estimate_overhead(experiment, 2, 0).records

    assert find_records(memory=7) == find_records(memory=3)
    assert find_records(memory=7, sharded=True) - find_records(memory=7) == 6 * 2 * 4 * cells


def test_two_pictures_hold_positions_of_unmasked_receivers(estimate_on_ranks):
    standing = {"survey.receivers": {"count": 30, "depth": 40.0}}
    (towed, other), (plain, _) = estimate_on_ranks(2, {}), estimate_on_ranks(2, standing)
    x = np.linspace(0.0, 1490.0, 60)[:, None] + 10.0 * np.arange(90)
    inside = np.count_nonzero(x < 1490.0 + 1e-3)
    assert 0 < inside < x.size
    assert towed.records - plain.records == 2 * inside * 2 * 8
    assert other.records == 0


def test_encoded_shots_hold_wavelets_of_all_sources(tmp_path):
    experiment = prepared(tmp_path, {"inversion.encoding": "signs", "inversion.batch": 3})
    plain = estimate_overhead(prepared(tmp_path), 2, 1)
    found = estimate_overhead(experiment, 2, 1)
    signs = draw_signs(make_stages(experiment, Context.alone())[0].draws, 0)
    survey = experiment.survey.encoded(signs[:2])  # two of three shots, on two ranks
    assert found.stage - plain.stage == survey.wavelet.nbytes > 0
    one = survey.select(np.arange(1))
    assert found.each_shot - plain.each_shot == one.wavelet.nbytes


def test_writing_a_picture_takes_the_estimated_memory(tmp_path):
    arrays = np.random.default_rng(0).random((4, 300, 400)).astype(np.float32)
    grid = Grid((300, 400), (1.0, 1.0), (0.0, 0.0))
    picture = EpochPicture(1, grid, PARAMETERS["vp"], None, *arrays)
    directory = RunDirectory(tmp_path)
    write_pictures(directory, [picture])
    tracemalloc.start()
    write_pictures(directory, [picture])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak == pytest.approx(FILES * 300 * 400, rel=0.15)


def test_pictures_of_a_large_model_are_counted_as_excerpts(tmp_path, monkeypatch):
    experiment = prepared(tmp_path)
    whole, cells = estimate_overhead(experiment, 2, 0).records, experiment.fixed.size
    monkeypatch.setattr("hpcfwi.inversion.memory.MOST_WHOLE", 100)
    less = whole - estimate_overhead(experiment, 2, 0).records
    assert less == (PICTURES + FILES - EXCERPTED - MODEL_FILE) * cells
    monkeypatch.setattr(panels, "MOST_WHOLE", 100)
    monkeypatch.setattr(panels, "MOST_CELLS", 25)
    arrays = np.random.default_rng(0).standard_normal((4, 300, 400)).astype(np.float32)
    grid = Grid((300, 400), (1.0, 1.0), (0.0, 0.0))
    picture = EpochPicture(1, grid, PARAMETERS["vp"], None, *arrays)
    picture.shorten()
    tracemalloc.start()
    picture.shorten()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The gradient was allocated before
    assert peak + 4 * 300 * 400 == pytest.approx(EXCERPTED * 300 * 400, rel=0.05)


@pytest.mark.parametrize("names", [["vp"], ["vp", "vs", "rho"]])
def test_images_take_the_estimated_memory(names, tmp_path):
    path = write_elastic(tmp_path, "elastic", **{"migration.parameters": names})
    small, grid = read_model(tmp_path / "true.h5"), Grid((300, 600), (20.0, 20.0), (0.0, 0.0))
    write_model(tmp_path / "true.h5", Model(grid, small.map(lambda a: np.tile(a, (10, 10))).arrays))
    experiment = prepare_alone(path, migrates=True)
    found = experiment.true.select(names).map(lambda array: array + np.float32(1.0))
    experiment.compare_images(experiment.images(found))  # the first call imports modules
    tracemalloc.start()
    experiment.compare_images(experiment.images(found))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    cells = experiment.fixed.size
    shown = 2 * 2 * 8 * len(names) * cells  # image and true image in the last two figures
    assert peak + shown == pytest.approx((IMAGED + IMAGES * len(names)) * cells, rel=0.05)
    assert estimate_overhead(experiment, 2, rank=1).records == 0


def test_allocated_state_and_engine_are_not_counted_as_ahead(tmp_path):
    overhead = estimate_overhead(prepared(tmp_path), 2, rank=0)
    both = [overhead.ahead(CPU, has_state) for has_state in (False, True)]
    assert (
        both[0] - both[1]
        == overhead.state + overhead.remembered + overhead.engine
        > overhead.engine
    )


def test_figures_and_observed_traces_are_counted_on_host_not_on_gpu(tmp_path):
    overhead, other = (estimate_overhead(prepared(tmp_path), 2, rank) for rank in (0, 1))
    assert (overhead.engine, other.engine) == (ENGINE + COMPILER, ENGINE)
    assert other == replace(overhead, records=0, engine=ENGINE, figures=0)
    on_card = overhead.ahead(torch.device("cuda:0"), has_state=True)
    assert on_card == overhead.stage + overhead.update
    on_host = overhead.traces + overhead.records + overhead.figures
    assert on_card == overhead.ahead(CPU, True) - on_host


def test_figures_are_counted_on_rank_0_until_matplotlib_is_loaded(tmp_path, monkeypatch):
    experiment = prepared(tmp_path)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    assert [estimate_overhead(experiment, 2, rank).figures for rank in (0, 1)] == [FIGURES, 0]
    monkeypatch.setitem(sys.modules, "matplotlib.figure", sys)
    assert estimate_overhead(experiment, 2, rank=0).figures == 0


def test_records_of_rank_0_hold_whole_state_also_with_shards(tmp_path):
    whole = estimate_overhead(prepared(tmp_path), 3, rank=0)
    sharded = {"inversion.optimizer": {"name": "adam", "lr": 20.0, "sharded": True}}
    shards = estimate_overhead(prepared(tmp_path, sharded), 3, rank=0)
    assert shards.remembered < 0.4 * whole.remembered
    assert shards.records == whole.records > whole.remembered
