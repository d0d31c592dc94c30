"""Known models: found locally or fetched, and announced with their licence."""

from __future__ import annotations

import base64
import hashlib
import os
import zlib
from dataclasses import replace

import h5py
import numpy as np
import pytest

from hpcfwi import datasets
from hpcfwi.datasets import DownloadError, export_dataset, fetch_dataset, load_dataset
from hpcfwi.errors import InputError
from hpcfwi.model import Grid, Model, resample_onto
from hpcfwi.registry import DATASETS, find
from hpcfwi.storage.models import read_model

REAL_DATA = os.environ.get("HPCFWI_DATA")
needs_data = pytest.mark.skipif(
    not REAL_DATA, reason="HPCFWI_DATA does not name a directory with the public models"
)

VP = np.linspace(1500, 4500, 12, dtype="<f4").reshape(4, 3)  # (x, z)
FINE = np.arange(1500, 1535, dtype="<f2").reshape(5, 7)  # (z, x), over the same extent
# Points at 0, 20 and 40 m along z, of those at 0, 10, 20, 30 and 40 m, and likewise along x
RESAMPLED = resample_onto(
    Model(Grid((5, 7), (10.0, 10.0), (0.0, 0.0)), {"vp": FINE.astype("f4")}),
    Grid((3, 4), (20.0, 20.0), (0.0, 0.0)),
)["vp"]
FOLDER = "marmousi2"
KNOWN = {name: find(place) for name, place in DATASETS.items()}
PUBLISHED = [name for name, known in KNOWN.items() if known.editions]
COMPUTED = [name for name in KNOWN if name not in PUBLISHED]


def python_text(**arrays):
    """Return a Python file that holds arrays as text and raises if it is executed."""
    lines = ["raise SystemExit('this file was executed')"]
    for name, array in arrays.items():
        text = base64.b85encode(zlib.compress(array.tobytes())).decode()
        lines += [f"_{name}_TRUE_SHAPE = {array.shape}", f"_{name}_TRUE_B85 = (\n    {text!r}\n)"]
    return "\n".join(lines).encode()


TEXT = python_text(VP=FINE, VS=0 * FINE, RHO=FINE - 500)


