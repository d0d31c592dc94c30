"""Inversions on several ranks: the same answer on any number, and whatever happens on the way."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from statistics import median

import h5py
import numpy as np
import pytest

from hpcfwi.report.page import read_metrics
from hpcfwi.storage.models import read_model
from tests.inversion.bad_inputs import BAD_INPUTS, FILE_INSTEAD, write_given
from tests.inversion.examples import N_RECEIVERS, N_SAMPLES, N_SHOTS, write_input, write_volume
from tests.inversion.optimizers.test_inversions import SEARCHING, changes
from tests.ranks import long_form, make_env, run_ranks, warm_python
from tests.run.test_stages import STAGES

# As `hpcfwi migrate` has it
MIGRATION = {
    "inversion.epochs": 3,
    "inversion.sampling": "all",
    "inversion.linear": True,
    "inversion.optimizer": {"name": "cg", "balance": True},
    "inversion.precondition": {"illumination": 0.001},
    "output.every": 3,
}
# Tiles for every rank, and a denoiser that sees all of its own
DENOISED = {
    "inversion.epochs": 3,
    "inversion.prior": {"denoiser": "tv", "strength": 0.03, "patch": 16, "overlap": 4},
    "output.every": 3,
}
# Whose points are cut into four blocks, see `programs.optimizers`
NETWORK = {
    "inversion.epochs": 3,
    "inversion.optimizer": {"name": "adam", "lr": 1e-3, "eps": 1e-22},
    "model.network": {"kind": "siren", "width": 16, "fit": 20},
    "output.every": 3,
}
OTHERS_SHARDED = {
    "sgd": {"inversion.optimizer": {"name": "sgd", "lr": 3e8, "momentum": 0.5}},
    "lbfgs": changes("lbfgs", 5),
    "network": {key: NETWORK[key] for key in ("model.network", "inversion.optimizer")},
}
# Of ranks, beside one and three: for long forms
MORE_SIZES = (2, 5)
TIMEOUT = 400.0  # s, on a busy machine


def run_programs(n: int, folder: Path, *names: str):
    programs = ["-m", "tests.run.programs", str(folder), *names]
    return run_ranks(n, programs, timeout=TIMEOUT, warm=True)


def said_by(name: str, output: str) -> list[list[str]]:
    """The words of each line that a program has printed."""
    lines = [line.split("\t") for line in output.splitlines()]
    return [words for program, *words in lines if program == name]


def misfits(run: Path, epochs: int = 5) -> list[float]:
    """One for each epoch, each of which is there once."""
    history = read_metrics(run / "metrics.jsonl")
    assert [entry["epoch"] for entry in history] == list(range(1, epochs + 1))
    return [entry["loss"] for entry in history]


def assert_same_answer(run: Path, other: Path, epochs: int = 5) -> None:
    """To the last bit."""
    assert misfits(run, epochs) == misfits(other, epochs)
    for name in ("model.h5", "model_best.h5"):
        np.testing.assert_array_equal(read_model(run / name)["vp"], read_model(other / name)["vp"])
    picture = f"epochs/epoch_{epochs:04d}.h5"
    with h5py.File(run / picture) as one, h5py.File(other / picture) as two:
        for name in one:
            np.testing.assert_array_equal(one[name][...], two[name][...])


def traces(run: Path) -> bytes:
    with h5py.File(run / "observed.h5") as file:
        return file["data"][...].tobytes()


@pytest.fixture
def job(request, short_job) -> tuple[Path, str]:
    """The folder and the output of jobs that have run several programs; starting costs most."""
    if request.node.get_closest_marker("long"):
        request.getfixturevalue("long_job")
    return short_job


@pytest.fixture(scope="module")
def short_job(tmp_path_factory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("job")
    write_input(folder / "any_number")
    for bad in BAD_INPUTS:
        bad.write(folder / "bad_inputs" / bad.name)
    write_failures(folder / "failures")
    write_set_aside(folder / "set_aside")
    write_input(folder / "windows", {"wave.aperture": 200.0, "inversion.max_offset": 300.0})
    write_input(folder / "memory", {"inversion.batch": N_SHOTS, "inversion.epochs": 1})
    write_volume(folder / "volumes")
    write_input(folder / "stages", {"stage": list(STAGES)})
    for name in SEARCHING:
        keys = {**changes(name, 3), "output.every": 3}
        write_input(folder / "optimizers" / name, keys)
    write_input(folder / "optimizers" / "cg", MIGRATION)
    write_input(folder / "optimizers" / "denoised", DENOISED)
    write_input(folder / "optimizers" / "network", NETWORK)
    write_input(folder / "sharded" / "adam", {"output.checkpoint": 2})
    for name in ("whole", "slabs"):
        write_sharded_stages(folder / "sharded_stages", name, sharded=name == "slabs")
    write_input(folder / "slow_rank", {"inversion.batch": N_SHOTS, "inversion.epochs": 3})
    programs = (
        "any_number=1,3",
        "slow_rank",
        "bad_inputs",
        "failures",
        "set_aside",
        "windows",
        "memory",
        "volumes",
        "stages=1,3",
        "optimizers=1,3",
        "sharded",
        "sharded_stages",
    )
    done = run_programs(4, folder, *programs)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout + done.stderr


@pytest.fixture(scope="module")
def long_job(short_job) -> None:
    """What long forms compare with what is there."""
    folder, _ = short_job
    for name, keys in OTHERS_SHARDED.items():
        write_input(folder / "others_sharded" / name, {**keys, "output.checkpoint": 2})
    programs = "any_number=2,5", "stages=2,5", "optimizers=2", "others_sharded"
    done = run_programs(max(MORE_SIZES), folder, *programs)
    assert done.returncode == 0, done.stderr


def write_sharded_stages(folder: Path, name: str, sharded: bool) -> None:
    """An input with two stages, each with an optimiser that keeps its state in slabs or not."""
    adam, newton = {"name": "adam", "lr": 20.0}, {"name": "gauss-newton", "step": 40.0}
    stages = [
        {"inversion": {"epochs": epochs, "optimizer": {**optimizer, "sharded": sharded}}}
        for epochs, optimizer in ((2, adam), (3, newton))
    ]
    shots = {"inversion.sampling": "all", "inversion.batch": None}
    write_input(folder, {"stage": stages, "output.checkpoint": 1, **shots}, name)


def write_failures(folder: Path) -> None:
    """An input with a sample of shot 4 that is not a number, and a good one."""
    write_input(folder)
    data = np.full((N_SHOTS, N_RECEIVERS, N_SAMPLES), 0.01, np.float32)
    data[4, 7, 99] = np.nan
    write_given(folder, data)
    nan = {"inversion.batch": N_SHOTS, "output.directory": str(folder / "nan")}
    write_input(folder, {**FILE_INSTEAD, **nan}, name="nan")


def write_set_aside(folder: Path) -> None:
    """An input with an infinite sample of shot 4, and the permission for one such shot."""
    data = np.full((N_SHOTS, N_RECEIVERS, N_SAMPLES), 0.01, np.float32)
    data[4, 7, 99] = np.inf
    folder.mkdir()
    write_given(folder, data)
    allowed = {"inversion.batch": N_SHOTS, "inversion.max_failed_shots": 0.1}
    write_input(folder, {**FILE_INSTEAD, **allowed})


@pytest.fixture
def runs(job) -> Path:
    """Run directories named after their number of ranks, "serial" and "dynamic"; three shots an
    epoch, so that some ranks have none."""
    return job[0] / "any_number"


@pytest.mark.parametrize(
    "name",
    [
        *("3", "serial", "dynamic_1", "dynamic_3"),
        *(long_form(form.format(size)) for form in ("{}", "dynamic_{}") for size in MORE_SIZES),
    ],
)
def test_any_number_of_ranks_and_any_schedule_find_the_bits_of_one_rank(runs, name):
    assert_same_answer(runs / name, runs / "1")


def test_a_plain_sum_finds_other_bits_with_another_number_of_ranks(runs):
    """So that the comparisons above can fail."""
    one, three = (read_model(runs / f"plain_{size}" / "model.h5")["vp"] for size in (1, 3))
    assert not np.array_equal(one, three)
    np.testing.assert_allclose(one, three, rtol=1e-4)


@pytest.mark.parametrize(
    "name",
    [
        *("static_3", "dynamic_3"),
        *(long_form(f"{s}_{n}") for s in ("static", "dynamic") for n in MORE_SIZES),
    ],
)
def test_any_number_of_ranks_finds_the_bits_of_one_through_all_stages(job, name):
    found, expected = job[0] / "stages" / name, job[0] / "stages" / "static_1"
    assert_same_answer(found, expected, epochs=6)
    for stage in ("stage_1.h5", "stage_2.h5", "stage_3.h5"):
        assert (found / "epochs" / stage).read_bytes() == (expected / "epochs" / stage).read_bytes()


@pytest.mark.parametrize("size", ["3", long_form("2")])
@pytest.mark.parametrize("name", SEARCHING)
def test_any_number_of_ranks_finds_the_bits_of_one_in_searches_along_a_line(job, name, size):
    folder = job[0] / "optimizers" / name
    assert_same_answer(folder / size, folder / "1", epochs=3)
    one, other = (read_metrics(folder / run / "metrics.jsonl") for run in ("1", size))
    counts = [entry["simulations"] for entry in one]
    assert [entry["simulations"] for entry in other] == counts
    assert counts[-1] > 3 * N_SHOTS


@pytest.mark.parametrize("run", ["1", "2", "3", "4", "changing"])
@pytest.mark.parametrize("name", ["adam", *map(long_form, OTHERS_SHARDED)])
def test_with_slabs_of_the_optimisers_state_any_number_of_ranks_finds_the_same_bits(job, name, run):
    """Also where it is cut off, and goes on with another number of them, in slabs or not."""
    folder = job[0] / ("sharded" if name == "adam" else "others_sharded") / name
    assert_same_answer(folder / run, folder / "whole")
    vp, start = (read_model(folder / run / file)["vp"] for file in ("model.h5", "initial.h5"))
    assert np.abs(vp - start).max() > 20.0
    log = (folder / run / "log.txt").read_text()
    gone_on = [epoch for epoch in (2, 4) if f"the checkpoint of epoch {epoch}" in log]
    assert gone_on == ([2, 4] if run == "changing" else [])


def test_bits_are_the_same_through_stages_one_of_which_is_cut_off(job):
    """On two ranks in the second stage's second epoch; on three from there on."""
    folder = job[0] / "sharded_stages"
    assert_same_answer(folder / "slabs", folder / "whole")
    assert "Going on from the checkpoint of epoch 3" in (folder / "slabs" / "log.txt").read_text()


