"""The job scripts, with a small program in hpcfwi's place: what they ask for, and how they end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.slurm.conftest import ONE_NODE, ROOT, Cluster, make_checkout, seconds

GPU_SCRIPTS = ["marmousi_4gpu.sh", "marmousi_nodes.sh"]

# Waits for a signal on the first try of a job, and is done at once on the next. The ranks leave one
# after the other, as those do whose interpreters take their time to end.
INTERRUPTIBLE = """\
[[ ${SLURM_RESTART_COUNT:-0} == 0 ]] || { echo "rank $SLURM_PROCID continues"; exit 0; }
trap 'trap - TERM; echo "rank $SLURM_PROCID saves"; sleep 0.$((3 * SLURM_PROCID)); exit 3' USR1 TERM
echo "rank $SLURM_PROCID works"
while :; do sleep 0.1; done
"""

Checkout = Callable[[str], Path]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A function that makes a checkout whose `hpcfwi` is the given Bash program."""

    return partial(make_checkout, tmp_path)


def submit(cluster: Cluster, script: str, folder: Path, *arguments: str) -> int:
    return cluster.submit(*ONE_NODE[script], f"slurm/{script}", *arguments, cwd=folder)


@pytest.mark.parametrize("script", ONE_NODE)
def test_a_script_inverts_marmousi_unless_told_otherwise(
    script: str, cluster: Cluster, checkout: Checkout
) -> None:
    folder = checkout('echo "arguments: $*"')
    plain = submit(cluster, script, folder)
    options = submit(cluster, script, folder, "--engine", "cpu")
    other = submit(cluster, script, folder, "inputs/small.toml", "--set", "inversion.epochs=3")
    assert "arguments: run inputs/marmousi.toml\n" in cluster.wait(plain).log
    assert "arguments: run inputs/marmousi.toml --engine cpu\n" in cluster.wait(options).log
    log = cluster.wait(other).log
    assert "arguments: run inputs/small.toml --set inversion.epochs=3\n" in log


@pytest.mark.parametrize("script", GPU_SCRIPTS)
def test_each_of_four_ranks_sees_the_four_gpus_of_its_node(
    script: str, cluster: Cluster, checkout: Checkout
) -> None:
    folder = checkout('echo "rank $SLURM_PROCID of $SLURM_NTASKS sees $CUDA_VISIBLE_DEVICES"')
    job = cluster.wait(submit(cluster, script, folder))
    for rank in range(4):
        assert f"rank {rank} of 4 sees 0,1,2,3\n" in job.log


def test_the_script_for_cpus_asks_for_no_gpus(cluster: Cluster, checkout: Checkout) -> None:
    folder = checkout('echo "rank $SLURM_PROCID sees ${CUDA_VISIBLE_DEVICES-nothing}"')
    job = cluster.wait(submit(cluster, "marmousi_cpu.sh", folder))
    assert sorted(line for line in job.log.splitlines() if "sees" in line) == [
        "rank 0 sees nothing",
        "rank 1 sees nothing",
    ]


def test_the_ranks_of_a_job_find_each_other_through_mpi(
    cluster: Cluster, checkout: Checkout
) -> None:
    folder = checkout(
        "python -c 'from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(1), \"ranks\")'"
    )
    job = cluster.wait(submit(cluster, "marmousi_4gpu.sh", folder))
    assert job.log.count("4 ranks\n") == 4


def test_an_error_of_all_ranks_is_the_exit_code_of_the_job(
    cluster: Cluster, checkout: Checkout
) -> None:
    folder = checkout("echo bad input; exit 2")
    job = cluster.wait(submit(cluster, "marmousi_4gpu.sh", folder))
    assert (job.state, job.exit_code, job.restarts) == ("FAILED", 2, 0)
    assert "hpcfwi ended with 2" in job.log


