"""Tests of converting models from and to raw floats, NumPy arrays, SEG-Y, MATLAB and VTK."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from xml.etree import ElementTree

import h5py
import numpy as np
import pytest
import scipy.io
import segyio

from hpcfwi.model import Grid, Model
from hpcfwi.storage.models import read_model, write_images, write_model
from tests.convert.examples import write_segy


def example(ndim, origin=0.0):
    shape = (5, 6, 7)[3 - ndim :]
    vp = np.random.default_rng(4).uniform(1500, 4500, shape).astype(np.float32)
    spacing = (10.0, 12.5, 20.0)[3 - ndim :]
    return Model(Grid(shape, spacing, (0.0, *(origin,) * (ndim - 1))), {"vp": vp})


def check_same(found, expected):
    np.testing.assert_allclose(found.grid.spacing, expected.grid.spacing)
    np.testing.assert_allclose(found.grid.origin, expected.grid.origin)
    np.testing.assert_array_equal(found["vp"], expected["vp"])


def place(model):
    grid = model.grid
    return (
        "--spacing",
        ",".join(map(str, grid.spacing)),
        "--shape",
        ",".join(map(str, grid.shape)),
    )


@pytest.mark.parametrize(
    ("kind", "ndim", "order", "endian"),
    [
        (".npy", 2, None, None),
        (".npy", 3, "yxz", None),
        (".bin", 2, None, None),
        (".bin", 2, "xz", "big"),
        (".raw", 3, "xyz", "little"),
        (".sgy", 2, None, None),
        (".sgy", 3, None, None),
    ],
)
def test_model_converted_to_a_format_and_back_is_the_same(
    kind, ndim, order, endian, convert, tmp_path
):
    model, there = example(ndim), tmp_path / f"there{kind}"
    write_model(tmp_path / "a.h5", model)
    options = [*(["--order", order] if order else []), *(["--endian", endian] if endian else [])]
    convert(tmp_path / "a.h5", there, *options)
    back = (*options, *place(model), *(["--model"] if kind == ".sgy" else []))
    convert(there, tmp_path / "b.h5", *back)
    check_same(read_model(tmp_path / "b.h5"), model)


def test_arrays_of_several_parameters_are_collected_in_one_file(convert, tmp_path):
    grid = example(2).grid
    arrays = {name: example(2)["vp"] * f for name, f in (("vp", 1.0), ("vs", 0.5), ("rho", 0.4))}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
        options = ("--parameter", name, *place(example(2)))
        convert(f"{name}.npy", "all.h5", *options)
    whole = read_model(tmp_path / "all.h5")
    assert whole.grid.agrees(grid)
    for name, array in arrays.items():
        np.testing.assert_array_equal(whole[name], array.astype(np.float32))
        target = tmp_path / f"{name}_again.npy"
        convert(tmp_path / "all.h5", target, "--parameter", name)
        np.testing.assert_array_equal(np.load(target), whole[name])


def test_file_with_more_than_parameters_is_refused_and_attributes_are_kept(
    convert, tmp_path, refuse
):
    write_model(tmp_path / "all.h5", example(2), {"epoch": 7})
    np.save(tmp_path / "vs.npy", example(2)["vp"] * 0.5)
    options = ("--parameter", "vs", *place(example(2)))
    with h5py.File(tmp_path / "all.h5", "r+") as file:
        file["water"] = np.zeros(3)
    before = (tmp_path / "all.h5").read_bytes()
    assert "all.h5, /water: this array is not a parameter" in refuse("vs.npy", "all.h5", *options)
    assert (tmp_path / "all.h5").read_bytes() == before
    with h5py.File(tmp_path / "all.h5", "r+") as file:
        del file["water"]
    convert("vs.npy", "all.h5", *options)
    with h5py.File(tmp_path / "all.h5") as file:
        assert file.attrs["epoch"] == 7


def test_byte_order_of_whole_numbers_in_m_per_second_is_found(tmp_path, refuse):
    """Swapped whole numbers are tiny numbers above 0, the lowest S velocity."""
    speeds = np.rint(example(2)["vp"] * 0.5)
    speeds.astype(">f4").tofile(tmp_path / "vs.bin")
    options = ("--parameter", "vs", *place(example(2)))
    assert "Give --endian big" in refuse("vs.bin", "vs.h5", *options)


def test_negative_anisotropy_is_not_taken_for_traces(convert, tmp_path):
    delta = np.random.default_rng(3).uniform(-0.1, 0.2, example(2).grid.shape)
    np.save(tmp_path / "delta.npy", delta)
    options = ("--parameter", "delta", *place(example(2)))
    convert("delta.npy", "all.h5", *options)
    found = read_model(tmp_path / "all.h5", ["delta"])
    np.testing.assert_array_equal(found["delta"], delta.astype(np.float32))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--parameter", "vp"), "all.h5, /vp: the file has this array already"),
        (("--parameter", "vs", "--spacing", "50"), "all arrays of a model file lie on one grid"),
        (("--parameter", "rho", "--quantity", "slowness"), "density, which is not a velocity"),
        (("--parameter", "vn"), "'--parameter': found 'vn', expected one of vp, vs, rho"),
        ((), "this file exists already"),
    ],
)
def test_array_that_does_not_fit_into_the_file_is_refused(options, words, tmp_path, refuse):
    write_model(tmp_path / "all.h5", example(2))
    np.save(tmp_path / "a.npy", example(2)["vp"] * 0.5)
    before = (tmp_path / "all.h5").read_bytes()
    given = (*place(example(2)), *options)
    assert words in refuse("a.npy", "all.h5", *given)
    assert (tmp_path / "all.h5").read_bytes() == before


def test_image_of_a_migration_is_exported(convert, tmp_path, refuse):
    grid, image = example(2).grid, example(2)["vp"] - 3000.0
    write_images(tmp_path / "image.h5", Model(grid, {"vp": image}), 3)
    for kind in (".npy", ".sgy", ".vti"):
        convert("image.h5", f"image{kind}")
    np.testing.assert_array_equal(np.load(tmp_path / "image.npy"), image)
    with segyio.open(tmp_path / "image.sgy", strict=False) as file:
        np.testing.assert_array_equal(file.trace.raw[:], image.T)
    assert 'Name="image"' in (tmp_path / "image.vti").read_text(errors="replace")
    for options in (("--scale", "1000"), ("--quantity", "slowness")):
        assert "Leave out --quantity and --scale" in refuse("image.h5", "c.npy", *options)
    assert "an image is not a model" in refuse("image.h5", "b.h5")
    told = refuse("image.h5", "c.npy", "--parameter", "vs")
    assert "/image_vs: there is no such dataset; the file holds /image" in told


def test_images_of_several_parameters_are_exported_together_or_one_of_them(convert, tmp_path):
    grid, images = example(2).grid, {n: k - example(2)["vp"] for k, n in enumerate(("vs", "rho"))}
    write_images(tmp_path / "image.h5", Model(grid, images), 3)
    convert("image.h5", "all.vti")
    text = (tmp_path / "all.vti").read_text(errors="replace")
    assert 'Name="image_vs"' in text
    assert 'Name="image_rho"' in text
    convert("image.h5", "first.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "first.npy"), images["vs"])
    convert("image.h5", "other.npy", "--parameter", "rho")
    np.testing.assert_array_equal(np.load(tmp_path / "other.npy"), images["rho"])
    convert("image.h5", "other.vti", "--parameter", "rho")
    assert "image_vs" not in (tmp_path / "other.vti").read_text(errors="replace")


@pytest.mark.parametrize("ndim", [2, 3])
def test_written_segy_model_keeps_its_spacing_and_origin(ndim, convert, tmp_path):
    model = example(ndim, origin=-37.5)
    write_model(tmp_path / "a.h5", model)
    convert("a.h5", "a.sgy")
    convert("a.sgy", "b.h5", "--model")
    check_same(read_model(tmp_path / "b.h5"), model)


def test_raw_file_is_read_in_the_given_order_of_axes(convert, tmp_path):
    model = example(2)
    model["vp"].T.astype(">f8").tofile(tmp_path / "a.bin")
    options = ("--order", "xz", "--endian", "big", "--origin", "5,100", *place(model))
    convert("a.bin", "a.h5", *options)
    found = read_model(tmp_path / "a.h5")
    np.testing.assert_array_equal(found["vp"], model["vp"])
    assert found.grid.origin == (5.0, 100.0)


def test_volume_in_segy_is_sorted_by_inline_and_crossline(convert, tmp_path):
    model = example(3)
    ny, nx = model.grid.shape[1:]
    y, x = np.divmod(np.random.default_rng(1).permutation(ny * nx), nx)
    traces = np.ascontiguousarray(model["vp"][:, y, x].T)
    fields = {"inline": 10 + 2 * y, "crossline": 300 - 3 * (nx - x)}
    write_segy(tmp_path / "a.sgy", fields, traces, code=5)
    options = ("--model", "--spacing", "10,12.5,20")
    convert("a.sgy", "a.h5", *options)
    check_same(read_model(tmp_path / "a.h5"), model)


@pytest.mark.parametrize("ndim", [2, 3])
def test_vtk_file_has_the_model_with_z_upwards(ndim, convert, tmp_path):
    model = example(ndim, origin=-37.5)
    write_model(tmp_path / "a.h5", model)
    convert("a.h5", "a.vti")
    (image,) = ElementTree.parse(tmp_path / "a.vti").getroot()
    nx, ny, nz = (n + 1 for n in map(int, image.get("WholeExtent").split()[1::2]))
    shape = model.grid.shape
    assert (nz, ny, nx) == (shape[0], shape[1] if ndim == 3 else 1, shape[-1])
    spacing = [float(v) for v in image.get("Spacing").split()]
    assert [spacing[2], spacing[0]] == [model.grid.spacing[0], model.grid.spacing[-1]]
    depth = (nz - 1) * spacing[2]
    y = -37.5 if ndim == 3 else 0.0
    assert [float(v) for v in image.get("Origin").split()] == [-37.5, y, -depth]
    (array,) = image.iter("DataArray")
    content = base64.b64decode(array.text)
    assert int.from_bytes(content[:8], "little") == len(content) - 8 == 4 * nx * ny * nz
    values = np.frombuffer(content[8:], "<f4").reshape(nz, ny, nx)[::-1]
    np.testing.assert_array_equal(values.reshape(shape), model["vp"])


def test_vtk_as_a_source_is_refused(tmp_path, refuse):
    (tmp_path / "a.vti").touch()
    assert "VTK files are written, not read" in refuse("a.vti", "a.h5")


VP = example(2)["vp"]
IN_PLACE = {"cdp_x": 10 * np.arange(7), "interval": 4000}  # as in the file header
REFUSED = {
    "km/s in SEG-Y": (
        lambda path: write_segy(path.with_suffix(".sgy"), {}, VP.T / 1000),
        ("--model", "--spacing", "10"),
        r"it looks like km/s. Give --scale 1000",
    ),
    "km/s in raw": (
        lambda path: (VP / 1000).tofile(path.with_suffix(".bin")),
        place(example(2)),
        r"it looks like km/s. Give --scale 1000",
    ),
    "km/s in .npy": (
        lambda path: np.save(path.with_suffix(".npy"), VP / 1000),
        place(example(2)),
        r"it looks like km/s. Give --scale 1000",
    ),
    "slowness in s/km": (
        lambda path: np.save(path.with_suffix(".npy"), 1000.0 / VP.astype(float)),
        place(example(2)),
        r"look like slowness.*--quantity slowness --scale 1000",
    ),
    "squared slowness in raw": (
        lambda path: (1e6 / VP.astype(float) ** 2).tofile(path.with_suffix(".bin")),
        place(example(2)),
        r"look like .*slowness-squared.*--quantity slowness-squared --scale 1000",
    ),
    "traces in .npy": (
        lambda path: np.save(path.with_suffix(".npy"), np.sin(np.arange(120.0)).reshape(4, 5, 6)),
        ("--spacing", "10"),
        r"they look like traces, expected a model.*\"Files from Python\" of docs/formats.md",
    ),
    "the other byte order": (
        lambda path: VP.astype(">f4").tofile(path.with_suffix(".bin")),
        place(example(2)),
        "other byte order only. Give --endian big",
    ),
    "no shape": (lambda path: VP.tofile(path.with_suffix(".bin")), (), "--shape: a raw file"),
    "no spacing": (
        lambda path: VP.tofile(path.with_suffix(".bin")),
        ("--shape", "6,7"),
        "--spacing: not given",
    ),
    "a wrong size": (
        lambda path: VP.tofile(path.with_suffix(".bin")),
        ("--shape", "6,8", "--spacing", "10"),
        "it has 168 bytes; expected 192 or 384",
    ),
    "a wrong order": (
        lambda path: VP.tofile(path.with_suffix(".bin")),
        (*place(example(2)), "--order", "zyx"),
        "--order: found 'zyx', but the model has the axes 'zx'",
    ),
    "a wrong shape": (
        lambda path: np.save(path.with_suffix(".npy"), VP),
        ("--shape", "7,6", "--spacing", "10"),
        r"--shape: found \(7, 6\), but .* holds \(6, 7\)",
    ),
    "no array": (
        lambda path: path.with_suffix(".npy").write_text("not one"),
        ("--spacing", "10"),
        "NumPy cannot read it",
    ),
    "four axes": (
        lambda path: np.save(path.with_suffix(".npy"), np.ones((2, 2, 2, 2))),
        ("--spacing", "10"),
        r"\(2, 2, 2, 2\), expected \(z, x\)",
    ),
    "three numbers for two axes": (
        lambda path: np.save(path.with_suffix(".npy"), VP),
        ("--spacing", "10,10,10"),
        "--spacing: found 3 numbers for an array of 2 axes",
    ),
    "traces that fit no grid": (
        lambda path: write_segy(
            path.with_suffix(".sgy"), {"inline": np.arange(7), "crossline": np.arange(7)}, VP.T
        ),
        ("--model", "--spacing", "10"),
        r"bytes 189-192 \(inline\).*7 inlines and 7 crosslines, but 7 traces",
    ),
    "another kind": (lambda path: path.with_suffix(".doc").touch(), (), r"ends with '.doc'"),
}


SLOWNESS = {
    "slowness in s/km": (lambda v: 1e3 / v, "--quantity slowness --scale 1000"),
    "slowness in s/m": (lambda v: 1.0 / v, "--quantity slowness --scale 1"),
    "its square in s2/km2": (lambda v: 1e6 / v**2, "--quantity slowness-squared --scale 1000"),
    "its square in s2/m2": (lambda v: 1.0 / v**2, "--quantity slowness-squared --scale 1"),
}


@pytest.mark.parametrize("kind", [".npy", ".h5"])
@pytest.mark.parametrize("quantity", SLOWNESS)
def test_slowness_is_refused_with_the_option_that_converts_it(
    quantity, kind, convert, tmp_path, refuse
):
    make, options = SLOWNESS[quantity]
    values, path = make(VP.astype(np.float64)), tmp_path / f"a{kind}"
    np.save(tmp_path / "a.npy", values)
    model = example(2)
    write_model(tmp_path / "a.h5", Model(model.grid, {"vp": values.astype(np.float32)}))
    words = place(model) if kind == ".npy" else ()
    message = refuse(path, "b.h5", *words)
    assert re.search(rf"{options}\b", message), message
    convert(path, tmp_path / "b.h5", *words, *options.split())
    np.testing.assert_allclose(read_model(tmp_path / "b.h5")["vp"], VP, rtol=1e-6)


def test_spacing_is_read_from_the_headers_of_segy_columns(convert, tmp_path):
    write_segy(tmp_path / "a.sgy", IN_PLACE, VP.T)
    convert("a.sgy", "a.h5", "--model")
    assert read_model(tmp_path / "a.h5").grid.spacing == (4.0, 10.0)


MAP_LINE = "421350.25,5811200.5,421360.25,5811210.5"


def on_map(**options):
    """Return headers of columns 12.5 m apart on a line to the north-east, in cm."""
    along = 1250.0 * np.arange(7) / np.sqrt(2.0)
    x, y = (np.rint(100.0 * start + along) for start in (421350.25, 5811200.5))
    return {"cdp_x": x, "cdp_y": y, "coordinate_scalar": -100, "interval": 4000, **options}


def test_columns_not_along_x_are_refused_with_the_line_to_give(convert, tmp_path, refuse):
    write_segy(tmp_path / "a.sgy", on_map(), VP.T)
    message = refuse("a.sgy", "a.h5", "--model")
    assert "bytes 181-184 (cdp_x), bytes 185-188 (cdp_y)" in message
    line = re.search(r"such as (--line \S+);", message)[1].split()
    convert("a.sgy", "a.h5", "--model", *line)
    grid = read_model(tmp_path / "a.h5").grid
    assert (grid.origin, grid.spacing) == ((0.0, 0.0), (4.0, 12.5))


@pytest.mark.parametrize("line", [MAP_LINE, "421360,5811210,421350,5811200", "7,-3,7,5"])
def test_model_written_on_a_map_line_is_read_back_with_its_origin(line, convert, tmp_path):
    model = example(2, origin=-37.5)
    write_model(tmp_path / "a.h5", model)
    words = ("--line", line)
    convert("a.h5", "a.sgy", *words, "--datum", "350")
    headers = segyio.open(tmp_path / "a.sgy", ignore_geometry=True)
    with headers:
        x, y, cdp, height, down = (
            headers.attributes(getattr(segyio.TraceField, name))[:]
            for name in ("CDP_X", "CDP_Y", "CDP", "ReceiverGroupElevation", "ElevationScalar")
        )
        scalar = headers.header[0][segyio.TraceField.SourceGroupScalar]
    x0, y0, x1, y1 = map(float, line.split(","))
    step = np.array([x1 - x0, y1 - y0]) / np.hypot(x1 - x0, y1 - y0)
    along = -37.5 + model.grid.spacing[1] * np.arange(7)
    expected = np.array([x0, y0]) + along[:, None] * step
    divisor = -scalar if scalar < 0 else 1
    found = np.stack([x, y], axis=1) / divisor
    np.testing.assert_allclose(found, expected, atol=0.5001 / divisor)
    assert cdp.tolist() == list(range(1, 8))
    assert set(height) == {350}
    assert set(down) == {1}
    convert("a.sgy", "b.h5", "--model", *words)
    back = read_model(tmp_path / "b.h5")
    np.testing.assert_array_equal(back["vp"], model["vp"])
    assert back.grid == model.grid


def test_line_option_for_a_volume_is_refused(convert, tmp_path, refuse):
    write_model(tmp_path / "a.h5", example(3))
    words = ("--line", MAP_LINE)
    assert "--line: given, but " in refuse("a.h5", "a.sgy", *words)
    convert("a.h5", "a.sgy")
    assert "--line: given, but " in refuse("a.sgy", "b.h5", "--model", *words)


@pytest.mark.parametrize("fault", REFUSED)
def test_file_that_is_not_a_valid_model_is_refused(fault, tmp_path, refuse):
    write, options, told = REFUSED[fault]
    write(tmp_path / "a")
    (path,) = tmp_path.iterdir()
    message = refuse(path, "b.h5", *options)
    assert re.search(told, message), message
    assert not (tmp_path / "b.h5").exists()


def test_velocities_in_km_per_second_are_read_with_the_scale_option(convert, tmp_path):
    np.save(tmp_path / "a.npy", VP.astype(np.float64) / 1000)
    options = ("--spacing", "10", "--scale", "1000")
    convert("a.npy", "a.h5", *options)
    np.testing.assert_allclose(read_model(tmp_path / "a.h5")["vp"], VP, rtol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        ("--bytes", "source_x"),
        ("--bytes", "nothing=9"),
        ("--bytes", "source_x=0"),
        ("--bytes", "source_x=238"),
        ("--bytes", "source_x=9:c8"),
        ("--bytes", "source_x=²"),
        ("--value", "record=x"),
        ("--value", "record=nan"),
        ("--keep", "time=1"),
        ("--keep", "time=1:2:3"),
        ("--keep", "time=a:2"),
        ("--keep", "shots=1"),
        ("--keep", "shots=0:9:0"),
        ("--keep", "shots=-3:9"),
        ("--keep", "nights=1:2"),
        ("--line", "1,2,3"),
        ("--axes", "xz"),
        ("--endian", "middle"),
        ("--shape", "3"),
        ("--shape", "3,0"),
        ("--shape", "3,2.5"),
        ("--spacing", "0"),
        ("--spacing", "1e9"),
        ("--spacing", "ten"),
        ("--order", "zz"),
        ("--origin", "1"),
        ("--scale", "nan"),
        ("--datum", "inf"),
        ("--dt", "soon"),
    ],
)
def test_error_for_an_invalid_option_names_it(options, tmp_path, refuse):
    write_segy(tmp_path / "a.sgy")
    message = refuse("a.sgy", "a.h5", *options)
    assert options[0] in message


def write_mat_5(path: Path, **arrays: np.ndarray) -> None:
    scipy.io.savemat(path, arrays)


def write_mat_73(path: Path, **arrays: np.ndarray) -> None:
    """Write a file like MATLAB: HDF5 after a block of text, with the axes reversed."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, array in arrays.items():
            file[name] = array.T
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file".ljust(512))


