"""Tests of model files."""

from __future__ import annotations

import re

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from hpcfwi.errors import InputError
from hpcfwi.model import Grid, Model
from hpcfwi.storage.models import read_model, write_model
from tests.storage.examples import example_model


@given(
    vp=array_shapes(min_dims=2, max_dims=3, max_side=5).flatmap(
        lambda shape: arrays(np.float32, shape, elements=st.floats(300, 9000, width=32))
    ),
    data=st.data(),
)
def test_model_is_read_as_it_was_written(vp, data, tmp_path_factory):
    lengths = st.tuples(*[st.floats(0.5, 100)] * vp.ndim)
    grid = Grid(vp.shape, data.draw(lengths), data.draw(lengths))
    path = tmp_path_factory.mktemp("model") / "model.h5"
    write_model(path, Model(grid, {"vp": vp}))
    read = read_model(path)
    assert read.grid == grid
    assert read["vp"].dtype == np.float32
    np.testing.assert_array_equal(read["vp"], vp)


def write_with(folder, **arrays):
    path, model = folder / "model.h5", example_model()
    others = {name: np.full_like(model["vp"], value) for name, value in arrays.items()}
    write_model(path, Model(model.grid, {**model.arrays, **others}))
    return path


def test_s_velocity_may_be_zero_and_thomsen_parameters_negative(tmp_path):
    read = read_model(write_with(tmp_path, vs=0.0, epsilon=-0.05, delta=-0.1))
    assert [*read.arrays] == ["vp", "vs", "epsilon", "delta"]
    assert (read["vs"] == 0.0).all()
    assert (read["delta"] == np.float32(-0.1)).all()


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("vs", -1.0, "from -1 to -1, expected 0 to 100000 m/s"),
        ("vs", 1.5, "looks like km/s"),
        ("rho", 0.0, "not positive"),
        ("rho", 2.3, r"looks like g/cm3"),
        ("delta", -0.6, "from -0.6 to -0.6, expected -0.49 to 5"),
    ],
)
def test_impossible_values_of_a_parameter_are_refused(name, value, problem, tmp_path):
    path = write_with(tmp_path, **{name: value})
    with pytest.raises(InputError, match=problem) as caught:
        read_model(path)
    assert caught.value.where == f"{path}, /{name}"


def test_model_in_double_precision_is_converted(tmp_path):
    path = changed_model(tmp_path, lambda file: replace(file, lambda vp: vp.astype("f8")))
    assert read_model(path)["vp"].dtype == np.float32


def test_additional_attributes_are_stored_in_the_model_file(tmp_path):
    path = tmp_path / "new" / "model.h5"
    write_model(path, example_model(), {"title": "a hill", "format": "not this"})
    with h5py.File(path) as file:
        assert file.attrs["title"] == "a hill"
        assert file.attrs["format"] == "hpcfwi-model"


def test_failed_write_leaves_only_the_old_file(model_file, tmp_path):
    before = model_file.read_bytes()
    with pytest.raises(TypeError):
        write_model(model_file, example_model(), {"unstorable": object()})
    assert model_file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [model_file]


def replace(file, change):
    vp = file["vp"][...]
    del file["vp"]
    file["vp"] = change(vp)


def changed_model(folder, change):
    path = folder / "model.h5"
    write_model(path, example_model())
    with h5py.File(path, "r+") as file:
        change(file)
    return path


def filled(value):
    def fill(vp):
        vp[2, 3] = vp[4, 1] = value
        return vp

    return lambda file: replace(file, fill)


def attribute(key, value):
    return lambda file: file.attrs.__setitem__(key, value)


BAD = {
    "no format": (lambda file: file.attrs.pop("format"), "attribute format", "missing", "hpcfwi"),
    "another format": (attribute("format", "segy"), "attribute format", "'segy'", "hpcfwi-model"),
    "newer version": (attribute("version", 2), "attribute version", "found 2", "newer hpcfwi"),
    "no version": (lambda file: file.attrs.pop("version"), "attribute version", "None", "Set it"),
    "no vp": (lambda file: file.move("vp", "vs"), "/vp", "holds /vs", "as /vp"),
    "vp is a group": (
        lambda file: (file.pop("vp"), file.create_group("vp")),
        "/vp",
        "no such",
        "as /vp",
    ),
    "one dimension": (lambda file: replace(file, np.ravel), "/vp", r"\(48,\)", "one model"),
    "four dimensions": (
        lambda file: replace(file, lambda vp: vp[None, None]),
        "/vp",
        r"\(1, 1, 6, 8\)",
        "one model",
    ),
    "an empty axis": (lambda file: replace(file, lambda vp: vp[:0]), "/vp", r"\(0, 8\)", "empty"),
    "transposed": (attribute("axes", "xz"), "attribute axes", "'xz'", "Transpose the array"),
    "no axes": (lambda file: file.attrs.pop("axes"), "attribute axes", "None", "Set axes"),
    "axes of three": (attribute("axes", "zyx"), "attribute axes", "2 dimensions", "Set axes"),
    "integers": (lambda file: replace(file, lambda vp: vp.astype(int)), "/vp", "int64", "float32"),
    "strings": (lambda file: replace(file, lambda vp: vp.astype("S8")), "/vp", "S8", "float32"),
    "NaN": (filled(np.nan), "/vp", r"2 of 48 .* not finite.*\(2, 3\)", "Fill"),
    "infinite": (filled(np.inf), "/vp", r"2 of 48 .* not finite.*\(2, 3\)", "Fill"),
    "zero": (filled(0.0), "/vp", r"2 of 48 .* not positive.*\(2, 3\)", "above 0 m/s"),
    "negative": (filled(-1500.0), "/vp", r"2 of 48 .* not positive.*\(2, 3\)", "above 0 m/s"),
    "km/s": (lambda file: replace(file, lambda vp: vp / 1000), "/vp", "like km/s", "by 1000"),
    "spacing of 0": (attribute("spacing", (0.0, 25.0)), "attribute spacing", "1e-06 to", "in m"),
    "one spacing": (attribute("spacing", 25.0), "attribute spacing", "expected 2", "along z, x"),
    "three spacings": (attribute("spacing", (1, 1, 1)), "attribute spacing", "1, 1, 1", "z, x"),
    "spacing as text": (attribute("spacing", "25"), "attribute spacing", "'25'", "in m"),
    "no spacing": (lambda file: file.attrs.pop("spacing"), "attribute spacing", "missing", "in m"),
    "origin of NaN": (attribute("origin", (np.nan, 0)), "attribute origin", "nan", "in m"),
    "no origin": (lambda file: file.attrs.pop("origin"), "attribute origin", "missing", "in m"),
}


@pytest.mark.parametrize("fault", BAD)
def test_error_for_a_bad_model_names_the_file_the_key_and_a_remedy(fault, tmp_path):
    change, where, problem, remedy = BAD[fault]
    path = changed_model(tmp_path, change)
    with pytest.raises(InputError) as caught:
        read_model(path)
    assert caught.value.where == f"{path}, {where}"
    assert re.search(problem, caught.value.problem)
    assert re.search(remedy, caught.value.remedy)