def test_a_failed_rank_ends_the_others_and_the_job_for_good(
    cluster: Cluster, checkout: Checkout
) -> None:
    folder = checkout("[[ $SLURM_PROCID != 2 ]] || exit 1; trap 'exit 3' TERM; sleep 100 & wait")
    never = "--export=ALL,HPCFWI_RESTARTS=0"
    job = cluster.wait(cluster.submit(never, "slurm/marmousi_4gpu.sh", cwd=folder), timeout=40)
    assert (job.state, job.restarts) == ("FAILED", 0)


def test_after_a_failure_the_ranks_start_again_within_the_job(
    cluster: Cluster, checkout: Checkout
) -> None:
    folder = checkout("echo start; [[ -e failed ]] || { touch failed; sleep 0.5; kill -9 $$; }")
    job = cluster.wait(submit(cluster, "marmousi_4gpu.sh", folder), timeout=40)
    assert (job.state, job.exit_code, job.restarts) == ("COMPLETED", 0, 0), job.log
    assert job.log.count("it starts again from the last checkpoint") == 1
    assert job.log.count("(srun --mpi=") == 1, "one try of the job"


def test_but_not_for_ever(cluster: Cluster, checkout: Checkout) -> None:
    job = cluster.wait(submit(cluster, "marmousi_cpu.sh", checkout("exit 1")))
    assert (job.state, job.exit_code, job.restarts) == ("FAILED", 1, 0), job.log
    assert job.log.count("it starts again from the last checkpoint") == 2


def test_a_job_that_stops_twice_at_the_same_epoch_is_not_put_back_in_the_queue(
    cluster: Cluster, checkout: Checkout
) -> None:
    folder = checkout(
        "trap 'echo stopped, the same command goes on from epoch 4; exit 3' USR1\n"
        'echo "works $SLURM_PROCID"; while :; do sleep 0.1; done'
    )
    number = cluster.submit("--ntasks=1", "slurm/marmousi_cpu.sh", cwd=folder)
    for tries in (1, 2):
        for _ in seconds(30.0, lambda: cluster.log(number)):
            if cluster.log(number).count("works 0") == tries:
                break
        cluster.call("scancel", "--signal=USR1", "--batch", str(number))
    job = cluster.wait(number)
    assert (job.state, job.exit_code, job.restarts) == ("FAILED", 3, 1), job.log
    assert "Stopped where the try before did: give the job more time" in job.log


def test_before_the_time_limit_every_rank_saves_and_the_job_continues_later(
    cluster: Cluster, checkout: Checkout
) -> None:
    number = submit(cluster, "marmousi_4gpu.sh", checkout(INTERRUPTIBLE))
    for rank in range(4):
        cluster.wait_for_line(number, f"rank {rank} works\n")
    cluster.call("scancel", "--signal=USR1", "--batch", str(number))
    job = cluster.wait(number)
    assert (job.state, job.exit_code, job.restarts) == ("COMPLETED", 0, 1)
    for rank in range(4):
        assert f"rank {rank} saves\n" in job.log
        assert f"rank {rank} continues\n" in job.log


def test_a_cancelled_job_saves_and_does_not_come_back(cluster: Cluster, checkout: Checkout) -> None:
    number = submit(cluster, "marmousi_4gpu.sh", checkout(INTERRUPTIBLE))
    for rank in range(4):
        cluster.wait_for_line(number, f"rank {rank} works\n")
    cluster.call("scancel", str(number))
    cluster.wait_for_line(number, "submit the same command again")
    job = cluster.wait(number)
    assert (job.state, job.restarts) == ("CANCELLED", 0)
    assert "rank 0 saves\n" in job.log


@pytest.mark.parametrize("script", ONE_NODE)
def test_every_script_is_signalled_two_minutes_before_its_time_limit(script: str) -> None:
    lines = (ROOT / "slurm" / script).read_text().splitlines()
    assert {
        "#SBATCH --signal=B:USR1@120",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
    } <= set(lines)


@pytest.mark.parametrize("script", ONE_NODE)
def test_a_script_outside_of_slurm_says_how_to_submit_it(script: str, cluster: Cluster) -> None:
    done = cluster.call("bash", f"slurm/{script}", check=False)
    assert done.returncode != 0
    assert "submit this script with sbatch" in done.stderr
