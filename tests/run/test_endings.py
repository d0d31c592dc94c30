"""Tests of the data fit at the end of a stage, measured by simulating a few shots."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from dataclasses import replace
from functools import partial
from itertools import count

import h5py
import numpy as np
import pytest
import torch

from hpcfwi.errors import InputError
from hpcfwi.inversion import shot_qc
from hpcfwi.run import records, session
from hpcfwi.run.records import read_fit
from hpcfwi.storage.models import read_model
from tests.inversion.examples import N_RECEIVERS, N_SHOTS, prepare_alone, read_vp, write_input
from tests.ranks import run_ranks
from tests.undrawn import run_undrawn

pytestmark = pytest.mark.usefixtures("no_figures")

LOW = {
    "spacing": 40.0,
    "data": {"band": [0.0, 8.0]},
    "inversion": {"epochs": 1, "encoding": "signs"},
}
CHANGES = {
    "stage": [LOW, {"inversion": {"epochs": 2, "wavelet": "estimate"}}],
    "output.checkpoint": 1,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The directory of a run of two stages, with encoded shots and an estimated wavelet."""
    return run_undrawn(write_input(tmp_path_factory.mktemp("whole"), CHANGES))


@pytest.fixture
def path(tmp_path, whole):
    """An input for the same run in another directory, which has its observed data."""
    (tmp_path / "run").mkdir()
    shutil.copy(whole / "observed.h5", tmp_path / "run")
    return write_input(tmp_path, CHANGES)


def ending(run, number):
    return run / "epochs" / f"stage_{number}.h5"


def test_each_stage_writes_the_fit_of_all_shots_in_its_band(whole):
    (first, after), (second, last) = (read_fit(ending(whole, number)) for number in (1, 2))
    assert (after, last) == (1, 3)
    for fit in (first, second):
        assert [shot.number for shot in fit.shots] == list(range(N_SHOTS))
        assert [view.number for view in fit.views] == [1, 5, 8]
        assert all(shot.offsets.size == N_RECEIVERS for shot in fit.shots)
        assert all(np.abs(shot.phases).max() < 90.0 for shot in fit.shots[4:6])
    assert first.axis.dt > second.axis.dt
    assert first.axis.start < second.axis.start == 0.0
    assert first.frequency < second.frequency == pytest.approx(8.0, rel=0.1)


def test_fit_uses_the_last_model_and_wavelet_of_the_stage(whole):
    fit, _ = read_fit(ending(whole, 2))
    experiment = prepare_alone(whole)
    shots = np.array([view.number for view in fit.views])
    with h5py.File(whole / "observed.h5") as file:
        observed = file["data"][shots]
    with h5py.File(whole / "wavelet.h5") as file:
        wavelet = np.broadcast_to(file["wavelet"][:], (shots.size, observed.shape[-1]))
    result = read_model(whole / "model.h5").as_tensors(torch.device("cpu"))
    survey = replace(experiment.survey.select(shots), wavelet=wavelet)
    simulator = experiment.simulator(experiment.initial)
    found = simulator.simulate(result, survey, keep=False).data.numpy()
    for view, ours, theirs in zip(fit.views, found, observed, strict=True):
        np.testing.assert_array_equal(view.simulated, ours)
        np.testing.assert_array_equal(view.observed, theirs)
        residual = theirs.astype(np.float64) - ours
        shot = fit.shots[view.number]
        assert shot.misfit == pytest.approx(0.5 * fit.axis.dt * np.sum(residual**2), rel=1e-5)


