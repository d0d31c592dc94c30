"""What ranks take beside their waves, and their host once, is what was counted before."""

from __future__ import annotations

import json
import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from hpcfwi.config import load_config
from hpcfwi.inversion.draws import draw_signs, encode
from hpcfwi.inversion.loop import first_state
from hpcfwi.inversion.memory import (
    COMPILER,
    ENGINE,
    EXCERPTED,
    FIGURES,
    FILES,
    IMAGES,
    LIMITS,
    MODEL_FILE,
    PICTURES,
    WRITTEN,
    Upkeep,
    weigh_upkeep,
)
from hpcfwi.inversion.preparation import prepare
from hpcfwi.inversion.stages import make_stages
from hpcfwi.model import PARAMETERS, Grid, Model
from hpcfwi.operators.batching import largest_task
from hpcfwi.parallel import replicas
from hpcfwi.parallel.context import Context
from hpcfwi.report import panels
from hpcfwi.report.panels import EpochPicture
from hpcfwi.run.directory import RunDirectory
from hpcfwi.run.records import keep_picture
from hpcfwi.storage.models import write_model
from tests.inversion.examples import true_model, write_input
from tests.parallel.together import on_ranks
from tests.ranks import run_ranks

CPU = torch.device("cpu")
POINTS = 1400
# By itself glibc keeps arrays of this size when they are freed, see decision 048
GIVING_BACK = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}

