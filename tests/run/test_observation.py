"""Tests of the simulation of observed data, which the same command continues after a stop."""

from __future__ import annotations

import hashlib
import os
import re
import signal

import h5py
import numpy as np
import pytest

from hpcfwi.operators.simulator import Simulator
from hpcfwi.run import session
from tests.inversion.examples import N_SHOTS, write_input
from tests.openmpi import FAULT_TOLERANT, find_open_mpi
from tests.ranks import long_form, run_ranks


def digest(run):
    with h5py.File(run / "observed.h5") as file:
        return hashlib.sha256(file["data"][...].tobytes()).hexdigest()


def observe(path, ranks, how="none", rank=0, shots=0, serial=False, **launch):
    """Run a simulation in which a rank gets a signal; return its process and number of shots."""
    words = [str(path), how, str(rank), str(shots), *(["serial"] if serial else [])]
    done = run_ranks(ranks, ["-m", "tests.run.observing", *words], warm=True, **launch)
    return done, sum(map(int, re.findall(r"simulated (\d+)", done.stdout)))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = write_input(tmp_path_factory.mktemp("undisturbed"))
    _, simulated = observe(path, 1)
    assert simulated == N_SHOTS
    return digest(path.parent / "run")


# Ranks before the kill, the rank that is killed and after how many of its shots, ranks afterwards,
# and whether HDF5 is serial
KILLS = [
    (3, 0, 2, 2, False),
    (2, 0, 5, 3, True),
    long_form(1, 0, 4, 3, False),
    long_form(2, 1, 2, 1, False),
]


@pytest.mark.parametrize(("before", "rank", "shots", "after", "serial"), KILLS)
def test_restarted_simulation_skips_shots_done_before_the_kill(
    before, rank, shots, after, serial, undisturbed, tmp_path
):
    path, run = write_input(tmp_path), tmp_path / "run"
    done, _ = observe(path, before, "SIGKILL", rank, shots, serial, code=None)
    assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), done.stderr
    assert not (run / "observed.h5").exists()
    with h5py.File(run / "observed.h5.part") as file:
        there = np.count_nonzero(file["digests"])
    assert there >= shots

    done, simulated = observe(path, after, serial=serial)

    already = f"Continuing with the simulation: {there} of {N_SHOTS} shots are already in {run}"
    assert already in done.stdout
    assert simulated == N_SHOTS - there
    assert digest(run) == undisturbed
    assert not (run / "observed.h5.part").exists()


def test_surviving_ranks_continue_with_the_shots_already_written(undisturbed, tmp_path):
    mpirun, env = find_open_mpi()
    launch = {"env": env, "launcher": (mpirun, *FAULT_TOLERANT)}
    done, simulated = observe(write_input(tmp_path), 3, "SIGKILL", 0, 5, **launch)
    (there,) = re.findall(r"Continuing with the simulation: (\d+) of 10 shots", done.stdout)
    assert int(there) >= 3, "all ranks have written their first shot"
    assert simulated < 2 * N_SHOTS
    assert digest(tmp_path / "run") == undisturbed


@pytest.mark.parametrize(("name", "ranks"), [("SIGTERM", 1), ("SIGUSR1", 2)])
def test_signal_stops_simulation_after_current_shots_and_it_continues(
    name, ranks, undisturbed, tmp_path
):
    path, run = write_input(tmp_path), tmp_path / "run"
    done, simulated = observe(path, ranks, name, ranks - 1, shots=2, code=3)
    assert simulated == 3 * ranks
    assert (
        f"hpcfwi: stopped by {name} after {simulated} of {N_SHOTS} shots were simulated; "
        f"the same command continues from shot {simulated}\n" in done.stderr
    )
    assert done.stderr.count("hpcfwi: ") == 1
    _, rest = observe(path, 3 - ranks)
    assert rest == N_SHOTS - simulated
    assert digest(run) == undisturbed