@pytest.fixture
def small_marmousi2(monkeypatch, tmp_path):
    """Replace Marmousi2 by small models, without a cache, HPCFWI_DATA and network."""
    mirrored, packaged = datasets.MARMOUSI2.editions
    small = replace(
        datasets.MARMOUSI2,
        editions=(
            replace(mirrored, sha256=hashlib.sha256(VP.tobytes()).hexdigest()),
            replace(packaged, sha256=hashlib.sha256(TEXT).hexdigest()),
        ),
        grid=Grid((3, 4), (20.0, 20.0), (0.0, 0.0)),
    )

    def unreachable(*_):
        raise DownloadError("no route")

    monkeypatch.setattr(datasets, "MARMOUSI2", small)
    monkeypatch.setattr(datasets, "download", unreachable)
    monkeypatch.setattr(datasets, "extract_from_package", unreachable)
    monkeypatch.delenv("HPCFWI_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return small


@pytest.fixture
def reachable(small_marmousi2, monkeypatch):
    """Let the public mirror serve the small model; return the list of its requests."""
    requests = []

    def serve(url, path, _sha256):
        assert url in small_marmousi2.editions[0].urls
        requests.append(url)
        path.write_bytes(VP.tobytes())

    monkeypatch.setattr(datasets, "download", serve)
    return requests


@pytest.fixture
def packaged(small_marmousi2, monkeypatch):
    """Let only the package index serve the finer model; return the list of its requests."""
    requests = []

    def extract(name, version, member, path, _sha256):
        assert (name, version, member) == small_marmousi2.editions[1].package
        requests.append(name)
        path.write_bytes(TEXT)

    monkeypatch.setattr(datasets, "extract_from_package", extract)
    return requests


def silent(_sentence):
    pass


@pytest.mark.parametrize("folder", [FOLDER, "."])
def test_file_in_data_directory_is_used_in_place(
    folder, small_marmousi2, reachable, tmp_path, monkeypatch
):
    monkeypatch.setenv("HPCFWI_DATA", str(tmp_path))
    path = tmp_path / folder / small_marmousi2.editions[0].file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(VP.tobytes())
    edition, found = fetch_dataset(small_marmousi2, silent)
    assert edition is small_marmousi2.editions[0]
    assert found.samefile(path)
    assert reachable == []


def test_altered_file_in_the_data_directory_is_refused(small_marmousi2, tmp_path, monkeypatch):
    monkeypatch.setenv("HPCFWI_DATA", str(tmp_path))
    (tmp_path / small_marmousi2.editions[0].file).write_bytes(b"altered")
    with pytest.raises(InputError, match=r"marmousi_vp_20m.*SHA-256.*unset HPCFWI_DATA"):
        fetch_dataset(small_marmousi2, silent)


def test_missing_data_directory_is_refused(small_marmousi2, tmp_path, monkeypatch):
    monkeypatch.setenv("HPCFWI_DATA", str(tmp_path / "no"))
    with pytest.raises(InputError, match=r"HPCFWI_DATA: .* is not a directory"):
        fetch_dataset(small_marmousi2, silent)


def test_file_missing_in_data_directory_is_fetched_once_into_cache(
    small_marmousi2, reachable, tmp_path, monkeypatch
):
    monkeypatch.setenv("HPCFWI_DATA", str(tmp_path))
    edition, path = fetch_dataset(small_marmousi2, silent)
    assert path == tmp_path / "cache" / "hpcfwi" / edition.file
    assert fetch_dataset(small_marmousi2, silent) == (edition, path)
    assert reachable == list(edition.urls)


def test_package_index_serves_same_model_if_mirror_is_unreachable(
    small_marmousi2, packaged, tmp_path
):
    announced = []
    model = load_dataset(FOLDER, announced.append)
    assert model.grid == small_marmousi2.grid
    assert list(model.arrays) == ["vp", "vs", "rho"]
    np.testing.assert_array_equal(model["vp"], RESAMPLED)
    assert small_marmousi2.editions[1].contents in " ".join(announced)
    again = load_dataset(FOLDER, silent)
    np.testing.assert_array_equal(again["vp"], model["vp"])
    assert packaged == ["sweep-solver"]
    assert [path.name for path in (tmp_path / "cache" / "hpcfwi").iterdir()] == ["marmousi.py"]


@pytest.mark.usefixtures("packaged")
def test_cached_edition_is_kept_when_mirror_becomes_reachable(small_marmousi2, monkeypatch):
    edition, path = fetch_dataset(small_marmousi2, silent)
    assert edition is small_marmousi2.editions[1]
    monkeypatch.setattr(datasets, "download", lambda *_: pytest.fail("the file is in the cache"))
    assert fetch_dataset(small_marmousi2, silent) == (edition, path)


def test_file_of_the_package_is_found_in_data_directory(small_marmousi2, tmp_path, monkeypatch):
    monkeypatch.setenv("HPCFWI_DATA", str(tmp_path))
    (tmp_path / "marmousi.py").write_bytes(TEXT)
    edition, path = fetch_dataset(small_marmousi2, silent)
    assert edition is small_marmousi2.editions[1]
    assert path == tmp_path / "marmousi.py"


@pytest.mark.usefixtures("small_marmousi2", "packaged")
def test_exported_model_has_all_arrays_of_package_and_says_their_origin(tmp_path):
    path = export_dataset(FOLDER, tmp_path / "out", silent)
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["vp"], RESAMPLED)
        np.testing.assert_array_equal(file["vs"], 0.0 * RESAMPLED)
        np.testing.assert_allclose(file["rho"], RESAMPLED - 500.0, rtol=1e-6)
        assert "sweep-solver" in file.attrs["contents"]
        assert "resampled to 20 m" in file.attrs["contents"]
    assert list(read_model(path).arrays) == ["vp", "vs", "rho"]


@pytest.mark.usefixtures("reachable")
def test_altered_file_in_cache_is_fetched_again(small_marmousi2):
    _, path = fetch_dataset(small_marmousi2, silent)
    path.write_bytes(b"altered")
    assert fetch_dataset(small_marmousi2, silent)[1].read_bytes() == VP.tobytes()


