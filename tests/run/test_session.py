"""Tests of an inversion on one rank: its files, how it stops and how it continues."""

from __future__ import annotations

import gc
import os
import signal

import h5py
import numpy as np
import pytest
import torch

from hpcfwi import system
from hpcfwi.inversion import memory
from hpcfwi.inversion.objective import Evaluation, Objective
from hpcfwi.inversion.state import State
from hpcfwi.model import Model
from hpcfwi.operators import simulator
from hpcfwi.run import recorder, session
from hpcfwi.storage import checkpoint
from hpcfwi.storage.models import read_model, write_model
from tests.inversion.bad_inputs import FILE_INSTEAD, write_given
from tests.inversion.examples import (
    N_RECEIVERS,
    N_SAMPLES,
    N_SHOTS,
    WATER,
    read_history,
    read_metric,
    read_vp,
    true_model,
    write_input,
)

pytestmark = pytest.mark.usefixtures("no_figures")


def after_epoch(n, act):
    """Return an `evaluate` that calls `act` before the evaluation of epoch n."""
    evaluate, calls = Objective.evaluate, []

    def acting(*args, **options):
        calls.append(None)
        if len(calls) == n:
            act()
        return evaluate(*args, **options)

    return acting


def write_clipped(folder, changes):
    """Write an input whose initial model is the true one clipped to 1600 to 2300 m/s."""
    start = Model(true_model().grid, {"vp": np.clip(true_model()["vp"], 1600.0, 2300.0)})
    write_model(folder / "start.h5", start)
    return write_input(folder, {**changes, "model.initial": {"file": "start.h5"}})


def test_run_reduces_the_model_error_and_writes_its_files(hpcfwi, tmp_path):
    path, run = write_input(tmp_path, {"output.every": 2}), tmp_path / "run"
    assert hpcfwi("run", path) == 0
    history = read_history(run)
    assert [entry["epoch"] for entry in history] == [1, 2, 3, 4, 5]
    for entry in history:
        assert {"stage", "loss", "model_error", "shots", "seconds", "memory_mb"} < entry.keys()
        assert len(set(entry["shots"])) == 3
    errors = [entry["model_error"] for entry in history]
    assert errors == sorted(errors, reverse=True)
    free = true_model().grid.coordinates(0) > WATER
    difference = read_vp(run)[free].astype(np.float64) - true_model()["vp"][free]
    assert errors[-1] == pytest.approx(np.sqrt(np.mean(difference**2)), rel=1e-6)
    np.testing.assert_array_equal(read_vp(run)[~free], true_model()["vp"][~free])
    assert sorted(p.name for p in (run / "epochs").iterdir()) == [
        "epoch_0002.h5",
        "epoch_0004.h5",
        "epoch_0005.h5",
        "stage_1.h5",
    ]
    assert "Done" in (run / "log.txt").read_text()
    assert not list(run.rglob("*.part"))


@pytest.mark.parametrize("misfit", ["correlation", {"name": "huber", "width": 0.5}])
def test_run_reduces_the_misfit_that_the_input_names(hpcfwi, tmp_path, misfit):
    changes = {"inversion.misfit": misfit, "inversion.batch": N_SHOTS, "inversion.epochs": 3}
    assert hpcfwi("run", write_input(tmp_path, changes)) == 0
    losses = read_metric(tmp_path / "run", "loss")
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]


def test_best_model_is_kept_in_addition_to_the_newest(hpcfwi, tmp_path):
    path, run = write_clipped(tmp_path, {"inversion.optimizer.lr": 100.0}), tmp_path / "run"
    assert hpcfwi("run", path, "--quiet") == 0
    errors = read_metric(run, "model_error")
    best = int(np.argmin(errors)) + 1
    assert best < 5, "steps this large increase the error again"
    with h5py.File(run / "model_best.h5") as file:
        assert file.attrs["epoch"] == best
    with h5py.File(run / "model.h5") as file:
        assert file.attrs["epoch"] == 5


