"""Tests of inversions that continue without killed ranks."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hpcfwi.storage.models import read_model
from tests.inversion.examples import read_history, write_input
from tests.openmpi import FAULT_TOLERANT, find_open_mpi
from tests.ranks import long_form, run_ranks

EPOCHS = 6
LONGEST = 0.15  # s, about the length of an epoch, so that ranks die anywhere in one


def run_with_deaths(folder, n, deaths, schedule, sharded=False):
    """Run an inversion in which ranks die; return its directory, output and error output."""
    changes = {
        "inversion.epochs": EPOCHS,
        "inversion.batch": 10,
        "inversion.schedule": schedule,
        "inversion.optimizer.sharded": sharded,
        "inversion.wavelet": {"name": "estimate", "per": "shot", "every": 2},
        "output.every": 2,
    }
    path = write_input(folder, changes)
    mpirun, env = find_open_mpi()
    switch = FAULT_TOLERANT if n > 1 else ()
    program = ["-m", "tests.run.outliving", str(path), deaths]
    done = run_ranks(n, program, env, launcher=(mpirun, *switch), warm=True)
    return folder / "run", done.stdout, done.stderr


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    run, _, _ = run_with_deaths(tmp_path_factory.mktemp("undisturbed"), 1, "", "static")
    return run


@pytest.mark.parametrize(
    ("victims", "schedule", "sharded"),
    [
        (((1,), (0,), (2,)), "static", False),
        long_form(((0, 3),), "dynamic", False),
        long_form(((1,), (0,)), "static", True),
    ],
    ids=[
        "one after the other, rank 0 among them",
        "two at once, rank 0 among them",
        "with shards of the optimizer's state, some of which are lost",
    ],
)
def test_inversion_continues_without_killed_ranks_to_the_same_bits(
    tmp_path, undisturbed, victims, schedule, sharded
):
    epochs = sorted(random.sample(range(1, EPOCHS - 1), len(victims)))
    moments = [(epoch, random.uniform(0.0, LONGEST)) for epoch in epochs]
    deaths = " ".join(
        f"{rank}:{epoch}:{seconds}"
        for ranks, (epoch, seconds) in zip(victims, moments, strict=True)
        for rank in ranks
    )
    run, printed, told = run_with_deaths(tmp_path, 4, deaths, schedule, sharded)
    assert f"left {4 - sum(map(len, victims))}" in printed, deaths
    assert "Died: rank" in told, deaths
    history, expected = (read_history(path) for path in (run, undisturbed))
    assert [entry["epoch"] for entry in history] == list(range(1, EPOCHS + 1)), deaths
    assert [entry["loss"] for entry in history] == [entry["loss"] for entry in expected], deaths
    for name in ("model.h5", "model_best.h5"):
        np.testing.assert_array_equal(
            read_model(run / name)["vp"], read_model(undisturbed / name)["vp"], deaths
        )
    assert sorted(path.name for path in (run / "epochs").iterdir()) == sorted(
        path.name for path in (undisturbed / "epochs").iterdir()
    ), deaths
    log = (run / "log.txt").read_text()
    assert "is rank 0 now" in log
    assert ("state of a dead rank is lost" in log) == sharded
    assert f"epoch {EPOCHS}/{EPOCHS}" in log
