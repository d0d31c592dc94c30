"""Tests of what the commands import and start."""

from __future__ import annotations

import sys

import pytest

from tests.inversion.examples import write_input
from tests.ranks import run_command, run_ranks

# Modules that this run needs on no rank: torch's compiler and those of other inputs and commands
UNUSED = (
    *("torch._dynamo", "torch._inductor", "sympy", "scipy.optimize", "scipy.interpolate"),
    *("skimage", "segyio", "triton", "deepinv", "pylops", "matplotlib.pyplot"),
)
# Modules for figures and progress bars, which only rank 0 may import
ROOT_ONLY = ("matplotlib", "rich")

PROGRAM = """
import gc, os, sys
from hpcfwi.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
found = set("{words}".split()) & set(sys.modules)
print("rank", os.environ.get("RANK", "0"), gc.isenabled(), *sorted(found))
"""


NETWORK = {
    "model.network": {"kind": "siren", "width": 16, "fit": 5},
    "inversion.optimizer": {"name": "adam", "lr": 1e-3},
}


@pytest.mark.parametrize(("size", "keys"), [(1, {}), (2, NETWORK)])
def test_run_does_not_import_modules_that_it_does_not_use(size, keys, tmp_path):
    path = write_input(tmp_path, {**keys, "inversion.epochs": 1})
    words = " ".join([*UNUSED, *ROOT_ONLY])
    arguments = ["run", str(path), "--quiet"]
    done = run_ranks(size, ["-c", PROGRAM.format(words=words), *arguments])
    said = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    others = [f"rank {rank} True" for rank in range(1, size)]
    assert said == ["rank 0 True matplotlib", *others]


ALONE = """
import sys
from pathlib import Path
from hpcfwi.cli import main

def call(*words):
    sys.argv = ["hpcfwi", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)

path, folder = sys.argv[1:]
call("dataset", "dome", "--to", folder, "--quiet")
call("convert", str(next(Path(folder).glob("*.h5"))), folder + "/dome.npy", "--quiet")
call("plan", path, "--quiet")
from mpi4py import MPI
print("MPI", MPI.Is_initialized())
call("forward", path, "--quiet")
print("MPI", MPI.Is_initialized())
"""


def test_plan_convert_and_dataset_do_not_start_mpi(tmp_path):
    path = write_input(tmp_path)
    done = run_command([sys.executable, "-c", ALONE, path, tmp_path])
    said = [line for line in done.stdout.splitlines() if line.startswith("MPI")]
    assert said == ["MPI False", "MPI True"]
