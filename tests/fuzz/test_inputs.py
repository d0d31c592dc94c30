"""Whatever is in an input, it is accepted, or refused with one message and nothing written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import tomli_w
import tomllib
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import damage
from tests.fuzz.commands import check_only, check_refused_or_good, contents
from tests.inversion.bad_inputs import FILE_INSTEAD, write_given
from tests.inversion.examples import write_input

# HPCFWI_FUZZ=100 tries a hundred times as many.
MANY = int(os.environ.get("HPCFWI_FUZZ", "1"))
COMMANDS = st.sampled_from(["run", "forward", "plan"])


def tries(n: int) -> settings:
    return settings(max_examples=n * MANY, deadline=None, suppress_health_check=list(HealthCheck))


@contextmanager
def unchanged_folder() -> Iterator[Path]:
    """A folder in which everything that is there when `settled` stays, and nothing is added."""
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
def test_a_config_of_wrong_values(tables, command):
    with unchanged_folder() as folder:
        (folder / "true.h5").write_bytes(MODEL)
        (folder / "given.h5").write_bytes(GATHERS)
        tables.get("output", {}) if isinstance(tables.get("output"), dict) else None
        (folder / "input.toml").write_text(tomli_w.dumps(tables), encoding="utf-8")
        check(folder, command, folder / "input.toml")


@given(damage.damaged_bytes(tomli_w.dumps(GOOD).encode()) | st.binary(max_size=99), COMMANDS)
@tries(100)
def test_a_config_of_wrong_bytes(content, command):
    with unchanged_folder() as folder:
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
def test_wrong_settings(changes, command):
    with unchanged_folder() as folder:
        path = write_input(folder)
        options = [f"--set={change}" for change in changes]
        check(folder, command, path, *options)


model_harms = damage.harms(("vp",), ("format", "version", "axes", "spacing", "origin"))
gathers_harms = damage.harms(
    ("data", "sources", "receivers", "wavelet"), ("format", "version", "dt")
)


@given(st.lists(model_harms, min_size=1, max_size=2), COMMANDS)
@tries(120)
def test_a_model_of_wrong_contents(harms, command):
    with unchanged_folder() as folder:
        path = write_input(folder)
        damage.harm_file(folder / "true.h5", harms)
        check(folder, command, path)


@given(st.lists(gathers_harms, min_size=1, max_size=2), COMMANDS)
@tries(120)
def test_gathers_of_wrong_contents(harms, command):
    with unchanged_folder() as folder:
        path = write_input(folder, FILE_INSTEAD)
        (folder / "given.h5").write_bytes(GATHERS)
        damage.harm_file(folder / "given.h5", harms)
        check(folder, command, path)


@pytest.mark.parametrize(("name", "good"), [("true.h5", MODEL), ("given.h5", GATHERS)])
@given(data=st.data())
@tries(60)
def test_an_hdf5_file_of_wrong_bytes(name, good, data):
    wrong = data.draw(
        st.integers(0, len(good)).map(lambda n: good[:n]) | damage.flipped_bytes(good)
    )
    with unchanged_folder() as folder:
        path = write_input(folder, FILE_INSTEAD)
        (folder / "given.h5").write_bytes(GATHERS)
        (folder / name).write_bytes(wrong)
        check(folder, data.draw(COMMANDS), path)
