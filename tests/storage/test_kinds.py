"""Tests of components of traces and kinds of sources in gathers files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.errors import InputError
from hpcfwi.parallel.context import Context
from hpcfwi.storage.gathers import GatherReader, create_gathers
from hpcfwi.survey import (
    COMPONENTS,
    EXPLOSIVE,
    PRESSURE,
    SOURCE_KINDS,
    Components,
    Survey,
    moment_kinds,
)

SHOTS, RECEIVERS, NDIM = 4, 5, 3


def make_survey(**parts: Any) -> Survey:
    """Return a survey of four shots and five receivers in 3-D."""
    rng = np.random.default_rng(0)
    sources, receivers = (
        rng.uniform(0.0, 100.0, (SHOTS, 3)),
        rng.uniform(0.0, 100.0, (RECEIVERS, 3)),
    )
    return Survey(sources, receivers, np.ones(6, np.float32), 0.01, **parts)


def write(path: Path, survey: Survey) -> Path:
    """Write a gathers file of zeros."""
    path.unlink(missing_ok=True)
    with create_gathers(path, survey, Context.alone()) as writer:
        writer.write(np.arange(SHOTS), np.zeros(survey.shape, np.float32))
    return path


def read(path: Path) -> Survey:
    """Return the survey of a file."""
    with GatherReader(path, Context.alone()) as reader:
        return reader.survey


@st.composite
def surveys(draw: st.DrawFn) -> Survey:
    """Return surveys with any components and any kinds of sources."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    names = tuple(draw(st.permutations(COMPONENTS))[: draw(st.integers(1, 4))])
    shape = draw(st.sampled_from([(RECEIVERS,), (SHOTS, RECEIVERS)]))
    kinds = rng.integers(0, len(names), shape).astype(np.int8) if len(names) > 1 else None
    gauge = directions = None
    if "strain" in names:
        gauge, directions = 10.0, rng.normal(size=(RECEIVERS, NDIM))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        records = np.ones(RECEIVERS, bool)
        if kinds is not None:
            records = np.atleast_2d(kinds == names.index("strain")).any(axis=0)
        directions[~records] = 0.0
    of_sources = draw(st.permutations([*SOURCE_KINDS, "moment"]))[: draw(st.integers(1, 4))]
    numbers = rng.permutation(np.arange(SHOTS) % len(of_sources))
    source_kinds: dict[str, Any] = {}
    for number, name in enumerate(of_sources):
        acts = np.ones(()) if len(of_sources) == 1 else (numbers == number).astype(float)
        if name == "moment":
            tensors = rng.normal(size=(SHOTS, NDIM, NDIM)) * np.reshape(acts, (-1, 1, 1))
            source_kinds |= moment_kinds(tensors + tensors.transpose(0, 2, 1), "zyx")
        else:
            source_kinds[name] = acts
    components = Components(names, kinds, gauge, directions)
    return make_survey(components=components, source_kinds=source_kinds)