@pytest.mark.parametrize("size", ["3", long_form("2")])
@pytest.mark.parametrize("name", ["denoised", "network"])
def test_any_number_of_ranks_finds_the_bits_of_one_with_tiles_and_with_a_network(job, name, size):
    folder = job[0] / "optimizers" / name
    assert_same_answer(folder / size, folder / "1", epochs=3)


@pytest.mark.parametrize("size", ["3", long_form("2")])
def test_any_number_of_ranks_finds_the_bits_of_one_in_a_migration(job, size):
    folder = job[0] / "optimizers" / "cg"
    assert_same_answer(folder / size, folder / "1", epochs=3)
    one, other = (h5py.File(folder / run / "image.h5") for run in ("1", size))
    with one, other:
        np.testing.assert_array_equal(other["image"][...], one["image"][...])
        assert one["image"][...].any()


@pytest.mark.parametrize("size", [3, "serial", *map(long_form, MORE_SIZES)])
def test_any_number_of_ranks_observes_the_bytes_of_one(runs, size):
    assert traces(runs / str(size)) == traces(runs / "1")


def test_the_model_has_changed_so_that_these_comparisons_say_something(runs):
    vp, start = (
        read_model(runs / "1" / "model.h5")["vp"],
        read_model(runs / "1" / "initial.h5")["vp"],
    )
    assert np.abs(vp - start).max() > 50.0