def test_evaluation_begins_with_one_state_and_no_earlier_evaluation_in_memory(
    hpcfwi, tmp_path, monkeypatch
):
    evaluate, counts = Objective.evaluate, []

    def count(*args, **options):
        gc.collect()
        found = gc.get_objects()
        counts.append([sum(type(one) is kind for one in found) for kind in (State, Evaluation)])
        return evaluate(*args, **options)

    monkeypatch.setattr(Objective, "evaluate", count)
    # The writer may hold an earlier state while it writes a checkpoint
    path = write_input(tmp_path, {"inversion.epochs": 3, "output.checkpoint": 9})
    assert hpcfwi("run", path) == 0
    assert counts == 3 * [[1, 0]]
    assert hpcfwi("run", path, "--set", "inversion.epochs=5") == 0
    assert counts[3:] == 2 * [[1, 0]], "the state of a checkpoint is released, too"


def test_velocities_reach_their_bounds_and_do_not_exceed_them(hpcfwi, tmp_path):
    bounds = {"inversion.bounds": [1590.0, 2310.0], "inversion.optimizer.lr": 400.0}
    assert hpcfwi("run", write_clipped(tmp_path, bounds)) == 0
    free = true_model().grid.coordinates(0) > WATER
    assert read_vp(tmp_path / "run")[free].min() == 1590.0
    assert read_vp(tmp_path / "run")[free].max() == 2310.0


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
def test_signal_stops_after_the_step_with_exit_code_3_and_run_continues(
    name, hpcfwi, tmp_path, monkeypatch, capsys
):
    path, run = write_input(tmp_path), tmp_path / "run"
    assert hpcfwi("run", path, "--output", tmp_path / "whole") == 0
    kill = after_epoch(3, lambda: os.kill(os.getpid(), getattr(signal, name)))
    with monkeypatch.context() as patch:
        patch.setattr(Objective, "evaluate", kill)
        assert hpcfwi("run", path) == 3
    assert f"stopped by {name} after epoch 3" in capsys.readouterr().err
    assert read_metric(run, "epoch") == [1, 2, 3]
    assert (run / "checkpoints" / "epoch_000003.ckpt").exists()
    assert hpcfwi("run", path) == 0
    assert read_metric(run, "epoch") == [1, 2, 3, 4, 5]
    np.testing.assert_array_equal(read_vp(run), read_vp(tmp_path / "whole"))


def test_more_epochs_keep_the_recorded_shots_of_earlier_epochs(hpcfwi, tmp_path):
    changes = {"inversion.batch": [2, 6], "inversion.epochs": 3}
    path, run = write_input(tmp_path, changes), tmp_path / "run"
    assert hpcfwi("run", path) == 0
    before = read_metric(run, "shots")
    assert hpcfwi("run", path, "--set", "inversion.epochs=5") == 0
    assert read_metric(run, "shots")[:3] == before
    assert len(read_metric(run, "shots")[4]) == 6


def test_lost_metrics_are_rewritten_with_the_shots_of_the_last_epoch(hpcfwi, tmp_path):
    path, run = write_input(tmp_path, {"inversion.epochs": 3}), tmp_path / "run"
    assert hpcfwi("run", path) == 0
    before = read_history(run)
    _, state = checkpoint.load_latest_checkpoint(run / "checkpoints")
    assert state["history"] == [*({**entry, "shots": None} for entry in before[:2]), before[2]]
    (run / "metrics.jsonl").unlink()
    assert hpcfwi("run", path, "--set", "inversion.epochs=4") == 0
    assert read_history(run)[:3] == state["history"]


def test_finished_run_is_left_alone_and_continues_with_more_epochs(hpcfwi, tmp_path, capsys):
    path, run = write_input(tmp_path, {"inversion.epochs": 3}), tmp_path / "run"
    assert hpcfwi("run", path) == 0
    before = (run / "model.h5").read_bytes()
    capsys.readouterr()
    assert hpcfwi("run", path) == 0
    assert "All 3 epochs are done already" in capsys.readouterr().out
    assert (run / "model.h5").read_bytes() == before
    assert hpcfwi("run", path, "--set", "inversion.epochs=5") == 0
    assert read_metric(run, "epoch") == [1, 2, 3, 4, 5]
    other = write_input(tmp_path, name="other")
    assert hpcfwi("run", other, "--output", tmp_path / "whole") == 0
    np.testing.assert_array_equal(read_vp(run), read_vp(tmp_path / "whole"))