@pytest.mark.parametrize(("number", "code"), [(1, 3), (2, 0)])
def test_fit_stopped_by_a_signal_is_made_up_for_by_the_next_run(
    hpcfwi, path, whole, monkeypatch, capfd, number, code
):
    """The same command measures the missing fit, also after the last epoch."""
    measure, calls = session.measure_fit, count()

    def measure_and_stop(*args):
        if next(calls) == (0 if number == 1 else N_SHOTS):
            os.kill(os.getpid(), signal.SIGTERM)
        return measure(*args)

    run = path.parent / "run"
    with monkeypatch.context() as patch:
        patch.setattr(session, "measure_fit", measure_and_stop)
        assert hpcfwi("run", path) == code
    assert not ending(run, number).exists()
    if code:
        assert "stopped by SIGTERM after epoch 1" in capfd.readouterr().err
    assert hpcfwi("run", path) == 0
    np.testing.assert_array_equal(read_vp(run), read_vp(whole))
    for stage in (1, 2):
        assert ending(run, stage).read_bytes() == ending(whole, stage).read_bytes()


def test_run_warns_and_continues_if_the_fit_lacks_memory_or_disk_space(
    hpcfwi, path, whole, monkeypatch
):
    """The first stage lacks memory, the second one disk space."""
    see, keep, run = shot_qc._see, records.write_fit, path.parent / "run"

    def see_before(shots, *args, **options):
        if (run / "model.h5").exists() and shots.survey.start < 0.0:
            raise MemoryError("Unable to allocate 7 GiB")
        return see(shots, *args, **options)

    def fill_disk(file, *args):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", partial(fail, OSError(errno.ENOSPC, "No space left")))
            keep(file, *args)

    monkeypatch.setattr(shot_qc, "_see", see_before)
    monkeypatch.setattr(records, "write_fit", fill_disk)
    assert hpcfwi("run", path) == 0
    first, second = (
        line for line in (run / "log.txt").read_text().splitlines() if "not drawn" in line
    )
    assert "The data fit after epoch 1 is not drawn" in first
    assert "ran out of memory with one shot at a time" in first
    assert "The data fit after epoch 3 is not drawn" in second
    assert "No space left" in second
    np.testing.assert_array_equal(read_vp(run), read_vp(whole))


def fail(error, *_):
    raise error


READ_ERROR_ON_ONE_RANK = """
import sys
from mpi4py import MPI
from hpcfwi.errors import InputError
from hpcfwi.run import session
from tests.undrawn import main

def fail(*_):
    raise InputError("observed.h5", "the disk has an error", "Copy it again.")

if MPI.COMM_WORLD.rank == 1:
    session.read_observed = fail
sys.argv = ["hpcfwi", "run", sys.argv[1]]
main()
"""


def test_run_warns_and_continues_if_one_rank_cannot_read_data_for_the_fit(path, whole):
    run_ranks(2, ["-c", READ_ERROR_ON_ONE_RANK, str(path)], timeout=100, warm=True)
    log = (path.parent / "run" / "log.txt").read_text()
    assert log.count("is not drawn: observed.h5: the disk has an error") == 2
    np.testing.assert_array_equal(read_vp(path.parent / "run"), read_vp(whole))


def change_lengths(path):
    with h5py.File(path, "a") as file:
        del file["5/phases"]
        file["5/phases"] = np.zeros(3)


def cut_short(path):
    path.write_bytes(path.read_bytes()[:2000])


def forget_frequency(path):
    with h5py.File(path, "a") as file:
        del file.attrs["frequency"]


@pytest.mark.parametrize("damage", [change_lengths, cut_short, forget_frequency])
def test_error_for_a_damaged_fit_file_names_it(tmp_path, whole, damage):
    path = tmp_path / "stage_2.h5"
    shutil.copy(ending(whole, 2), path)
    damage(path)
    with pytest.raises(InputError, match=str(path)):
        read_fit(path)


def test_run_keeps_an_existing_fit_and_replaces_a_damaged_one(hpcfwi, tmp_path, whole, monkeypatch):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    again = ("run", run, "--set", f"output.directory={run}")
    with monkeypatch.context() as patch:
        patch.setattr(shot_qc, "_see", partial(fail, AssertionError("the fit is measured again")))
        assert hpcfwi(*again) == 0
    cut_short(ending(run, 2))
    assert hpcfwi(*again) == 0
    assert ending(run, 2).read_bytes() == ending(whole, 2).read_bytes()