@pytest.mark.usefixtures("small_marmousi2")
@pytest.mark.parametrize("name", PUBLISHED)
def test_error_without_network_names_all_sources_and_remedies(name, tmp_path):
    with pytest.raises(InputError) as caught:
        load_dataset(name, silent)
    dataset = find(DATASETS[name])
    for edition in dataset.editions:
        for place in edition.urls or (edition.package[0],):
            assert place in caught.value.problem
            assert place in caught.value.remedy
        assert str(tmp_path / "cache" / "hpcfwi" / edition.file) in caught.value.remedy
    assert caught.value.problem.count("no route") == len(dataset.editions)
    assert "HPCFWI_DATA" in caught.value.remedy


def test_unknown_name_is_refused_with_known_names():
    with pytest.raises(InputError, match=f"Choose one of {', '.join(DATASETS)}"):
        load_dataset("marmousi3", silent)


@pytest.mark.usefixtures("reachable")
def test_origin_licence_and_citation_are_announced(small_marmousi2):
    announced = []
    load_dataset(FOLDER, announced.append)
    for fact in (
        small_marmousi2.title,
        small_marmousi2.licence,
        small_marmousi2.citation,
        small_marmousi2.editions[0].urls[0],
    ):
        assert fact in " ".join(announced)


@pytest.mark.usefixtures("reachable")
def test_model_is_transposed_to_depth_first(small_marmousi2):
    model = load_dataset(FOLDER, silent)
    assert model.grid == small_marmousi2.grid
    assert model["vp"].dtype == np.float32
    assert model["vp"].flags.c_contiguous
    np.testing.assert_array_equal(model["vp"], VP.T)


@pytest.mark.usefixtures("small_marmousi2", "reachable")
def test_exported_model_is_a_model_file_next_to_its_licence(tmp_path):
    path = export_dataset(FOLDER, tmp_path / "out", silent)
    np.testing.assert_array_equal(read_model(path)["vp"], VP.T)
    assert sorted(p.name for p in path.parent.iterdir()) == [
        "marmousi2.LICENCE.txt",
        "marmousi2.h5",
    ]
    licence = (path.parent / "marmousi2.LICENCE.txt").read_text()
    assert "creativecommons.org/licenses/by/4.0" in licence
    assert "University of Houston" in licence


@needs_data
@pytest.mark.parametrize(
    ("name", "shape", "slowest", "fastest"),
    [("marmousi2", (176, 851), 1028, 4700), ("marmousi1", (751, 2301), 1500, 5500)],
)
def test_real_models_have_their_known_shape_and_velocities(name, shape, slowest, fastest):
    model = load_dataset(name, silent)
    assert model["vp"].shape == model.grid.shape == shape
    assert model["vp"].min() == slowest
    assert model["vp"].max() == fastest


@needs_data
def test_marmousi2_lies_under_450_m_of_water():
    model = load_dataset("marmousi2", silent)
    water = model.grid.coordinates(0) < 440
    assert np.ptp(model["vp"][water]) == 0
    assert np.ptp(model["vp"][~water]) > 1000


def test_window_keeps_its_position_in_the_whole_model_and_is_in_m_s(monkeypatch, tmp_path):
    vp = np.array([[1.5, 1.6], [2.5, 2.6], [3.5, 3.6]])

    def extract(_name, _version, _member, path, _sha256):
        np.savez(path, model=vp)

    monkeypatch.delenv("HPCFWI_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(datasets, "extract_from_package", extract)
    model = load_dataset("marmousi-window", silent)
    np.testing.assert_allclose(model["vp"], 1000 * vp, rtol=1e-6)
    assert model.grid.origin == (800.0, 800.0)
    assert model.grid.last == (2996.0, 3996.0)


@pytest.mark.parametrize("name", DATASETS)
def test_dataset_has_its_name_in_the_registry(name):
    assert KNOWN[name].name == name


@pytest.mark.parametrize("name", COMPUTED)
def test_computed_model_needs_no_file_and_is_exported(name, monkeypatch, tmp_path):
    monkeypatch.setenv("HPCFWI_DATA", str(tmp_path / "no"))
    read = read_model(export_dataset(name, tmp_path, silent))
    assert read.grid == KNOWN[name].grid
    np.testing.assert_array_equal(read["vp"], load_dataset(name, silent)["vp"])
    assert "MIT" in (tmp_path / f"{name}.LICENCE.txt").read_text()