def test_fewer_epochs_than_are_done_change_nothing(hpcfwi, tmp_path, capsys):
    path, run = write_input(tmp_path), tmp_path / "run"
    assert hpcfwi("run", path) == 0
    before = {file: (run / file).read_bytes() for file in ("config.toml", "model.h5")}
    capsys.readouterr()
    for command in ("run", "forward", "status"):
        assert hpcfwi(command, path, "--set", "inversion.epochs=3") == 0
        assert before == {file: (run / file).read_bytes() for file in before}
        told = capsys.readouterr()
        if command == "run":
            assert "Only 3 epochs are requested: the run stays as it is" in told.out + told.err
            assert "All 5 epochs are done already" in told.out
    assert read_metric(run, "epoch") == [1, 2, 3, 4, 5]


def test_run_directory_can_be_given_as_the_input(hpcfwi, tmp_path):
    path, run = write_input(tmp_path), tmp_path / "run"
    assert hpcfwi("run", path, "--set", "inversion.epochs=2") == 0
    assert hpcfwi("run", run, "--set", "inversion.epochs=4") == 0
    assert read_metric(run, "epoch") == [1, 2, 3, 4]


def test_run_killed_while_writing_its_result_writes_it_when_restarted(
    hpcfwi, tmp_path, monkeypatch
):
    path, run = write_input(tmp_path, {"output.checkpoint": 5}), tmp_path / "run"
    write = recorder.write_model

    def killed(file, *what):
        if file == run / "model.h5":
            raise SystemExit("killed")
        write(file, *what)

    with monkeypatch.context() as patch:
        patch.setattr(recorder, "write_model", killed)
        assert hpcfwi("run", path) == 1
    assert hpcfwi("run", path) == 0
    assert read_metric(run, "epoch") == [1, 2, 3, 4, 5]
    assert read_vp(run).shape == (30, 60)
    assert (run / "epochs" / "epoch_0005.h5").exists()


def contents(run):
    """Return the contents of a run's files, except the log and the lock, which each job changes."""
    return {
        path: path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes()
        for path in run.rglob("*")
        if path.name not in ("log.txt", "lock")
    }