@given(survey=surveys())
def test_kinds_are_read_as_they_were_written(
    survey: Survey, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = read(write(tmp_path_factory.getbasetemp() / "kinds.h5", survey))
    assert found.components.names == survey.components.names
    assert found.components.gauge == survey.components.gauge
    for name in ("kinds", "directions"):
        expected = getattr(survey.components, name)
        if expected is None:
            assert getattr(found.components, name) is None
        else:
            np.testing.assert_allclose(getattr(found.components, name), expected, rtol=1e-14)
    assert set(found.source_kinds) == set(survey.source_kinds)
    for name, factors in survey.source_kinds.items():
        np.testing.assert_array_equal(
            np.broadcast_to(found.source_kinds[name], SHOTS), np.broadcast_to(factors, SHOTS)
        )


def test_pressure_of_explosive_sources_is_written_as_version_1(tmp_path: Path) -> None:
    path = write(tmp_path / "plain.h5", make_survey())
    with h5py.File(path) as file:
        assert file.attrs["version"] == 1
        assert "kinds" not in file
    assert read(path).components == PRESSURE
    assert read(path).source_kinds == EXPLOSIVE


def of(name: str) -> Survey:
    """Return a survey with pressure and another component."""
    kinds = np.array([0, 0, 1, 1, 1], np.int8)
    strain = (
        {"gauge": 10.0, "directions": np.full((RECEIVERS, 3), 3**-0.5)} if name == "strain" else {}
    )
    tensors = np.broadcast_to(np.eye(3), (SHOTS, 3, 3))
    return make_survey(
        components=Components(("pressure", name), kinds, **strain),
        source_kinds=moment_kinds(tensors, "zyx"),
    )


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("kind_names", ["pressure", "uz"], "attribute kind_names.*expected some of pressure, vz"),
        ("kind_names", ["vz", "vz"], "each of them once"),
        ("gauge", -1.0, "attribute gauge.*expected a number above 0"),
        ("source_kind_names", "airgun", "attribute source_kind_names.*expected some of explosive"),
        (
            "/kinds",
            np.array([0, 1, 2, 0, 0]),
            "/kinds.*found 2, expected whole numbers from 0 to 1",
        ),
        ("/kinds", np.zeros(4), "its shape is .4,., expected .5,. or .4, 5."),
        ("/directions", np.zeros((5, 3)), "/directions.*receiver 2.*finite vector that is not 0"),
        ("/directions", np.ones((5, 2)), "its shape is .5, 2., expected .5, 3."),
        ("kind_names", [], "attribute kind_names.*expected some of pressure"),
        ("kind_names", [["pressure"], ["vz"]], "attribute kind_names.*expected some of pressure"),
        ("/source_moments", np.ones((4, 2, 2)), "its shape is .4, 2, 2., expected .4, 3, 3."),
        ("/source_moments", np.full((4, 3, 3), np.nan), "for shot 0, expected finite numbers"),
        ("/source_moments", np.arange(36.0).reshape(4, 3, 3), "a symmetric tensor"),
        ("/source_moments", np.zeros((4, 3, 3)), "for shot 0, expected .* that is not 0"),
    ],
)
def test_wrong_kinds_are_refused_with_key_and_remedy(
    tmp_path: Path, key: str, value: Any, message: str
) -> None:
    path = write(tmp_path / "kinds.h5", of("strain"))
    with h5py.File(path, "r+") as file:
        if key.startswith("/"):
            del file[key]
            file[key] = value
        else:
            file.attrs[key] = value
    with pytest.raises(InputError) as error:
        read(path)
    assert re.search(message, str(error.value), re.DOTALL)


@pytest.mark.parametrize("missing", ["kinds", "directions", "source_moments"])
def test_missing_arrays_of_kinds_are_named(tmp_path: Path, missing: str) -> None:
    path = write(tmp_path / "kinds.h5", of("strain"))
    with h5py.File(path, "r+") as file:
        del file[missing]
    with pytest.raises(InputError, match=f"/{missing}: there is no such dataset"):
        read(path)


@pytest.mark.parametrize("missing", ["kind_names", "source_kind_names"])
def test_arrays_of_kinds_without_names_are_refused(tmp_path: Path, missing: str) -> None:
    path = write(tmp_path / "kinds.h5", of("strain"))
    with h5py.File(path, "r+") as file:
        del file.attrs[missing]
    with pytest.raises(InputError, match=f"attribute {missing}: found None"):
        read(path)


def test_moments_of_other_sources_are_ignored(tmp_path: Path) -> None:
    acts = np.array([1.0, 0.0, 0.0, 0.0])
    moments = moment_kinds(np.broadcast_to(np.eye(3), (SHOTS, 3, 3)) * acts[:, None, None], "zyx")
    survey = make_survey(source_kinds={**moments, "explosive": 1.0 - acts})
    path = write(tmp_path / "kinds.h5", survey)
    with h5py.File(path, "r+") as file:
        file["source_moments"][1:] = np.nan
    for name, factors in read(path).source_kinds.items():
        np.testing.assert_array_equal(factors, survey.source_kinds[name])
