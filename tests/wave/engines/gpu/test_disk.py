"""Tests of the cache of compiled kernels, which must be private to the user."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.ranks import make_env, warm_python

pytest.importorskip("triton")

ASK = """
import os
from hpcfwi.errors import InputError
from hpcfwi.wave.engines.gpu.device import keep_kernels
from triton import knobs

try:
    keep_kernels()
    print(knobs.cache.dir, oct(os.stat(knobs.cache.dir).st_mode & 0o777))
except InputError as error:
    print(error)
"""


def ask(cache: Path, **more: str) -> subprocess.CompletedProcess[str]:
    given = {k: v for k, v in make_env().items() if k != "TRITON_CACHE_DIR"}
    return subprocess.run(
        [*warm_python(), "-c", ASK],
        env=given | {"XDG_CACHE_HOME": str(cache)} | more,
        capture_output=True,
        text=True,
        check=True,
    )


def test_triton_uses_the_private_user_cache_or_triton_cache_dir(public_folder: Path) -> None:
    assert ask(public_folder).stdout == f"{public_folder}/hpcfwi/triton 0o700\n"
    named = public_folder / "named"
    done = ask(public_folder, TRITON_CACHE_DIR=str(named))
    assert (done.stdout, done.stderr) == (f"{named}/hpcfwi 0o700\n", "")
    named.chmod(0o777)
    refused = ask(public_folder, TRITON_CACHE_DIR=str(named)).stdout
    assert refused.startswith(f"TRITON_CACHE_DIR: {named}: not safe for code that will be executed")


def test_triton_uses_a_temporary_directory_if_the_cache_is_not_private(
    public_folder: Path,
) -> None:
    (public_folder / "hpcfwi").mkdir()
    (public_folder / "hpcfwi").chmod(0o777)
    done = ask(public_folder)
    folder, mode = done.stdout.split()
    assert mode == "0o700"
    assert not Path(folder).exists()
    assert done.stderr.count("\n") == 1
    assert (
        "The gpu engine is compiled for this process only, because others may write" in done.stderr
    )