def test_unreadable_checkpoint_stops_the_run_without_changing_a_file(
    hpcfwi, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(system, "PAUSES", (0.01,))
    path, run = write_input(tmp_path, {"inversion.epochs": 3}), tmp_path / "run"
    assert hpcfwi("run", path) == 0
    last = run / "checkpoints" / "epoch_000003.ckpt"
    good = last.rename(tmp_path / "elsewhere.ckpt")
    last.symlink_to(last)  # a file that root cannot read either
    (run / "model.h5.part").write_bytes(b"of a job that was killed")
    (run / "observed.h5").rename(tmp_path / "observed.h5")
    before = contents(run)
    capsys.readouterr()
    more = ("--set", "inversion.epochs=5")
    assert hpcfwi("run", path, *more) == 2
    assert f"{last}: it cannot be read (Too many levels" in capsys.readouterr().err
    assert contents(run) == before
    assert "trying again" in (run / "log.txt").read_text()
    good.replace(last)
    (tmp_path / "observed.h5").rename(run / "observed.h5")
    assert hpcfwi("run", path, *more) == 0
    assert read_metric(run, "epoch") == [1, 2, 3, 4, 5]
    assert hpcfwi("run", path, *more, "--output", tmp_path / "whole") == 0
    np.testing.assert_array_equal(read_vp(run), read_vp(tmp_path / "whole"))


def set_values(name, **values):
    """Return a function that sets values in a table of a state."""
    return lambda state: (state[name] if name else state).update(values)


WRONG_STATES = {
    "no references": lambda state: state.pop("references"),
    "an epoch that is text": set_values("", epoch="one"),
    "the epoch of another file": set_values("", epoch=7),
    "a stage that does not exist": set_values("", stage=3),
    "an unknown history": lambda state: state["numerics"]["history"].update(kind="tape"),
    "a history of too low a frequency": lambda state: state["numerics"]["history"].update(
        frequency=1e-310
    ),
    "a history of numbers": set_values("", history=[1]),
    "an entry without epoch": lambda state: state["history"][0].pop("epoch"),
    "an entry whose epoch is text": lambda state: state["history"][0].update(epoch="ten"),
    "a model of another shape": lambda state: state["model"].update(vp=torch.ones(3, 4)),
    "a model of another parameter": lambda state: state["model"].update(vs=state["model"]["vp"]),
    "an impossible velocity": lambda state: state["model"]["vp"].flatten()[7].fill_(1e-30),
    "a velocity that is NaN": lambda state: state["model"]["vp"].flatten()[7].fill_(np.nan),
    "no mean of squares": lambda state: state["optimizer"]["state"][0].pop("exp_avg_sq"),
    "a shot that is text": set_values("", failed={"three": 1}),
}


WRONG_SEARCHES = {
    "a pair of another shape": lambda state: state["optimizer"]["pairs"][0][0].update(
        vp=torch.ones(3)
    ),
    "half a pair": lambda state: state["optimizer"].update(pairs=[({},)]),
    "a gradient of another shape": set_values("evaluated", gradient={"vp": torch.ones(3)}),
    "a misfit that is NaN": set_values("evaluated", misfit=np.nan),
    "a misfit that is text": set_values("evaluated", misfit="small"),
    "a sample of text": set_values("evaluated", sample=("first",)),
}
ADAM = {"inversion.epochs": 1}
SEARCH = {
    "inversion.epochs": 2,
    "inversion.batch": 10,
    "inversion.optimizer": {"name": "lbfgs", "step": 40.0},
}


@pytest.mark.parametrize(
    ("changes", "wrong"), [(ADAM, WRONG_STATES), (SEARCH, WRONG_SEARCHES)], ids=["adam", "lbfgs"]
)
def test_checkpoint_with_wrong_contents_and_right_checksum_is_refused(
    changes, wrong, hpcfwi, tmp_path, capsys
):
    path, run = write_input(tmp_path, changes), tmp_path / "run"
    assert hpcfwi("run", path) == 0
    done = changes["inversion.epochs"]
    last = run / "checkpoints" / f"epoch_{done:06d}.ckpt"
    more, good = ("--set", f"inversion.epochs={done + 1}"), last.read_bytes()
    for name, change in wrong.items():
        _, state = checkpoint.load_latest_checkpoint(run / "checkpoints")
        change(state)
        checkpoint.save_checkpoint(run / "checkpoints", done, state)
        capsys.readouterr()
        assert hpcfwi("run", path, *more) == 2, name
        message = capsys.readouterr().err
        refusal = f"{last}: its checksum is right, but it does not hold a state of this run"
        assert refusal in message, name
        assert message.count("\n") == 1, name
        last.write_bytes(good)
    # The remedy of the message
    last.unlink()
    assert hpcfwi("run", path, *more) == 0
    assert read_metric(run, "epoch") == [*range(1, done + 2)]


@pytest.mark.parametrize("target", ["not mounted", "observed.h5"])
def test_inaccessible_observed_data_are_not_simulated_again(target, hpcfwi, tmp_path, capsys):
    path, run = write_input(tmp_path, {"inversion.epochs": 1}), tmp_path / "run"
    assert hpcfwi("run", path) == 0
    (run / "observed.h5").unlink()
    (run / "observed.h5").symlink_to(target)
    before = contents(run)
    assert hpcfwi("run", path, "--set", "inversion.epochs=2") == 2
    assert "observed.h5" in capsys.readouterr().err
    assert contents(run) == before


def test_data_of_another_survey_are_refused_before_the_first_epoch(
    hpcfwi, tmp_path, monkeypatch, capsys
):
    (tmp_path / "other").mkdir()
    other = write_input(tmp_path / "other", {"survey.wavelet.frequency": 7.0})
    assert hpcfwi("forward", other) == 0
    choose = session.choose_history_and_chunk

    def choose_and_exchange(*args, **named):
        (other.parent / "run" / "observed.h5").replace(tmp_path / "run" / "observed.h5")
        return choose(*args, **named)

    monkeypatch.setattr(session, "choose_history_and_chunk", choose_and_exchange)
    assert hpcfwi("run", write_input(tmp_path)) == 2
    assert "of another model or survey" in capsys.readouterr().err
    assert not (tmp_path / "run" / "model.h5").exists()


def test_nan_in_the_data_stops_the_run_before_a_step(hpcfwi, tmp_path, capsys):
    data = np.full((N_SHOTS, N_RECEIVERS, N_SAMPLES), 0.01, np.float32)
    data[6, 0, 0] = np.nan
    write_given(tmp_path, data)
    path = write_input(tmp_path, {**FILE_INSTEAD, "inversion.batch": N_SHOTS})
    assert hpcfwi("run", path) == 1
    error = capsys.readouterr().err
    assert "1 of 10 shots, 6, gave a misfit or gradient that is not finite" in error
    assert "Traceback" not in error
    assert not (tmp_path / "run" / "metrics.jsonl").read_text()
    assert not (tmp_path / "run" / "model.h5").exists()


def test_continued_run_remembers_the_shots_that_were_set_aside(hpcfwi, tmp_path, capsys):
    data = np.full((N_SHOTS, N_RECEIVERS, N_SAMPLES), 0.01, np.float32)
    data[6, 0, 0] = np.nan
    write_given(tmp_path, data)
    allowed = {"inversion.batch": N_SHOTS, "inversion.max_failed_shots": 0.1}
    path = write_input(tmp_path, {**FILE_INSTEAD, **allowed, "inversion.epochs": 2})
    assert hpcfwi("run", path) == 0
    assert read_metric(tmp_path / "run", "failed") == [
        [6],
        [6],
    ]
    capsys.readouterr()
    stricter = ("--set", "inversion.max_failed_shots=0.0")
    assert hpcfwi("run", path, "--set", "inversion.epochs=3", *stricter) == 1
    assert "max_failed_shots = 0.0" in capsys.readouterr().err
    assert hpcfwi("run", path, "--set", "inversion.epochs=3") == 0
    told = capsys.readouterr()
    assert "1 of 10 shots were left out of some epochs" in told.out + told.err


def test_run_continued_with_another_engine_gives_a_warning(hpcfwi, tmp_path, capsys):
    path = write_input(tmp_path, {"inversion.epochs": 2})
    assert hpcfwi("run", path) == 0
    capsys.readouterr()
    assert hpcfwi("run", path, "--engine", "eager", "--set", "inversion.epochs=3") == 0
    told = capsys.readouterr()
    assert "continues with the eager engine, but was computed with cpu" in told.out + told.err


def test_continued_run_keeps_its_history_when_memory_changes(hpcfwi, tmp_path, monkeypatch):
    path, run = write_input(tmp_path, {"inversion.epochs": 2}), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(simulator, "memory_at_hand", lambda _: 1_200_000)
        for growth in ("ENGINE", "COMPILER", "FIGURES"):
            patch.setattr(memory, growth, 0)
        assert hpcfwi("run", path) == 0
    more = ("--set", "inversion.epochs=3")
    assert hpcfwi("run", path, *more) == 0
    first, second = logged_histories(run)
    assert first == second
    assert hpcfwi("run", path, *more, "--output", tmp_path / "other") == 0
    assert logged_histories(tmp_path / "other") != [first], (
        "with more memory, the history is another"
    )


def logged_histories(run):
    """Return the kind, interval and format of the history at each start of a run."""
    lines = [line for line in (run / "log.txt").read_text().splitlines() if "History" in line]
    return [line.partition("History: ")[2].split(", ")[:3] for line in lines]


def test_step_to_impossible_velocities_is_an_input_error(hpcfwi, tmp_path, capsys):
    path = write_input(tmp_path, {"inversion.optimizer.lr": 1e5})
    assert hpcfwi("run", path) == 2
    error = capsys.readouterr().err
    assert "inversion.optimizer.lr" in error
    assert "Traceback" not in error


def test_best_model_has_the_smallest_misfit_without_a_true_model(hpcfwi, tmp_path):
    write_given(tmp_path)
    path, run = write_input(tmp_path, FILE_INSTEAD), tmp_path / "run"
    assert hpcfwi("run", path) == 0
    history = read_history(run)
    assert {entry["model_error"] for entry in history} == {None}
    with h5py.File(run / "model_best.h5") as file:
        assert file.attrs["epoch"] == 1 + int(np.argmin([entry["loss"] for entry in history]))
    assert not (run / "true.h5").exists()


def test_insufficient_memory_is_an_input_error_and_more_memory_works(hpcfwi, tmp_path, capsys):
    path, run = write_input(tmp_path, {"inversion.epochs": 1}), tmp_path / "run"
    assert hpcfwi("run", path, "--set", "wave.memory=10 kB") == 2
    error = capsys.readouterr().err
    assert "wave.memory: the simulation of one shot takes " in error
    assert "Traceback" not in error
    assert hpcfwi("run", path, "--set", "wave.memory=1 GB") == 0
    assert "History: snapshots, every 3 steps, " in (run / "log.txt").read_text()


def test_run_whose_checkpoints_are_all_damaged_is_refused_and_kept(hpcfwi, tmp_path, capfd):
    path, run = write_input(tmp_path, {"inversion.epochs": 2}), tmp_path / "run"
    assert hpcfwi("run", path) == 0
    before = (run / "metrics.jsonl").read_bytes()
    for file in (run / "checkpoints").glob("*.ckpt"):
        file.write_bytes(file.read_bytes()[:-9])
    assert hpcfwi("run", path, "--set", "inversion.epochs=3") == 2
    assert "all checkpoints of the run are damaged" in capfd.readouterr().err
    assert (run / "metrics.jsonl").read_bytes() == before


def test_changed_initial_model_is_refused_when_a_run_continues(hpcfwi, tmp_path, capfd):
    write_given(tmp_path)
    path, run = write_input(tmp_path, {**FILE_INSTEAD, "inversion.epochs": 2}), tmp_path / "run"
    assert hpcfwi("run", path) == 0
    before = (run / "initial.h5").read_bytes()
    given = read_model(tmp_path / "true.h5")
    write_model(tmp_path / "true.h5", given * 1.1)
    assert hpcfwi("run", path, "--set", "inversion.epochs=3") == 2
    told = capfd.readouterr().err
    assert "the P velocity of the initial model differs from that of the run by up to 2" in told
    assert (run / "initial.h5").read_bytes() == before
    write_model(tmp_path / "true.h5", given)
    assert hpcfwi("run", path, "--set", "inversion.epochs=3") == 0


def test_changed_observed_data_are_refused_when_a_run_continues(hpcfwi, tmp_path, capfd):
    assert hpcfwi("forward", write_input(tmp_path), "--to", tmp_path / "data.h5") == 0
    given = {"survey": {"file": "data.h5"}, "inversion.epochs": 2}
    path, more = write_input(tmp_path, given), ("--set", "inversion.epochs=3")
    assert hpcfwi("run", path) == 0
    with h5py.File(tmp_path / "data.h5", "r+") as file:
        file["data"][-1] *= -1.0
    assert hpcfwi("run", path, *more) == 2
    assert "survey.file: the observed data differ from those of the run" in capfd.readouterr().err
    with h5py.File(tmp_path / "data.h5", "r+") as file:
        file["data"][-1] *= -1.0
    assert hpcfwi("run", path, *more) == 0


LINES = (f"{shot} 0 {{0}}\n{shot} {N_RECEIVERS - 1} {{0}}\n" for shot in range(N_SHOTS))
DENOISER = "def smooth(images, strength):\n    return {} * images\n"
PICKS = f"shot receiver time\n{''.join(LINES)}"


@pytest.mark.parametrize(
    ("changes", "old", "new"),
    [
        ({"inversion.fixed_above": None, "inversion.fixed.file": "file"}, "0 60\n", "0 80\n"),
        (
            {"data.mute": {"picks": "file", "delay": -1.0}},
            PICKS.format(0.1),
            PICKS.format(0.2),
        ),
        (
            {"inversion.prior": {"denoiser": "own.file:smooth", "strength": 0.1}},
            DENOISER.format(1.0),
            DENOISER.format(0.9),
        ),
    ],
    ids=["surface", "picks", "denoiser"],
)
def test_changed_other_file_is_refused_when_a_run_continues(
    hpcfwi, tmp_path, capfd, changes, old, new
):
    path, file = write_input(tmp_path, {**changes, "inversion.epochs": 2}), tmp_path / "file"
    if old.startswith("def"):
        file = tmp_path / "own" / "file.py"
        file.parent.mkdir()
    more = ("--set", "inversion.epochs=3")
    file.write_text(old)
    assert hpcfwi("run", path) == 0
    file.write_text(new)
    assert hpcfwi("run", path, *more) == 2
    assert f"{file}: this file has changed since {tmp_path}" in capfd.readouterr().err
    file.write_text(old)
    assert hpcfwi("run", path, *more) == 0


def test_changed_true_model_of_recorded_data_is_refused_when_a_run_continues(
    hpcfwi, tmp_path, capfd
):
    assert hpcfwi("forward", write_input(tmp_path), "--to", tmp_path / "data.h5") == 0
    write_model(tmp_path / "known.h5", true_model())
    given = {"survey": {"file": "data.h5"}, "model.true": "known.h5", "inversion.epochs": 2}
    path = write_input(tmp_path, given)
    assert hpcfwi("run", path) == 0
    write_model(tmp_path / "known.h5", true_model() * 1.1)
    assert hpcfwi("run", path, "--set", "inversion.epochs=3") == 2
    assert "known.h5: this file has changed since" in capfd.readouterr().err
