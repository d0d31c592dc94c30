"""Tests that any input is accepted, or refused with one message and without writing a file."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import h5py
import numpy as np
import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import damage
from tests.fuzz.commands import check_only, check_refused_or_good, contents, message_of
from tests.inversion.bad_inputs import FILE_INSTEAD, write_given
from tests.inversion.examples import write_input

# HPCFWI_FUZZ=100 tries a hundred times as many inputs.
MANY = int(os.environ.get("HPCFWI_FUZZ", "1"))
COMMANDS = st.sampled_from(["run", "forward", "plan"])


def tries(n: int) -> settings:
    return settings(max_examples=n * MANY, suppress_health_check=list(HealthCheck))


@contextmanager
def some_folder() -> Iterator[Path]:
    """Yield a folder whose name has a space and a letter beyond ASCII."""
    with TemporaryDirectory(prefix="hpcfwi fuzz ü ") as name:
        yield Path(name)


def check(folder: Path, *arguments: object) -> None:
    before = contents(folder)
    check_refused_or_good(check_only(*arguments))
    assert contents(folder) == before


with TemporaryDirectory() as _name:
    GOOD = tomllib.loads(write_input(Path(_name)).read_text())
    WITH_FILE = tomllib.loads(
        write_input(Path(_name), FILE_INSTEAD | {"model.initial": {"file": "true.h5"}}).read_text()
    )
    MODEL = Path(_name, "true.h5").read_bytes()
    write_given(Path(_name))
    GATHERS = Path(_name, "given.h5").read_bytes()

MORE = (
    ("model", "spacing"),
    ("model", "dataset"),
    ("model", "initial", "file"),
    ("survey", "file"),
    ("survey", "sources", "first"),
    ("survey", "receivers", "last"),
    ("wave", "aperture"),
    ("wave", "free_surface"),
    ("wave", "history"),
    ("wave", "memory"),
    ("inversion", "seed"),
    ("inversion", "bounds"),
    ("inversion", "max_offset"),
    ("inversion", "optimizer", "eps"),
    ("inversion", "optimizer", "betas"),
    ("inversion", "optimizer", "momentum"),
)


@given(damage.damaged_tables(GOOD, MORE) | damage.damaged_tables(WITH_FILE, MORE), COMMANDS)
@tries(150)
def test_config_with_wrong_values_is_accepted_or_refused(tables, command):
    with some_folder() as folder:
        (folder / "true.h5").write_bytes(MODEL)
        (folder / "given.h5").write_bytes(GATHERS)
        (folder / "input.toml").write_text(tomli_w.dumps(tables), encoding="utf-8")
        check(folder, command, folder / "input.toml")


@given(damage.damaged_bytes(tomli_w.dumps(GOOD).encode()) | st.binary(max_size=99), COMMANDS)
@tries(100)
def test_config_with_wrong_bytes_is_accepted_or_refused(content, command):
    with some_folder() as folder:
        (folder / "true.h5").write_bytes(MODEL)
        (folder / "input.toml").write_bytes(content)
        check(folder, command, folder / "input.toml")


@given(
    st.lists(
        st.builds(
            "{}={}".format,
            st.sampled_from([".".join(path) for path in [*damage.paths_in(GOOD), *MORE]])
            | damage.texts,
            st.builds(str, damage.scalars) | damage.texts,
        )
        | damage.texts,
        min_size=1,
        max_size=2,
    ),
    COMMANDS,
)
@tries(100)
def test_wrong_settings_are_accepted_or_refused(changes, command):
    with some_folder() as folder:
        path = write_input(folder)
        options = [f"--set={change}" for change in changes]
        check(folder, command, path, *options)


model_harms = damage.harms(("vp",), ("format", "version", "axes", "spacing", "origin"))
gathers_harms = damage.harms(
    ("data", "sources", "receivers", "wavelet"), ("format", "version", "dt")
)


@given(st.lists(model_harms, min_size=1, max_size=2), COMMANDS)
@tries(120)
def test_model_with_wrong_contents_is_accepted_or_refused(harms, command):
    with some_folder() as folder:
        path = write_input(folder)
        damage.harm_file(folder / "true.h5", harms)
        check(folder, command, path)


@given(st.lists(gathers_harms, min_size=1, max_size=2), COMMANDS)
@tries(120)
def test_gathers_with_wrong_contents_are_accepted_or_refused(harms, command):
    with some_folder() as folder:
        path = write_input(folder, FILE_INSTEAD)
        (folder / "given.h5").write_bytes(GATHERS)
        damage.harm_file(folder / "given.h5", harms)
        check(folder, command, path)


@pytest.mark.parametrize(("name", "good"), [("true.h5", MODEL), ("given.h5", GATHERS)])
@given(data=st.data())
@tries(60)
def test_hdf5_file_with_wrong_bytes_is_accepted_or_refused(name, good, data):
    wrong = data.draw(
        st.integers(0, len(good)).map(lambda n: good[:n]) | damage.flipped_bytes(good)
    )
    with some_folder() as folder:
        path = write_input(folder, FILE_INSTEAD)
        (folder / "given.h5").write_bytes(GATHERS)
        (folder / name).write_bytes(wrong)
        check(folder, data.draw(COMMANDS), path)


# Each of these once took too much memory or time, or gave a traceback.
EXPLODING = [
    ("survey.dt=1e-300", "survey: duration holds 6e+299 samples"),
    ("survey.duration=1e300", "survey.duration"),
    ("survey.duration=1e9", "survey: duration holds"),
    ("survey.wavelet.frequency=1e300", "survey.wavelet.frequency"),
    ("survey.wavelet.frequency=1000", "125 Hz or less"),
    ("survey.wavelet.frequency=1e-9", "1.67 Hz or more"),
    ("survey.wavelet.delay=1e9", "the wavelet is zero"),
    ("survey.sources.count=1000000000000", "survey.sources.count"),
    ("survey.receivers.count=1000000000", "at most 1000000 points"),
    ("survey.receivers.last=1e308", "survey.receivers.last"),
    ("model.spacing=1e-300", "a model of 5.8e+302 x 1.18e+303 points"),
    ("model.spacing=1e-9", "of free memory"),
    ("model.spacing=1e9", "at least 8 points"),
    ("model.initial.smooth=1e300", "model.initial.smooth"),
    ("model.initial.smooth=1e8", "1200 m at its longest"),
    ("model.initial={smooth_slowness=1e8}", "model.initial.smooth_slowness"),
    ("model.file=" + 5000 * "x", "there is no such file"),
    ('model.file="a\\u0000b"', "the name of a file"),
    ('output.directory=""', "the name of a file or directory"),
    ("wave.boundary=1000000000", "wave.boundary"),
    ('wave.memory="1 B"', "the simulation of one shot takes"),
    ("wave.memory=" + 400 * "9" + " B", "a size with its unit"),
    ("inversion.batch=1000000000000", "inversion.batch"),
    ("inversion.epochs=1000000000000000000", "inversion.epochs"),
    ("inversion.seed=0x1" + 5000 * "0", "a number with thousands of digits"),
    ("inversion.seed=1" + 5000 * "0", "inversion.seed"),
    ("inversion.seed=" + 5000 * "[", "inversion.seed"),
    ("inversion.optimizer.lr=1e300", "inversion.optimizer.lr"),
    ("inversion.optimizer.eps=1e-300", "inversion.optimizer.eps"),
    ("inversion.bounds=[1.0, 1e300]", "inversion.bounds"),
    ('model={"a.b"=1, file="true.h5", initial={smooth=80.0}}', "--set model="),
    ('model."a b"=1', "unknown key"),
    ("model.a\nb=1", "unknown key"),
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("setting", "words"), EXPLODING, ids=lambda text: text[:40])
def test_extreme_number_is_refused_before_it_exhausts_memory(setting, words, tmp_path):
    path = write_input(tmp_path)
    before = contents(tmp_path)
    assert words in message_of(check_only("run", path, "--set", setting))
    assert contents(tmp_path) == before


UNREADABLE = [
    (damage.set_attribute("axes", np.zeros(2)), "attribute axes"),
    (damage.set_attribute("format", np.zeros(2)), "attribute format"),
    (damage.set_attribute("version", np.array([1, 1])), "attribute version"),
    (damage.set_attribute("version", -3), "attribute version"),
    (damage.set_attribute("spacing", (1e-300, 20.0)), "attribute spacing"),
    (damage.set_attribute("origin", (1e300, 0.0)), "attribute origin"),
    (damage.leave_unwritten("vp", (10**6, 10**6)), "most of its values were not written"),
    (damage.write_one_chunk("vp", (10**6, 10**6)), "takes 4 TB, but the file has"),
    (damage.link("vp", h5py.SoftLink("/vp")), "too many links"),
    (damage.put("vp", 1e300), "1e+300"),
    (damage.put("vp", 1e-30), "1e-30 to"),
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("harm", "words"), UNREADABLE, ids=lambda case: getattr(case, "__qualname__", case)[:40]
)
def test_error_for_an_unreadable_model_names_the_problem(harm, words, tmp_path):
    path = write_input(tmp_path)
    damage.harm_file(tmp_path / "true.h5", [harm])
    message = message_of(check_only("run", path))
    assert "true.h5" in message
    assert words in message


def test_plan_with_a_constant_wavelet_is_accepted_or_refused(tmp_path):
    path = write_input(tmp_path, FILE_INSTEAD)
    (tmp_path / "given.h5").write_bytes(GATHERS)
    damage.harm_file(tmp_path / "given.h5", [damage.fill("wavelet", 1.0)])
    check(tmp_path, "plan", path)