@pytest.mark.parametrize("write", [write_mat_5, write_mat_73])
def test_matlab_model_is_read_with_its_axes_in_order(write, convert, tmp_path):
    vp = np.linspace(1500.0, 3000.0, 12 * 9).reshape(12, 9)
    write(tmp_path / "a.mat", vp=vp, dx=np.array([[25.0]]))
    convert("a.mat", "a.h5", "--spacing", "25")
    np.testing.assert_allclose(read_model(tmp_path / "a.h5")["vp"], vp, rtol=1e-6)


@pytest.mark.parametrize("write", [write_mat_5, write_mat_73])
def test_variable_option_selects_an_array_of_a_matlab_file(write, convert, tmp_path, refuse):
    vp = np.full((12, 9), 2000.0)
    write(tmp_path / "a.mat", other=vp / 2.0, vp=vp)
    arguments = "a.mat", "a.h5", "--spacing", "25"
    assert "2 arrays of two or three axes: other, vp" in refuse(*arguments)
    assert "it holds other, vp" in refuse(*arguments, "--variable", "density")
    convert(*arguments, "--variable", "vp")
    assert (read_model(tmp_path / "a.h5")["vp"] == 2000.0).all()


@pytest.mark.parametrize("content", [b"", b"MATLAB 7.3", b"MATLAB 5.0 MAT-file" * 50, b"\0" * 400])
def test_damaged_matlab_file_is_refused(content, tmp_path, refuse):
    (tmp_path / "a.mat").write_bytes(content)
    assert "a.mat" in refuse("a.mat", "a.h5", "--spacing", "25")


def test_matlab_target_is_refused_before_the_source_is_read(tmp_path, refuse):
    (tmp_path / "a.npy").write_bytes(b"")
    assert "a.mat: MATLAB files are read, not written. Write .npy, .h5" in refuse("a.npy", "a.mat")