def test_a_volume_inverted_by_three_ranks_in_two_goes_is_that_of_one(job):
    one, three = (job[0] / "volumes" / name for name in "13")
    assert traces(three) == traces(one)
    assert_same_answer(three, one, epochs=2)
    vp, start = (read_model(three / name)["vp"] for name in ("model.h5", "initial.h5"))
    assert np.abs(vp - start).max() > 20.0


def test_under_torchrun_it_is_the_same_too(runs):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    warm = warm_python()
    output = runs / "torchrun"
    command = ["-m", "hpcfwi", "run", str(runs / "input.toml"), "--output", str(output)]
    done = subprocess.run(
        [*warm, *torchrun, "--no-python", *warm, *command],
        env=make_env(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert traces(output) == traces(runs / "1")
    assert_same_answer(output, runs / "1")


def test_three_ranks_are_told_alike_what_is_wrong_with_an_input(job, tmp_path):
    told = said_by("bad_inputs", job[1])
    assert len(told) == len(BAD_INPUTS)
    for (said, different, message), bad in zip(told, BAD_INPUTS, strict=True):
        assert (said, different) == ("3", "1"), bad.name
        for word in bad.words:
            assert word in message, bad.name
        bad.write(tmp_path / bad.name)
        assert names_below(job[0] / "bad_inputs" / bad.name) == names_below(tmp_path / bad.name)


def names_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_three_ranks_stop_before_a_step_that_would_be_wrong(job):
    of_nan, of_replicas = said_by("failures", job[1])
    assert of_nan[:2] == of_replicas[:2] == ["3", "1"]
    assert of_nan[2].startswith("1 of 10 shots, 4, gave a misfit or gradient that is not finite")
    assert of_replicas[2].startswith("after epoch 1 the models of ranks [2] differ")
    for run in (job[0] / "failures" / "nan", job[0] / "failures" / "run"):
        assert not (run / "model.h5").exists()
        assert not (run / "metrics.jsonl").read_text()
        assert not list((run / "checkpoints").iterdir())


def test_a_shot_that_is_set_aside_is_listed_and_the_answer_is_the_same_on_any_number(job):
    runs = [job[0] / "set_aside" / name for name in ("1", "3")]
    assert_same_answer(*runs)
    for entry in read_metrics(runs[0] / "metrics.jsonl"):
        assert entry["failed"] == [4]
    log = (runs[1] / "log.txt").read_text()
    assert "went on without shots [4], whose misfit or gradient is not finite" in log
    assert "1 of 10 shots were set aside" in log.splitlines()[-2]


def test_where_a_rank_is_slow_the_dynamic_schedule_is_faster_with_the_same_bits(job):
    """One of three, at a third of the others' speed, with the waits that are told each epoch."""
    static, dynamic = (job[0] / "slow_rank" / name for name in ("static", "dynamic"))
    assert_same_answer(dynamic, static, epochs=3)
    # The first epoch simulates a shot more, from which the resolution of the sums comes.
    (one, two) = (read_metrics(run / "metrics.jsonl")[1:] for run in (static, dynamic))
    assert median(e["seconds"] for e in one) > 1.5 * median(e["seconds"] for e in two)
    assert median(e["wait"] for e in one) > 2.0 * median(e["wait"] for e in two)


def test_windows_give_the_same_answer_on_one_and_on_three_ranks(job):
    assert_same_answer(job[0] / "windows" / "3", job[0] / "windows" / "1")


def test_a_rank_whose_memory_runs_out_takes_fewer_shots_and_the_answer_is_the_same(job):
    folder, output = job
    for size, most in (("1", 4), ("3", 3)):
        assert [size, "1", size, "half", "nothing"] in said_by("memory", output)
        runs = [read_model(folder / "memory" / f"{name}_{size}" / "model.h5")["vp"]
                for name in ("enough", "half")]  # fmt: skip
        np.testing.assert_array_equal(*runs)
        said = f"ran out of memory with {most} shots at a time: going on with {most // 2}"
        assert output.count(said) >= 1


def test_where_one_shot_is_too_much_all_ranks_end_with_the_same_message(job):
    told = {(size, name): (number, different, message)
            for number, different, size, name, message in said_by("memory", job[1])}  # fmt: skip
    for size, last in (("1", 0), ("3", 2)):
        for name, begin, words in (
            ("none", f"InversionFailure rank {last} on ", "wave.memory"),
            ("poor", "InputError memory: ", "the simulation of one shot takes"),
        ):
            number, different, message = told[size, name]
            assert (number, different) == (size, "1")
            assert message.startswith(begin)
            assert words in message
        assert "one shot at a time (Unable to allocate 7 GiB)" in told[size, "none"][2]
        assert not (job[0] / "memory" / f"none_{size}" / "model.h5").exists()


def test_ranks_stopped_or_killed_and_started_again_find_the_same_bits_in_any_number(tmp_path):
    """Killed as the wavelet is estimated, and within a search along a line."""
    folder = tmp_path / "stop_and_die"
    estimated = {"name": "estimate", "every": 2}
    lbfgs = {"name": "lbfgs", "step": 40.0}
    stages = [
        {"inversion": {"epochs": 3, "wavelet": estimated}},
        {"inversion": {"epochs": 2, "optimizer": lbfgs, "sampling": "all"}},
    ]
    path = write_input(folder, {"stage": stages})

    done = run_programs(2, tmp_path, "stop_and_die")

    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    stop = "stopped by SIGTERM after epoch 3; the same command goes on from there"
    assert sorted(said_by("stop_and_die", done.stdout)) == [["0", stop], ["1", stop]]
    run, whole = folder / "run", folder / "whole"
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["epoch_000002.ckpt"]

    done = run_programs(3, tmp_path, "go_on_and_die")

    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    assert [entry["epoch"] for entry in read_metrics(run / "metrics.jsonl")] == [1, 2, 3, 4]

    done = run_ranks(2, ["-m", "hpcfwi", "run", str(path)], timeout=TIMEOUT, warm=True)

    assert done.returncode == 0, done.stderr
    assert "Going on from the checkpoint of epoch 4" in done.stdout
    for interrupted in (run, folder / "stopped"):
        assert misfits(interrupted) == misfits(whole)
        for name in ("model.h5", "model_best.h5"):
            vp = read_model(interrupted / name)["vp"]
            np.testing.assert_array_equal(vp, read_model(whole / name)["vp"])
    assert (run / "epoch_0005.png").exists()
