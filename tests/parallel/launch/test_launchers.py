"""Tests of recognizing the launcher, and of errors if it does not fit the MPI library."""

import sys

import pytest

from hpcfwi.errors import InputError
from hpcfwi.parallel.launch import (
    ENVIRONMENT,
    Launcher,
    check_operator,
    find_launcher,
    is_fault_tolerant,
    lonely,
)
from tests.ranks import run_command

TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "3", "WORLD_SIZE": "4"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
SRUN = {"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5"}


@pytest.mark.parametrize(
    ("env", "launcher"),
    [
        (TORCHRUN, Launcher("torchrun", 3, 4)),
        (OPEN_MPI, Launcher("Open MPI's mpirun", 1, 2)),
        (MPICH, Launcher("MPICH's mpirun", 1, 2)),
        (SRUN, Launcher("srun", 5, 8)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, Launcher("a PMI launcher", 0, 2)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, Launcher(ENVIRONMENT, 1, 2)),
        ({"RANK": "1", "WORLD_SIZE": "2", **MPICH}, Launcher("MPICH's mpirun", 1, 2)),
    ],
)
def test_launcher_is_recognised_by_its_variables(env, launcher):
    assert find_launcher(env) == launcher


def test_plain_process_has_no_launcher():
    assert find_launcher({"HOME": "/"}) is None
    assert find_launcher({"RANK": "0", "WORLD_SIZE": "1"}) is None
    assert find_launcher({"RANK": "3"}) is None


COMPLETE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"MASTER_PORT": ""}, "without MASTER_PORT"),
        ({"MASTER_ADDR": "", "MASTER_PORT": ""}, "without MASTER_ADDR and MASTER_PORT"),
        ({"RANK": ""}, "without RANK"),
        ({"RANK": "2"}, "RANK=2"),
        ({"RANK": "one"}, "RANK=one"),
        ({"MASTER_PORT": "any"}, "MASTER_PORT=any"),
    ],
)
def test_incomplete_torch_variables_are_refused(changes, words):
    check_operator(COMPLETE)
    with pytest.raises(InputError, match=words) as caught:
        check_operator(COMPLETE | changes)
    assert "MASTER_ADDR and MASTER_PORT to the host of rank 0" in str(caught.value)


def test_plain_python_in_a_batch_script_has_no_launcher():
    assert find_launcher({"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_ID": "1"}) is None


@pytest.mark.parametrize("inner", [TORCHRUN, OPEN_MPI, MPICH])
def test_launcher_started_by_srun_takes_precedence_over_srun(inner):
    assert find_launcher(SRUN | inner) == find_launcher(inner)


def test_srun_with_the_pmi2_plugin_is_recognised_as_srun():
    assert find_launcher(SRUN | {"PMI_RANK": "5", "PMI_SIZE": "8"}) == Launcher("srun", 5, 8)


@pytest.mark.parametrize(
    ("library", "plugin"),
    [
        ("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4", "--mpi=pmix"),
        ("MPICH Version:      5.0.2\nMPICH Release date: x\0", "--mpi=pmi2"),
    ],
)
def test_error_for_unconnected_srun_ranks_names_the_mpi_plugin(library, plugin):
    error = lonely(Launcher("srun", 0, 4), library)
    assert error.where == "srun"
    assert "4 processes" in error.problem
    assert plugin in error.remedy
    assert "(Open MPI v4.1.4)" in error.problem or "(MPICH 5.0.2)" in error.problem


def test_error_for_a_foreign_mpirun_names_launcher_and_library():
    error = lonely(Launcher("MPICH's mpirun", 0, 2), "Open MPI v4.1.4, package: Debian")
    assert error.where == "MPICH's mpirun"
    assert "Open MPI v4.1.4" in error.problem
    assert "Debian" not in str(error)


def join_mpi(before: str = "", **env: str) -> str:
    """Return what a process with these variables prints when it joins MPI, after some code."""
    code = (
        f"import os\n{before}\n"
        "from hpcfwi.errors import InputError\n"
        "from hpcfwi.parallel.launch import find_launcher, join_mpi\n"
        "try: print(join_mpi(find_launcher(os.environ), os.environ).size)\n"
        "except InputError as error: print(error)"
    )
    done = run_command([sys.executable, "-c", code], env)
    assert done.stderr == ""
    return done.stdout


def test_plain_process_has_an_mpi_of_size_1():
    assert join_mpi() == "1\n"


def test_srun_task_not_connected_by_mpi_is_an_input_error():
    assert "srun: it started 4" in join_mpi(SLURM_STEP_NUM_TASKS="4", SLURM_PROCID="0")


def test_process_of_a_foreign_mpirun_is_an_input_error():
    said = join_mpi(PMI_RANK="0", PMI_SIZE="2", MPI_LOCALNRANKS="2")
    assert "it started 2 processes" in said
    assert "Use the mpirun that came with" in said


def test_single_srun_task_is_accepted():
    assert join_mpi(SLURM_STEP_NUM_TASKS="1", SLURM_PROCID="0") == "1\n"


def test_missing_mpi_library_is_an_error_with_a_remedy():
    said = join_mpi(MPI4PY_LIBMPI="/nowhere/libmpi.so")
    assert "/nowhere/libmpi.so" in said
    assert "apt install openmpi-bin" in said


def test_missing_mpi4py_is_an_error_with_a_remedy():
    said = join_mpi("import sys; sys.modules['mpi4py'] = None")
    assert said.startswith("mpi4py: not installed")
    assert "pip install mpi4py" in said


@pytest.mark.parametrize(
    ("library", "switch", "fault_tolerant"),
    [
        ("Open MPI v5.0.11, package: Open MPI", "1", True),
        ("Open MPI v10.1.0, package: Open MPI", "true", True),
        ("Open MPI v5.0.11, package: Open MPI", "0", False),
        ("Open MPI v5.0.11, package: Open MPI", None, False),
        ("Open MPI v4.1.4, package: Debian OpenMPI", "1", False),
        ("MPICH Version:      5.0.2", "1", False),
    ],
)
def test_fault_tolerance_needs_open_mpi_5_and_its_switch(library, switch, fault_tolerant):
    env = {} if switch is None else {"OMPI_MCA_mpi_ft_enable": switch}
    assert is_fault_tolerant(library, env) is fault_tolerant
