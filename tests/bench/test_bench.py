"""Tests of `hpcfwi bench`."""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from statistics import median

import pytest
import torch

from hpcfwi import bench, cli
from hpcfwi.bench import (
    compare_in_turns,
    list_engines,
    list_histories,
    longest_interval,
    make_shots,
)
from hpcfwi.wave import Snapshots, acoustic
from hpcfwi.wave.history import describe
from tests.ranks import run_command, run_ranks


def test_functions_are_timed_in_turns_after_a_warm_up(monkeypatch):
    order: list[str] = []
    works = {"a": partial(order.append, "a"), "b": partial(order.append, "b")}
    clock = iter([0.0, 2.0, 2.0, 6.0, 10.0, 13.0, 13.0, 25.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    taken = compare_in_turns(works, 2, "a")
    monkeypatch.undo()
    assert order == ["a", "b"] + 2 * ["a", "b"]
    assert taken == {"a": (2.5, 1.0), "b": (8.0, 3.0)}


def test_measured_shots_compute_the_gradient_of_the_operator():
    shots = make_shots((30, 50), 2, 60, 5)
    vp = shots.vp.clone().requires_grad_()
    places = (12.5 * shots.sources, 12.5 * shots.receivers)
    options = {"order": 4, "boundary_frequency": 10.0, "max_velocity": 4500.0}
    data = acoustic(
        vp, 12.5, 1e-3, shots.wavelet, *places, engine="eager", history=Snapshots(1), **options
    )
    (0.5 * data.square().sum()).backward()
    found = shots.run(True, engine="eager", history=Snapshots(1))
    torch.testing.assert_close(found, vp.grad)
    assert shots.updates == 2 * 60 * 70 * 90


def test_longest_interval_divides_the_record():
    shots = make_shots((30, 50), 1, 400)
    assert 400 % longest_interval(shots) == 0
    assert longest_interval(shots) > 5


@pytest.mark.parametrize("name", list(list_engines()))
def test_every_kind_of_history_of_an_engine_is_measured(name):
    engine = list_engines()[name]
    listed = list_histories(engine, 10)
    assert listed[0] == Snapshots(1)
    told = [describe(history) for history in listed]
    assert told[0] == "snapshots, every step, full precision"
    assert len(set(told)) == len(told)
    for kind in engine.HISTORIES:
        assert any(words.startswith(kind) for words in told[1:])


PEAKS = """
import numpy as np
from hpcfwi.bench import measure_growth_of_memory

np.ones(30_000_000)
for _ in range(5):  # the system may reclaim pages during one of them
    print(measure_growth_of_memory(lambda: np.ones(5_000_000)))
"""


def test_measured_memory_growth_is_not_hidden_by_an_earlier_peak():
    """It runs in its own process, since memory of other tests could be freed meanwhile."""
    done = run_command([sys.executable, "-c", PEAKS])
    assert median(map(int, done.stdout.split())) == pytest.approx(40e6, rel=0.1)


def test_ranks_are_not_measured_without_mpirun(monkeypatch):
    monkeypatch.setenv("MPIRUN", "no-such-launcher --bind-to none")
    assert bench.compare_ranks(1, most=2) == []


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The numbers of a small bench without ranks, as written to its file."""
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPIRUN", "no-such-launcher")
        numbers = bench.run_bench(folder / "here", 2, lambda _: None, small=True)
    assert [path.name for path in (folder / "here").iterdir()] == ["bench.json"]
    assert json.loads((folder / "here" / "bench.json").read_text()) == numbers
    return numbers


def test_measured_histories_have_errors_and_times(written):
    exact, *others = written["histories"]
    assert exact["error"] == 0.0
    assert all(0.0 <= row["error"] < 0.5 for row in others)
    assert all(row["seconds"] > 0.0 for row in others)


def test_growth_of_time_is_measured_with_the_growth_of_work(written):
    assert [row["growth"] for row in written["growth"]][1:3] == [2.0, 4.0]
    assert written["growth"][0]["ratio"] == 1.0


def test_measurements_are_shown_in_few_lines(written, capsys):
    bench.show_numbers(written)
    shown = capsys.readouterr().out
    for word in ("cpu", "eager", "snapshots", "No mpirun that works", "MB/s", "checkpoint"):
        assert word in shown
    assert len(shown.splitlines()) < 70


def test_bench_into_an_unwritable_directory_is_an_input_error(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(sys, "argv", ["hpcfwi", "bench", "--output", str(tmp_path / "file")])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert "Choose a directory" in capsys.readouterr().err


def test_bench_under_a_launcher_is_refused():
    done = run_ranks(2, ["-m", "hpcfwi", "bench"], warm=True, code=2)
    assert done.stderr.count("hpcfwi: ") == 1
    assert "must run in one process. Start the command without a launcher." in done.stderr
