"""Tests of damaged files in a run directory: the run continues, or one message names the file.

`tests.storage.test_checkpoint` tests damaged checkpoints.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.run import drawing
from tests.fuzz import damage
from tests.fuzz.commands import (
    ACCEPTED,
    call,
    check_only,
    check_refused_or_good,
    contents,
    message_of,
)
from tests.fuzz.test_files import KINDS
from tests.fuzz.test_inputs import tries
from tests.inversion.examples import write_input
from tests.undrawn import DRAWING


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The input of a run of one epoch and its directory."""
    changes = {"inversion.epochs": 1, "wave.engine": "eager"}
    path = write_input(tmp_path_factory.mktemp("done"), changes)
    with mock.patch.multiple(drawing, **dict.fromkeys(DRAWING, mock.DEFAULT)):
        assert call("run", path, "--quiet").code == 0
    return path, path.parent / "run"


@pytest.fixture
def copied(done, tmp_path):
    """The input of the run and a copy of its directory."""
    shutil.copytree(done[1], tmp_path / "run")
    return done[0], tmp_path / "run"


FILES = ["config.toml", "observed.h5", "metrics.jsonl", "log.txt", "model.h5", "model_best.h5"]
DIRECTORIES = ["checkpoints", "epochs"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*FILES, *DIRECTORIES])
def test_directory_pipe_or_link_in_place_of_a_run_file_is_refused(name, kind, copied):
    path, run = copied
    shutil.rmtree(run / name) if name in DIRECTORIES else (run / name).unlink()
    kind(run / name)
    before = contents(run)
    end = check_only("run", path, "--output", run)
    assert contents(run) == before
    if end.code == ACCEPTED and name in DIRECTORIES:
        assert run.joinpath(name).is_dir() or not run.joinpath(name).exists()
    elif end.code == ACCEPTED:
        # The file is not read, and is rewritten
        assert kind.__name__ in {"dangling_link", "circle_of_links", "empty_file", "words"}
    else:
        assert name in message_of(end)


@given(st.data())
@tries(40)
def test_damaged_config_of_a_run_is_accepted_or_refused(done, data):
    path, run = done
    good = (run / "config.toml").read_bytes()
    with TemporaryDirectory() as name:
        config = Path(name, "config.toml")
        config.write_bytes(data.draw(damage.damaged_bytes(good)))
        before = contents(Path(name))
        check_refused_or_good(check_only("run", path, "--output", name))
        assert contents(Path(name)) == before


observed_harms = damage.harms(
    ("data", "sources", "receivers", "wavelet"), ("format", "version", "dt", "fingerprint")
)


@given(st.data())
@tries(40)
def test_damaged_observed_data_are_accepted_or_refused(done, data):
    path, run = done
    good = (run / "observed.h5").read_bytes()
    with TemporaryDirectory() as name:
        observed = Path(name, "observed.h5")
        harms = data.draw(st.none() | st.lists(observed_harms, max_size=2))
        if harms is None:
            observed.write_bytes(data.draw(damage.flipped_bytes(good)))
        else:
            observed.write_bytes(good)
            damage.harm_file(observed, harms)
        before = contents(Path(name))
        check_refused_or_good(check_only("run", path, "--output", name))
        assert contents(Path(name)) == before


lines = st.one_of(
    st.just('{"epoch": 1, "loss": 2.5, "model_error": 3.5}'),
    st.builds(
        lambda **record: json.dumps(record, default=str),
        epoch=damage.values,
        loss=damage.values,
        model_error=damage.values,
    ),
    damage.texts,
)
shown_harms = damage.harms(
    ("inverted", "gradient", "source_illumination", "receiver_illumination"), ("epoch",)
)
model_harms = damage.harms(("vp",), ("format", "version", "axes", "spacing", "origin"))


def test_values_beyond_single_precision_are_drawn_without_a_warning(done, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(done[1], run)
    beyond = [damage.put("source_illumination", 1e300)]
    damage.harm_file(run / "epochs" / "epoch_0001.h5", beyond)
    end = call("show", run)
    assert (end.code, end.errors) == (0, "")


@given(st.data())
@tries(5)
def test_damaged_run_files_are_drawn_or_refused(done, data):
    with TemporaryDirectory() as name:
        run = Path(name, "run")
        shutil.copytree(done[1], run)
        harmed = data.draw(st.sampled_from(["metrics", "epochs", "true", "initial", "observed"]))
        if harmed == "metrics":
            text = "\n".join(data.draw(st.lists(lines, max_size=4)))
            (run / "metrics.jsonl").write_text(text, encoding="utf-8")
        elif harmed == "epochs":
            some = data.draw(st.lists(shown_harms, min_size=1, max_size=2))
            damage.harm_file(run / "epochs" / "epoch_0001.h5", some)
        elif harmed == "observed":
            some = data.draw(st.lists(observed_harms, min_size=1, max_size=2))
            damage.harm_file(run / "observed.h5", some)
        else:
            some = data.draw(st.lists(model_harms, min_size=1, max_size=2))
            damage.harm_file(run / f"{harmed}.h5", some)
        end = call("show", run)
        assert end.code in (0, 2), end
        if end.code == 2:
            assert str(run) in message_of(end)
        else:
            assert end.errors == ""


def test_step_to_impossible_velocities_is_refused(tmp_path):
    path = write_input(tmp_path, {"inversion.epochs": 1, "wave.engine": "eager"})
    message = message_of(call("run", path, "--set", "inversion.optimizer.lr=1e6", "--quiet"))
    assert "values of vp" in message
    assert message.endswith("Use a smaller inversion.optimizer.lr, or give inversion.bounds.")
