"""Tests of inversions on several ranks, which must find the same bits on any number of them.

The ranks run the programs of `tests.run.programs`.
"""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from statistics import median

import h5py
import numpy as np
import pytest

from hpcfwi.storage.models import read_model
from tests.inversion.bad_inputs import BAD_INPUTS, FILE_INSTEAD, write_given
from tests.inversion.examples import (
    N_RECEIVERS,
    N_SAMPLES,
    N_SHOTS,
    read_history,
    read_metric,
    read_vp,
    write_input,
    write_volume,
)
from tests.inversion.optimizers.test_inversions import SEARCHING, changes
from tests.ranks import long_form, run_ranks, run_torchrun
from tests.run.test_stages import STAGES

# The keys that `hpcfwi migrate` sets
MIGRATION = {
    "inversion.epochs": 3,
    "inversion.sampling": "all",
    "inversion.linear": True,
    "inversion.optimizer": {"name": "cg", "balance": True},
    "inversion.precondition": {"illumination": 0.001},
    "output.every": 3,
}
# Every rank has tiles, and denoises each with the samples around it
DENOISED = {
    "inversion.epochs": 3,
    "inversion.prior": {"denoiser": "tv", "strength": 0.03, "patch": 16, "overlap": 4},
    "output.every": 3,
}
# `programs.optimizers` cuts its points into four blocks
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
# Numbers of ranks of the long forms, in addition to one and three
MORE_SIZES = (2, 5)
TIMEOUT = 400.0  # s, on a busy machine


def run_programs(
    n: int, folder: Path, *names: str, timeout: float = TIMEOUT, code: int | None = 0
) -> subprocess.CompletedProcess[str]:
    programs = ["-m", "tests.run.programs", str(folder), *names]
    return run_ranks(n, programs, timeout=timeout, warm=True, code=code)


def printed_by(name: str, output: str) -> list[list[str]]:
    """Return the words of each line that a program has printed."""
    lines = [line.split("\t") for line in output.splitlines()]
    return [words for program, *words in lines if program == name]