@pytest.mark.usefixtures("no_figures")
def test_inversion_stopped_while_simulating_data_continues_to_the_end(
    hpcfwi, tmp_path, monkeypatch, capsys
):
    path, simulate = write_input(tmp_path, {"inversion.epochs": 2}), Simulator.simulate

    def stopped(*args, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        return simulate(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Simulator, "simulate", stopped)
        assert hpcfwi("run", path) == 3
    assert "continues from shot " in capsys.readouterr().err
    assert hpcfwi("run", path) == 0
    assert "Continuing with the simulation" in capsys.readouterr().out


def test_watch_reports_the_phase_and_the_shot_to_continue_from(hpcfwi, tmp_path, monkeypatch):
    said, watch, simulate = [], session.Watch, Simulator.simulate

    def listening(context, stop, save):
        def simulate_and_ask(*args, **options):
            said.append((save(), context.heartbeat.work))
            return simulate(*args, **options)

        monkeypatch.setattr(Simulator, "simulate", simulate_and_ask)
        return watch(context, stop, save)

    monkeypatch.setattr(session, "Watch", listening)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert hpcfwi("forward", write_input(tmp_path), "--quiet") == 0
    assert [shot for shot, _ in said] == ["shot 0", "shot 3", "shot 6", "shot 9"]
    assert {work for _, work in said} == {"the simulation of the observed data"}


def test_shots_with_traces_that_are_not_finite_are_simulated_again(
    hpcfwi, undisturbed, tmp_path, monkeypatch, capsys
):
    path, simulate, calls = write_input(tmp_path), Simulator.simulate, []

    def spoiling(*args, **options):
        calls.append(None)
        result = simulate(*args, **options)
        if len(calls) == 3:
            result.data[0, 0, 0] = np.nan
        return result

    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with monkeypatch.context() as patch:
        patch.setattr(Simulator, "simulate", spoiling)
        assert hpcfwi("forward", path) == 1
    assert "shots [4] gave traces that are not finite" in capsys.readouterr().err
    assert hpcfwi("forward", path) == 0
    assert f"Continuing with the simulation: 4 of {N_SHOTS} shots" in capsys.readouterr().out
    assert digest(tmp_path / "run") == undisturbed


# m; sources and receivers lie on points of the grid, as the fixed receivers do
SOURCES = {"count": N_SHOTS, "depth": 20.0, "first": 0.0, "last": 1080.0}
SPREAD = {"count": 12, "depth": 40.0, "offset": -40.0, "spacing": 40.0}


@pytest.mark.usefixtures("no_figures")
def test_moving_spread_records_the_traces_of_fixed_receivers(hpcfwi, tmp_path):
    fixed = {"survey.sources": SOURCES, "survey.receivers": {"count": 60, "depth": 40.0}}
    moving = {"survey.sources": SOURCES, "survey.receivers": SPREAD, "inversion.epochs": 2}
    assert hpcfwi("forward", write_input(tmp_path / "fixed", fixed)) == 0
    path, run = write_input(tmp_path / "moving", moving), tmp_path / "moving" / "run"
    assert hpcfwi("forward", path) == 0
    with h5py.File(tmp_path / "fixed" / "run" / "observed.h5") as file:
        expected = file["data"][...]
    with h5py.File(run / "observed.h5") as file:
        data, mask, x = file["data"][...], file["mask"][...], file["receivers"][..., 1]
    assert mask.sum(axis=1).tolist() == [11, *[12] * 6, 10, 7, 4]
    for shot, receiver in zip(*mask.nonzero(), strict=True):
        place = round(x[shot, receiver] / 20.0)
        np.testing.assert_array_equal(data[shot, receiver], expected[shot, place])

    assert hpcfwi("run", path) == 0
    model = (run / "model.h5").read_bytes()
    with h5py.File(run / "observed.h5", "a") as file:
        file["data"][...] = np.where(mask[..., None], data, np.nan)
    for left in (*(run / "checkpoints").iterdir(), run / "model.h5", run / "metrics.jsonl"):
        left.unlink()
    assert hpcfwi("run", path) == 0
    assert (run / "model.h5").read_bytes() == model, "masked traces change no bit"