# The peak of what is its own is not kept by the system
MEASURE = """
import json, sys, threading, time
from dataclasses import asdict
from pathlib import Path
import torch
from hpcfwi.config import load_config
from hpcfwi.inversion.preparation import prepare
from hpcfwi.inversion.memory import weigh_upkeep
from hpcfwi.parallel.launch import launch
from hpcfwi.run.job import run_job
from hpcfwi.wave import warm_up

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
warm_up("cpu", 4, torch.zeros(1, 1))
peak = before = find("RssAnon")
threading.Thread(target=watch, daemon=True).start()
run_job(path, settings, context, migrates=migrates, quiet=True)
own = peak - before
experiment = prepare(load_config(path, settings, migrates), context)
upkeep = weigh_upkeep(experiment, context.size, context.rank)
told = context.all_gather((own, find("RssShmem"), asdict(upkeep)))
if context.is_root:
    print(json.dumps(told))
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
            # So short that states and pictures wait to be written and drawn
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
def test_two_ranks_take_what_was_counted(settings, migrates, large, tmp_path):
    words = [str(large), str(tmp_path), str(migrates), *settings]
    done = run_ranks(2, ["-c", MEASURE, *words], env=GIVING_BACK)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    experiment = prepare(load_config(large, settings, migrates), Context.alone())
    simulator, survey = experiment.compared(), experiment.survey
    initial = experiment.initial.as_tensors(CPU)
    task = largest_task(simulator, initial, survey, simulator.costs(survey))
    waves = task.footprint(task.choose_history())
    for own, shared, found in told:
        upkeep = Upkeep(**found)
        assert upkeep.host == 2 * 4 * POINTS**2, "the true model and the initial one"
        assert upkeep.given < 1e5
        assert upkeep.host <= shared < 1.1 * upkeep.host
        # The engine was loaded before the ranks were first looked at
        ahead = upkeep.ahead(CPU, has_state=False) - upkeep.engine
        counted = waves + upkeep.given + upkeep.each_shot + ahead
        print(f"{own / 1e6:.0f} MB where {counted / 1e6:.0f} were counted")
        assert own == pytest.approx(counted, rel=0.2)


# Of each shot's own receivers, of which some are beyond the end of the model
TOWED = {
    "survey.sources.count": 60,
    "survey.receivers": {"count": 90, "depth": 40.0, "offset": 0.0, "spacing": 10.0},
}
RECEIVERS, SPREAD = 60 * 90 * 2 * 8, 60 * (2 * 8) + 60 * 90 + 4 * 150


@pytest.fixture
def weighed(tmp_path, monkeypatch):
    """The upkeep of each of so many ranks, that have prepared an experiment together."""
    monkeypatch.setattr(replicas, "MEMORY", tmp_path)

    def weigh_with(size, changes, initial=None):
        grid = Grid((200, 150), (10.0, 10.0), (0.0, 0.0))
        depth = np.linspace(1500.0, 3000.0, 200, dtype=np.float32)[:, None]
        write_model(tmp_path / "large.h5", Model(grid, {"vp": np.tile(depth, 150)}))
        model = {"model.file": "large.h5", "model.initial": initial or {"smooth": 80.0}}
        path = write_input(tmp_path, {**model, **TOWED, **changes})
        config = load_config(path)
        return on_ranks(size, lambda rank: weigh_upkeep(prepare(config, rank), size, rank.rank))

    return weigh_with


@pytest.mark.parametrize("spacing", [None, 9.0])
@pytest.mark.parametrize("initial", [{"smooth": 80.0}, {"linear": [1500.0, 1.0]}])
def test_models_and_receivers_are_counted_once_a_host(weighed, spacing, initial):
    cells = 200 * 150 if spacing is None else 222 * 166
    for upkeep in weighed(3, {"model.spacing": spacing}, initial):
        assert upkeep.host == 2 * 4 * cells + RECEIVERS
        assert upkeep.given == SPREAD, "what is small is everybody's own"


def test_where_they_are_not_shared_they_are_each_rank_s_own(weighed, monkeypatch, tmp_path):
    monkeypatch.setattr(replicas, "MEMORY", tmp_path / "nowhere")
    for upkeep in (*weighed(2, {}), *weighed(1, {})):
        assert (upkeep.host, upkeep.given) == (0, 2 * 4 * 200 * 150 + RECEIVERS + SPREAD)


def test_a_starting_model_of_its_own_and_what_it_is_compared_with_are_counted(weighed, tmp_path):
    prior = {"inversion.regularize": {"name": "tv", "weight": 1.0, "prior": "prior.h5"}}
    for name in ("start", "prior"):
        grid = Grid((100, 75), (20.0, 20.0), (0.0, 0.0))
        write_model(
            tmp_path / f"{name}.h5", Model(grid, {"vp": np.full((100, 75), 2e3, np.float32)})
        )
    (found, _) = weighed(2, prior, {"file": "start.h5"})
    assert found.host == 3 * 4 * 200 * 150 + RECEIVERS


def sizes(arrays):
    return sum(array.nbytes for array in arrays)


def test_a_stage_is_as_large_as_what_it_keeps(tmp_path):
    experiment = experiment_of(tmp_path)
    limits = experiment.limits(experiment.initial.as_tensors(CPU))
    kept = [*limits.initial.arrays.values(), *limits.fixed.values(), experiment.fixed]
    assert weigh_upkeep(experiment, 2, 0).stage == sizes(kept) == LIMITS * experiment.fixed.size
    known = experiment_of(tmp_path, {"inversion.regularize": {"name": "tikhonov", "weight": 1.0}})
    kept += known.prior.as_tensors(CPU).arrays.values()
    assert weigh_upkeep(known, 2, 0).stage == sizes(kept)


def test_a_taper_is_counted_once_a_host(tmp_path):
    plain = weigh_upkeep(experiment_of(tmp_path), 2, 0)
    experiment = experiment_of(tmp_path, {"inversion.precondition": {"taper": 100.0}})
    found, alone = weigh_upkeep(experiment, 2, 0), Context.alone()
    taper = make_stages(experiment, alone)[0].ready(alone).taper
    assert found == replace(plain, host=plain.host + taper.nbytes)


def test_rank_0_keeps_a_state_that_is_being_written(tmp_path):
    experiment = experiment_of(tmp_path)
    state, upkeep = first_state(experiment, Context.alone()), weigh_upkeep(experiment, 2, 0)
    (memory,) = state.optimizer["state"].values()
    held = sizes([*state.model.arrays.values(), *(a for a in memory.values() if a.ndim)])
    assert held == WRITTEN * experiment.fixed.size + upkeep.remembered
    sgd = {"inversion.optimizer": {"name": "sgd", "lr": 20.0}}
    less = weigh_upkeep(experiment_of(tmp_path, sgd), 2, 0)
    assert upkeep.records - less.records == upkeep.remembered - less.remembered > 0


def test_two_pictures_have_the_positions_that_a_mask_leaves(weighed):
    standing = {"survey.receivers": {"count": 30, "depth": 40.0}}
    (towed, other), (plain, _) = weighed(2, {}), weighed(2, standing)
    x = np.linspace(0.0, 1490.0, 60)[:, None] + 10.0 * np.arange(90)
    heard = np.count_nonzero(x < 1490.0 + 1e-3)
    assert 0 < heard < x.size
    assert towed.records - plain.records == 2 * heard * 2 * 8
    assert other.records == 0


def test_encoded_shots_have_the_wavelets_of_all_sources(tmp_path):
    experiment = experiment_of(tmp_path, {"inversion.encoding": "signs", "inversion.batch": 3})
    plain = weigh_upkeep(experiment_of(tmp_path), 2, 1)
    found = weigh_upkeep(experiment, 2, 1)
    signs = draw_signs(make_stages(experiment, Context.alone())[0].draws(), 0)
    survey = encode(experiment.survey, signs[:2])  # of three, on two ranks
    assert found.stage - plain.stage == survey.wavelet.nbytes > 0
    one = survey.select(np.arange(1))
    assert found.each_shot - plain.each_shot == one.wavelet.nbytes


def test_a_picture_is_once_more_in_memory_to_be_written(tmp_path):
    arrays = np.random.default_rng(0).random((4, 300, 400)).astype(np.float32)
    grid = Grid((300, 400), (1.0, 1.0), (0.0, 0.0))
    picture = EpochPicture(1, grid, PARAMETERS["vp"], None, *arrays)
    directory = RunDirectory(tmp_path)
    keep_picture(directory, picture)
    tracemalloc.start()
    keep_picture(directory, picture)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak == pytest.approx(FILES * 300 * 400, rel=0.15)


def test_of_a_large_model_excerpts_take_their_place(tmp_path, monkeypatch):
    experiment = experiment_of(tmp_path)
    whole, cells = weigh_upkeep(experiment, 2, 0).records, experiment.fixed.size
    monkeypatch.setattr("hpcfwi.inversion.memory.MOST_WHOLE", 100)
    less = whole - weigh_upkeep(experiment, 2, 0).records
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
    # The gradient itself is there before
    assert peak + 4 * 300 * 400 == pytest.approx(EXCERPTED * 300 * 400, rel=0.05)


def test_images_take_what_was_counted(tmp_path):
    grid = Grid((300, 600), (20.0, 20.0), (0.0, 0.0))
    write_model(tmp_path / "true.h5", Model(grid, {"vp": np.tile(true_model()["vp"], (10, 10))}))
    path = write_input(tmp_path, {"migration": {"iterations": 1}})
    experiment = prepare(load_config(path, (), True), Context.alone())
    found = experiment.true.map(lambda array: array + np.float32(1.0))
    experiment.compare_image(experiment.image(found))  # which imports what it needs
    tracemalloc.start()
    experiment.compare_image(experiment.image(found))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    cells = experiment.fixed.size
    shown = 2 * 2 * 8 * cells  # the image and the true one, in the two figures before
    assert peak + shown == pytest.approx(IMAGES * cells, rel=0.05)
    assert weigh_upkeep(experiment, 2, rank=1).records == 0


def test_what_is_there_by_now_is_not_ahead(tmp_path):
    upkeep = weigh_upkeep(experiment_of(tmp_path), 2, rank=0)
    both = [upkeep.ahead(CPU, has_state) for has_state in (False, True)]
    assert both[0] - both[1] == upkeep.state + upkeep.remembered + upkeep.engine > upkeep.engine


def test_figures_and_observed_traces_are_in_the_memory_of_the_host(tmp_path):
    upkeep, other = (weigh_upkeep(experiment_of(tmp_path), 2, rank) for rank in (0, 1))
    assert (upkeep.engine, other.engine) == (ENGINE + COMPILER, ENGINE)
    assert other == replace(upkeep, records=0, engine=ENGINE, figures=0)
    on_card = upkeep.ahead(torch.device("cuda:0"), has_state=True)
    assert on_card == upkeep.stage + upkeep.update
    on_host = upkeep.traces + upkeep.records + upkeep.figures
    assert on_card == upkeep.ahead(CPU, True) - on_host


def test_figures_are_ahead_of_rank_0_until_matplotlib_is_loaded(tmp_path, monkeypatch):
    experiment = experiment_of(tmp_path)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    assert [weigh_upkeep(experiment, 2, rank).figures for rank in (0, 1)] == [FIGURES, 0]
    monkeypatch.setitem(sys.modules, "matplotlib.figure", sys)
    assert weigh_upkeep(experiment, 2, rank=0).figures == 0


def test_what_rank_0_writes_is_whole_whether_it_is_kept_in_slabs_or_not(tmp_path):
    whole = weigh_upkeep(experiment_of(tmp_path), 3, rank=0)
    sharded = {"inversion.optimizer": {"name": "adam", "lr": 20.0, "sharded": True}}
    slabs = weigh_upkeep(experiment_of(tmp_path, sharded), 3, rank=0)
    assert slabs.remembered < 0.4 * whole.remembered
    assert slabs.records == whole.records > whole.remembered