class Jobs:
    """Programs that share a job under `mpirun`, as starting the ranks takes most of the time.

    A program that fails ends its job. Those after it then run in another job, so that only the
    tests that ask for the failed program fail.
    """

    def __init__(self, folder: Path, errors: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.errors = errors or {}
        self.output = ""

    def run(self, n: int, *programs: str) -> None:
        """Run programs, `NAME` or `NAME=SIZES`, on `n` ranks."""
        deadline, left = time.monotonic() + TIMEOUT, list(programs)
        while left:
            try:
                timeout = max(deadline - time.monotonic(), 1.0)
                done = run_programs(n, self.folder, *left, timeout=timeout, code=None)
                end, output, errors = f"exit code {done.returncode}", done.stdout, done.stderr
            except subprocess.TimeoutExpired as late:
                end, output, errors = "the time limit", str(late.stdout), str(late.stderr)
            self.output += output + errors
            finished = len(printed_by("finished", output))
            if end == "exit code 0":
                assert finished == len(left)
                return
            failed, left = left[min(finished, len(left) - 1)], left[finished + 1 :]
            self.errors[failed.partition("=")[0]] = f"it ended with {end}:\n{errors}"

    def directory(self, program: str) -> Path:
        """Return the directory of a program, or fail if the program has failed."""
        if program in self.errors:
            pytest.fail(f"the program {program} has failed on its ranks, {self.errors[program]}")
        return self.folder / program

    def lines(self, program: str) -> list[list[str]]:
        """Return the words of each line of a program, or fail if the program has failed."""
        self.directory(program)
        return printed_by(program, self.output)


def misfits(run: Path, epochs: int = 5) -> list[float]:
    """Return the misfits of the epochs; the metrics must have each epoch once."""
    history = read_history(run)
    assert [entry["epoch"] for entry in history] == list(range(1, epochs + 1))
    return [entry["loss"] for entry in history]


def assert_same_answer(run: Path, other: Path, epochs: int = 5) -> None:
    """Assert that two runs have the same misfits, models and pictures, to the last bit."""
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
def jobs(request, short_jobs) -> Jobs:
    """The programs that have run, including those of the long forms for a long form."""
    is_long = request.node.get_closest_marker("long")
    return request.getfixturevalue("long_jobs") if is_long else short_jobs


@pytest.fixture(scope="module")
def short_jobs(tmp_path_factory) -> Jobs:
    folder = tmp_path_factory.mktemp("job")
    write_input(folder / "any_number")
    write_input(folder / "layers" / "flat")
    write_volume(folder / "layers" / "solid", {"wave.engine": "cpu", "wave.boundary": 10})
    encoded = {"inversion.encoding": "signs", "inversion.batch": 1, "inversion.epochs": 3}
    write_input(folder / "layers" / "encoded", {**encoded, "output.every": 3})
    windows = {"wave.aperture": 200.0, "inversion.max_offset": 300.0, "wave.spacing": 25.0}
    write_input(folder / "layers" / "windows", windows)
    newton = {**changes("gauss-newton", 2), "output.every": 2}
    write_input(folder / "layers" / "newton", newton)
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
    for name in ("whole", "shards"):
        write_sharded_stages(folder / "sharded_stages", name, sharded=name == "shards")
    write_input(folder / "slow_rank", {"inversion.batch": N_SHOTS, "inversion.epochs": 3})
    programs = (
        "any_number=1,3",
        "layers",
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
    jobs = Jobs(folder)
    jobs.run(4, *programs)
    return jobs


@pytest.fixture(scope="module")
def long_jobs(short_jobs) -> Jobs:
    """Programs with more ranks and optimizers, whose results are compared with the short ones."""
    for name, keys in OTHERS_SHARDED.items():
        folder = short_jobs.folder / "others_sharded" / name
        write_input(folder, {**keys, "output.checkpoint": 2})
    jobs = Jobs(short_jobs.folder, dict(short_jobs.errors))
    jobs.run(max(MORE_SIZES), "any_number=2,5", "stages=2,5", "optimizers=2", "others_sharded")
    return jobs


def write_sharded_stages(folder: Path, name: str, sharded: bool) -> None:
    """Write an input with two stages, whose optimizers keep their state in shards or whole."""
    adam, newton = {"name": "adam", "lr": 20.0}, {"name": "gauss-newton", "step": 40.0}
    stages = [
        {"inversion": {"epochs": epochs, "optimizer": {**optimizer, "sharded": sharded}}}
        for epochs, optimizer in ((2, adam), (3, newton))
    ]
    shots = {"inversion.sampling": "all", "inversion.batch": None}
    write_input(folder, {"stage": stages, "output.checkpoint": 1, **shots}, name)


def write_failures(folder: Path) -> None:
    """Write an input with a NaN in shot 4 of its data, and a correct input."""
    write_input(folder)
    data = np.full((N_SHOTS, N_RECEIVERS, N_SAMPLES), 0.01, np.float32)
    data[4, 7, 99] = np.nan
    write_given(folder, data)
    nan = {"inversion.batch": N_SHOTS, "output.directory": str(folder / "nan")}
    write_input(folder, {**FILE_INSTEAD, **nan}, name="nan")


def write_set_aside(folder: Path) -> None:
    """Write an input with an infinite sample in shot 4 that allows one failed shot."""
    data = np.full((N_SHOTS, N_RECEIVERS, N_SAMPLES), 0.01, np.float32)
    data[4, 7, 99] = np.inf
    folder.mkdir()
    write_given(folder, data)
    allowed = {"inversion.batch": N_SHOTS, "inversion.max_failed_shots": 0.1}
    write_input(folder, {**FILE_INSTEAD, **allowed})


@pytest.fixture
def runs(jobs) -> Path:
    """The folder of runs with three shots an epoch, so that some ranks have none.

    They are named after their number of ranks and what is special: "3", "dynamic_3", "serial".
    """
    return jobs.directory("any_number")


@pytest.mark.parametrize(
    "name",
    [
        *("3", "serial", "dynamic_1", "dynamic_3"),
        *(long_form(form.format(size)) for form in ("{}", "dynamic_{}") for size in MORE_SIZES),
    ],
)
def test_inversion_has_the_same_bits_on_any_ranks_and_schedule(runs, name):
    assert_same_answer(runs / name, runs / "1")


@pytest.mark.parametrize(
    ("kind", "name", "epochs"),
    [
        *(("flat", name, 5) for name in ("2_of_2", "2_of_4", "4_of_4", "3_of_3")),
        ("solid", "2_of_4", 2),
        ("encoded", "4_of_4", 3),
        ("windows", "2_of_2", 5),
        ("newton", "2_of_2", 2),
    ],
)
def test_inversion_has_the_same_bits_with_any_number_of_ranks_per_shot(jobs, kind, name, epochs):
    folder = jobs.directory("layers") / kind
    assert_same_answer(folder / name, folder / "1_of_1", epochs)
    assert traces(folder / name) == traces(folder / "1_of_1")


def test_inversion_continues_with_another_number_of_ranks_per_shot(jobs):
    folder = jobs.directory("layers") / "flat"
    assert_same_answer(folder / "continued", folder / "1_of_1")


def test_plain_sum_depends_on_the_number_of_ranks(runs):
    """This shows that the comparisons of bits can fail."""
    one, three = (read_vp(runs / f"plain_{size}") for size in (1, 3))
    assert not np.array_equal(one, three)
    np.testing.assert_allclose(one, three, rtol=1e-4)


@pytest.mark.parametrize(
    "name",
    [
        *("static_3", "dynamic_3"),
        *(long_form(f"{s}_{n}") for s in ("static", "dynamic") for n in MORE_SIZES),
    ],
)
def test_stages_have_the_same_bits_on_any_number_of_ranks(jobs, name):
    found, expected = jobs.directory("stages") / name, jobs.directory("stages") / "static_1"
    assert_same_answer(found, expected, epochs=6)
    for stage in ("stage_1.h5", "stage_2.h5", "stage_3.h5"):
        assert (found / "epochs" / stage).read_bytes() == (expected / "epochs" / stage).read_bytes()


@pytest.mark.parametrize("size", ["3", long_form("2")])
@pytest.mark.parametrize("name", SEARCHING)
def test_line_searches_have_the_same_bits_on_any_number_of_ranks(jobs, name, size):
    folder = jobs.directory("optimizers") / name
    assert_same_answer(folder / size, folder / "1", epochs=3)
    one, other = (read_history(folder / run) for run in ("1", size))
    counts = [entry["simulations"] for entry in one]
    assert [entry["simulations"] for entry in other] == counts
    assert counts[-1] > 3 * N_SHOTS


@pytest.mark.parametrize("run", ["1", "2", "3", "4", "changing"])
@pytest.mark.parametrize("name", ["adam", *map(long_form, OTHERS_SHARDED)])
def test_sharded_optimizer_has_the_same_bits_on_any_number_of_ranks(jobs, name, run):
    """The run "changing" is interrupted twice and changes its ranks and shards."""
    folder = jobs.directory("sharded") / name
    if name != "adam":
        folder = jobs.directory("others_sharded") / name
    assert_same_answer(folder / run, folder / "whole")
    vp, start = (read_model(folder / run / file)["vp"] for file in ("model.h5", "initial.h5"))
    assert np.abs(vp - start).max() > 20.0
    log = (folder / run / "log.txt").read_text()
    gone_on = [epoch for epoch in (2, 4) if f"the checkpoint of epoch {epoch}" in log]
    assert gone_on == ([2, 4] if run == "changing" else [])


def test_interrupted_sharded_stages_continue_to_the_same_bits(jobs):
    """Two ranks are interrupted in stage 2, and three continue."""
    folder = jobs.directory("sharded_stages")
    assert_same_answer(folder / "shards", folder / "whole")
    log = (folder / "shards" / "log.txt").read_text()
    assert "Continuing from the checkpoint of epoch 3" in log


@pytest.mark.parametrize("size", ["3", long_form("2")])
@pytest.mark.parametrize("name", ["denoised", "network"])
def test_denoiser_and_network_have_the_same_bits_on_any_number_of_ranks(jobs, name, size):
    folder = jobs.directory("optimizers") / name
    assert_same_answer(folder / size, folder / "1", epochs=3)


@pytest.mark.parametrize("size", ["3", long_form("2")])
def test_migration_has_the_same_bits_on_any_number_of_ranks(jobs, size):
    folder = jobs.directory("optimizers") / "cg"
    assert_same_answer(folder / size, folder / "1", epochs=3)
    one, other = (h5py.File(folder / run / "image.h5") for run in ("1", size))
    with one, other:
        np.testing.assert_array_equal(other["image"][...], one["image"][...])
        assert one["image"][...].any()


@pytest.mark.parametrize("size", [3, "serial", *map(long_form, MORE_SIZES)])
def test_observed_data_are_the_same_bytes_on_any_number_of_ranks(runs, size):
    assert traces(runs / str(size)) == traces(runs / "1")


def test_compared_models_differ_from_the_initial_model(runs):
    vp, start = (
        read_vp(runs / "1"),
        read_model(runs / "1" / "initial.h5")["vp"],
    )
    assert np.abs(vp - start).max() > 50.0


def test_volume_has_the_same_bits_on_one_rank_and_on_three_restarted(jobs):
    one, three = (jobs.directory("volumes") / name for name in "13")
    assert traces(three) == traces(one)
    assert_same_answer(three, one, epochs=2)
    vp, start = (read_model(three / name)["vp"] for name in ("model.h5", "initial.h5"))
    assert np.abs(vp - start).max() > 20.0


def test_torchrun_finds_the_same_bits_as_mpirun(runs):
    output = runs / "torchrun"
    command = ["-m", "tests.undrawn", "run", str(runs / "input.toml"), "--output", str(output)]
    run_torchrun(2, command, timeout=TIMEOUT)
    assert traces(output) == traces(runs / "1")
    assert_same_answer(output, runs / "1")


def test_three_ranks_raise_the_same_error_for_a_bad_input(jobs, tmp_path):
    told = jobs.lines("bad_inputs")
    assert len(told) == len(BAD_INPUTS)
    for (said, different, message), bad in zip(told, BAD_INPUTS, strict=True):
        assert (said, different) == ("3", "1"), bad.name
        for word in bad.words:
            assert word in message, bad.name
        bad.write(tmp_path / bad.name)
        assert names_below(jobs.directory("bad_inputs") / bad.name) == names_below(
            tmp_path / bad.name
        )


def names_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_three_ranks_stop_before_a_wrong_step(jobs):
    of_nan, of_replicas = jobs.lines("failures")
    assert of_nan[:2] == of_replicas[:2] == ["3", "1"]
    assert of_nan[2].startswith("1 of 10 shots, 4, gave a misfit or gradient that is not finite")
    assert of_replicas[2].startswith("after epoch 1 the models of ranks [2] differ")
    for run in (jobs.directory("failures") / "nan", jobs.directory("failures") / "run"):
        assert not (run / "model.h5").exists()
        assert not (run / "metrics.jsonl").read_text()
        assert not list((run / "checkpoints").iterdir())


def test_shot_set_aside_is_listed_and_bits_are_the_same_on_any_ranks(jobs):
    runs = [jobs.directory("set_aside") / name for name in ("1", "3")]
    assert_same_answer(*runs)
    for entry in read_history(runs[0]):
        assert entry["failed"] == [4]
    log = (runs[1] / "log.txt").read_text()
    assert "left out shots [4], whose misfit or gradient is not finite" in log
    assert "1 of 10 shots were left out" in log.splitlines()[-2]


def test_dynamic_schedule_is_faster_with_a_slow_rank_and_has_the_same_bits(jobs):
    """One of three ranks has a third of the speed of the others."""
    static, dynamic = (jobs.directory("slow_rank") / name for name in ("static", "dynamic"))
    assert_same_answer(dynamic, static, epochs=3)
    # The first epoch simulates one more shot, to choose the resolution of the exact sums.
    (one, two) = (read_history(run)[1:] for run in (static, dynamic))
    assert median(e["seconds"] for e in one) > 1.5 * median(e["seconds"] for e in two)
    assert median(e["wait"] for e in one) > 2.0 * median(e["wait"] for e in two)


def test_windows_have_the_same_bits_on_one_and_on_three_ranks(jobs):
    assert_same_answer(jobs.directory("windows") / "3", jobs.directory("windows") / "1")


def test_rank_out_of_memory_takes_fewer_shots_and_finds_the_same_bits(jobs):
    folder, output = jobs.directory("memory"), jobs.output
    for size, most in (("1", 4), ("3", 3)):
        assert [size, "1", size, "half", "nothing"] in jobs.lines("memory")
        runs = [read_vp(folder / f"{name}_{size}")
                for name in ("enough", "half")]  # fmt: skip
        np.testing.assert_array_equal(*runs)
        said = f"ran out of memory with {most} shots at a time: continuing with {most // 2}"
        assert output.count(said) >= 1


def test_all_ranks_raise_the_same_error_if_one_shot_exceeds_the_memory(jobs):
    told = {(size, name): (number, different, message)
            for number, different, size, name, message in jobs.lines("memory")}  # fmt: skip
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
        assert not (jobs.directory("memory") / f"none_{size}" / "model.h5").exists()


def test_stopped_or_killed_ranks_continue_to_the_same_bits_on_any_number(tmp_path):
    """Ranks are killed while the wavelet is estimated, and within a line search."""
    folder = tmp_path / "stop_and_die"
    estimated = {"name": "estimate", "every": 2}
    lbfgs = {"name": "lbfgs", "step": 40.0}
    stages = [
        {"inversion": {"epochs": 3, "wavelet": estimated}},
        {"inversion": {"epochs": 2, "optimizer": lbfgs, "sampling": "all"}},
    ]
    path = write_input(folder, {"stage": stages})

    done = run_programs(2, tmp_path, "stop_and_die", code=128 + signal.SIGKILL)

    stop = "stopped by SIGTERM after epoch 3; the same command continues from there"
    assert sorted(printed_by("stop_and_die", done.stdout)) == [["0", stop], ["1", stop]]
    run, whole = folder / "run", folder / "whole"
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["epoch_000002.ckpt"]

    run_programs(3, tmp_path, "go_on_and_die", code=128 + signal.SIGKILL)

    assert read_metric(run, "epoch") == [1, 2, 3, 4]

    done = run_ranks(2, ["-m", "hpcfwi", "run", str(path)], timeout=TIMEOUT, warm=True)

    assert "Continuing from the checkpoint of epoch 4" in done.stdout
    for interrupted in (run, folder / "stopped"):
        assert misfits(interrupted) == misfits(whole)
        for name in ("model.h5", "model_best.h5"):
            vp = read_model(interrupted / name)["vp"]
            np.testing.assert_array_equal(vp, read_model(whole / name)["vp"])
    assert (run / "epoch_0005.png").exists()


def test_warning_about_fewer_epochs_is_printed_by_rank_0_only(tmp_path):
    command = ["-m", "tests.undrawn", "run", str(write_input(tmp_path)), "--set"]
    run_ranks(2, [*command, "inversion.epochs=2"], timeout=TIMEOUT, warm=True)
    done = run_ranks(2, [*command, "inversion.epochs=1"], timeout=TIMEOUT, warm=True)
    assert "WARNING: Only 1 epochs are requested" in done.stdout
    assert "rank 1" not in done.stderr
