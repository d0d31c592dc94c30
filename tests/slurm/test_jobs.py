"""Tests of the job scripts with a small program in place of hpcfwi.

All epochs of the program are done when its rank 0 has ended with 0; then there is a file `done`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.ranks import make_env
from tests.slurm.conftest import ONE_NODE, ROOT, Cluster, make_checkout, seconds, use_launcher

# Prints the PYTHONPATH of a job, without a cluster
ENVIRONMENT = "source slurm/environment.sh; printf '[%s]' \"$PYTHONPATH\""

GPU_SCRIPTS = ["marmousi_4gpu.sh", "marmousi_nodes.sh"]

# When a signal ends a program, Bash calls the EXIT trap with the previous status, often 0.
STATUS = """\
[[ $1 != status ]] || exec test -e done
trap 'exit 143' TERM
trap '[[ $?:$SLURM_PROCID != 0:0 ]] || touch done' EXIT
"""

# Waits for a signal in the first try of a job, and ends at once in the next. The ranks exit one
# after the other, like interpreters that need time to end.
INTERRUPTIBLE = """\
[[ ${SLURM_RESTART_COUNT:-0} == 0 ]] || { echo "rank $SLURM_PROCID continues"; exit 0; }
trap 'trap - TERM; echo "rank $SLURM_PROCID saves"; sleep 0.$((3 * SLURM_PROCID)); exit 3' USR1 TERM
echo "rank $SLURM_PROCID works"
while :; do sleep 0.1; done
"""

Checkout = Callable[[str], Path]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A function that makes a checkout whose `hpcfwi run` is the given Bash program."""

    return lambda program: make_checkout(tmp_path, STATUS + program)


def submit(cluster: Cluster, script: str, folder: Path, *arguments: str) -> int:
    return cluster.submit(*ONE_NODE[script], f"slurm/{script}", *arguments, cwd=folder)


@pytest.mark.parametrize("script", ONE_NODE)
def test_script_runs_marmousi_unless_given_another_input(
    script: str, cluster: Cluster, checkout: Checkout
) -> None:
    folder = checkout('echo "arguments: $*"')
    plain = submit(cluster, script, folder)
    options = submit(cluster, script, folder, "--engine", "cpu")
    other = submit(cluster, script, folder, "inputs/small.toml", "--set", "inversion.epochs=3")
    marmousi = folder / "inputs" / "marmousi.toml"
    assert f"arguments: run {marmousi}\n" in cluster.wait(plain).log
    assert f"arguments: run {marmousi} --engine cpu\n" in cluster.wait(options).log
    log = cluster.wait(other).log
    assert "arguments: run inputs/small.toml --set inversion.epochs=3\n" in log


def test_script_can_be_submitted_from_any_directory_with_hpcfwi_root(
    cluster: Cluster, checkout: Checkout, tmp_path: Path
) -> None:
    folder, elsewhere = checkout('echo "$PWD: $*"'), tmp_path / "else where"
    elsewhere.mkdir()
    told = f"--export=ALL,HPCFWI_ROOT={folder}"
    script = folder / "slurm" / "marmousi_cpu.sh"
    job = cluster.wait(cluster.submit("--nodes=1", told, script, "mine.toml", cwd=elsewhere))
    assert f"{elsewhere}: run mine.toml\n" in job.log


@pytest.mark.parametrize("script", GPU_SCRIPTS)
def test_each_of_four_ranks_sees_the_four_gpus_of_its_node(
    script: str, cluster: Cluster, checkout: Checkout
) -> None:
    folder = checkout('echo "rank $SLURM_PROCID of $SLURM_NTASKS sees $CUDA_VISIBLE_DEVICES"')
    job = cluster.wait(submit(cluster, script, folder))
    for rank in range(4):
        assert f"rank {rank} of 4 sees 0,1,2,3\n" in job.log


def test_cpu_script_requests_no_gpus(cluster: Cluster, checkout: Checkout) -> None:
    folder = checkout('echo "rank $SLURM_PROCID sees ${CUDA_VISIBLE_DEVICES-nothing}"')
    job = cluster.wait(submit(cluster, "marmousi_cpu.sh", folder))
    assert sorted(line for line in job.log.splitlines() if "sees" in line) == [
        "rank 0 sees nothing",
        "rank 1 sees nothing",
    ]


def test_ranks_of_a_job_are_connected_by_mpi(cluster: Cluster, checkout: Checkout) -> None:
    folder = checkout(
        "python -c 'from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(1), \"ranks\")'"
    )
    job = cluster.wait(submit(cluster, "marmousi_4gpu.sh", folder))
    assert job.log.count("4 ranks\n") == 4


def test_exit_code_of_the_job_is_that_of_its_ranks(cluster: Cluster, checkout: Checkout) -> None:
    folder = checkout("echo bad input; exit 2")
    job = cluster.wait(submit(cluster, "marmousi_4gpu.sh", folder))
    assert (job.state, job.exit_code, job.restarts) == ("FAILED", 2, 0)
    assert "hpcfwi ended with 2" in job.log


def test_failed_rank_ends_the_job_without_restarts(cluster: Cluster, checkout: Checkout) -> None:
    # Not `sleep 100 & wait`: the signal may end the sleep first, and so the wait, with 0
    folder = checkout(
        "[[ $SLURM_PROCID != 2 ]] || exit 1; trap 'exit 3' TERM; while :; do sleep 0.1; done"
    )
    never = "--export=ALL,HPCFWI_RESTARTS=0"
    job = cluster.wait(cluster.submit(never, "slurm/marmousi_4gpu.sh", cwd=folder), timeout=40)
    assert (job.state, job.restarts) == ("FAILED", 0)


def test_failed_ranks_are_restarted_within_the_job(cluster: Cluster, checkout: Checkout) -> None:
    folder = checkout(
        "[[ $SLURM_PROCID != 0 || -e failed ]] || { touch failed; sleep 0.5; kill -9 $$; }"
    )
    job = cluster.wait(submit(cluster, "marmousi_4gpu.sh", folder), timeout=40)
    assert (job.state, job.exit_code, job.restarts) == ("COMPLETED", 0, 0), job.log
    assert job.log.count("it starts again from the last checkpoint") == 1
    assert job.log.count("(srun --mpi=") == 1, "the job has one try"


def test_job_that_always_fails_ends_after_its_restarts(
    cluster: Cluster, checkout: Checkout
) -> None:
    job = cluster.wait(submit(cluster, "marmousi_cpu.sh", checkout("exit 1")))
    assert (job.state, job.exit_code, job.restarts) == ("FAILED", 1, 0), job.log
    assert job.log.count("it starts again from the last checkpoint") == 2


def test_failure_after_the_last_epoch_does_not_fail_the_job(
    cluster: Cluster, checkout: Checkout
) -> None:
    job = cluster.wait(submit(cluster, "marmousi_cpu.sh", checkout("touch done; exit 1")))
    assert (job.state, job.exit_code, job.restarts) == ("COMPLETED", 0, 0), job.log
    assert "hpcfwi ended with 1, but all epochs are done.\n" in job.log
    assert "starts again" not in job.log


def submit_with_stale_socket(cluster: Cluster, folder: Path, *options: str) -> tuple[int, int]:
    """Submit a job whose first step cannot be launched, and one that depends on its success.

    The PMIx plugin of Slurm fails if an earlier try of the job has left its socket.
    """
    words = (*options, "--hold", *ONE_NODE["marmousi_cpu.sh"], "slurm/marmousi_cpu.sh")
    job = cluster.submit(*words, cwd=folder)
    (cluster.folder / "spool" / f"stepd.slurm.pmix.{job}.0").touch()
    follower = cluster.submit(f"--dependency=afterok:{job}", "--wrap=true", cwd=folder)
    cluster.call("scontrol", "release", str(job))
    return job, follower


def test_step_that_could_not_be_launched_is_restarted(cluster: Cluster, checkout: Checkout) -> None:
    first, follower = submit_with_stale_socket(cluster, checkout('echo "rank $SLURM_PROCID runs"'))
    job = cluster.wait(first)
    assert (job.state, job.exit_code, job.restarts) == ("COMPLETED", 0, 0), job.log
    assert job.log.count("srun ended with 0, but not all epochs are done; it starts again") == 1
    assert job.log.count("rank 0 runs\n") == 1, "the next step has another number"
    assert cluster.wait(follower).state == "COMPLETED"


def test_failed_job_without_restarts_blocks_its_dependent_jobs(
    cluster: Cluster, checkout: Checkout
) -> None:
    first, follower = submit_with_stale_socket(
        cluster, checkout("echo runs"), "--export=ALL,HPCFWI_RESTARTS=0"
    )
    job = cluster.wait(first)
    assert (job.state, job.exit_code, job.restarts) == ("FAILED", 1, 0), job.log
    assert "srun ended with 0, but not all epochs are done; the message is above." in job.log
    for _ in seconds(30.0, lambda: str(cluster.describe(follower))):
        if cluster.describe(follower)["Reason"] == "DependencyNeverSatisfied":
            break
    assert cluster.describe(follower)["JobState"] == "PENDING"
    cluster.call("scancel", str(follower))


@pytest.mark.parametrize("name", ["srun", "mpirun", "torchrun"])
def test_launcher_that_returns_0_before_the_last_epoch_has_failed(
    name: str, cluster: Cluster, checkout: Checkout
) -> None:
    folder = checkout("echo never runs")
    use_launcher(folder, name)
    put_command(folder, name, "exit 0")
    job = cluster.wait(submit(cluster, "marmousi_cpu.sh", folder))
    assert (job.state, job.exit_code, job.restarts) == ("FAILED", 1, 0), job.log
    assert job.log.count("ended with 0, but not all epochs are done; it starts again") == 2


@pytest.mark.parametrize("name", ["mpirun", "torchrun"])
def test_mpirun_and_torchrun_forward_the_signal_and_the_job_continues(
    name: str, cluster: Cluster, checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "mpirun" and shutil.which("mpirun") is None:
        pytest.skip("no mpirun on this machine")
    for variable, value in make_env().items():
        if variable.startswith("OMPI_"):
            monkeypatch.setenv(variable, value)
    folder = checkout(
        "[[ ${SLURM_RESTART_COUNT:-0} == 0 ]] || exit 0\n"
        "said='stopped after epoch 2; the same command continues from there'\n"
        # torchrun forwards a signal that Slurm may have sent to the ranks already.
        "trap 'trap : USR1; echo $said; sleep 0.5; exit 3' USR1\n"
        "echo works; while :; do sleep 0.1; done"
    )
    use_launcher(folder, name)
    put_command(folder, "torchrun", f'exec {sys.executable} -m torch.distributed.run "$@"')
    number = submit(cluster, "marmousi_cpu.sh", folder)
    for _ in seconds(60.0, lambda: cluster.log(number)):
        if cluster.log(number).count("works\n") == 2:
            break
    cluster.call("scancel", "--signal=USR1", "--batch", str(number))
    job = cluster.wait(number)
    assert (job.state, job.exit_code, job.restarts) == ("COMPLETED", 0, 1), job.log
    assert job.log.count("stopped after epoch 2") == 2, "every rank has received the signal"


def put_command(folder: Path, name: str, body: str) -> None:
    """Add a Bash program that the jobs of a checkout find before others of the same name."""
    path = folder / ".venv" / "bin" / name
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


def test_bad_input_reported_as_1_by_the_launcher_is_not_restarted(
    cluster: Cluster, tmp_path: Path
) -> None:
    folder = make_checkout(tmp_path, "[[ $1 == run ]] && exit 1; echo no such config; exit 2")
    job = cluster.wait(submit(cluster, "marmousi_cpu.sh", folder))
    assert (job.state, job.exit_code, job.restarts) == ("FAILED", 2, 0), job.log
    assert "starts again" not in job.log


@pytest.mark.parametrize(
    "places",
    [
        ("epoch 4", "epoch 4"),
        ("shot 30", "shot 51", "shot 51"),
        ("the beginning", "the beginning"),
        ("the first shot", "the first shot"),
    ],
)
def test_job_that_stops_twice_at_the_same_place_is_not_requeued(
    places: Sequence[str], cluster: Cluster, checkout: Checkout
) -> None:
    folder = checkout(
        f"places=({' '.join(map(repr, places))})\n"
        "place=${places[${SLURM_RESTART_COUNT:-0}]}\n"
        "trap 'echo \"stopped, the same command continues from $place\"; exit 3' USR1\n"
        'echo "works $SLURM_PROCID"; while :; do sleep 0.1; done'
    )
    number = submit(cluster, "marmousi_cpu.sh", folder)
    for tries in range(1, len(places) + 1):
        for _ in seconds(30.0, lambda: cluster.log(number)):
            if cluster.log(number).count("works ") == 2 * tries:
                break
        cluster.call("scancel", "--signal=USR1", "--batch", str(number))
    job = cluster.wait(number)
    assert (job.state, job.exit_code, job.restarts) == ("FAILED", 3, len(places) - 1), job.log
    assert "Stopped where the try before did: give the job more time" in job.log


def test_ranks_save_before_the_time_limit_and_the_job_continues(
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


def test_failure_near_the_time_limit_does_not_prevent_requeueing(
    cluster: Cluster, checkout: Checkout
) -> None:
    folder = checkout(
        "[[ ${SLURM_RESTART_COUNT:-0} == 0 ]] || exit 0\n"
        "trap 'exit 1' USR1; echo works; while :; do sleep 0.1; done"
    )
    number = submit(cluster, "marmousi_cpu.sh", folder)
    cluster.wait_for_line(number, "works\nworks\n")
    cluster.call("scancel", "--signal=USR1", "--batch", str(number))
    job = cluster.wait(number)
    assert (job.state, job.exit_code, job.restarts) == ("COMPLETED", 0, 1), job.log
    assert "hpcfwi ended with 1 as time ran out; the job continues" in job.log


def test_ranks_killed_after_a_stop_are_not_told_to_lack_memory(
    cluster: Cluster, checkout: Checkout
) -> None:
    folder = checkout(
        "[[ ${SLURM_RESTART_COUNT:-0} == 0 ]] || exit 0\n"
        "trap 'echo \"the same command continues from epoch 4\"; kill -KILL $$' USR1\n"
        "echo works; while :; do sleep 0.1; done"
    )
    number = submit(cluster, "marmousi_cpu.sh", folder)
    cluster.wait_for_line(number, "works\nworks\n")
    cluster.call("scancel", "--signal=USR1", "--batch", str(number))
    job = cluster.wait(number)
    assert (job.state, job.exit_code, job.restarts) == ("COMPLETED", 0, 1), job.log
    assert "Stopped with a checkpoint; the job goes back to the queue" in job.log
    assert "ended with 137" not in job.log


def test_cancelled_job_saves_and_is_not_requeued(cluster: Cluster, checkout: Checkout) -> None:
    # Slurm's SIGTERM may come while a rank saves after that of the script, which `hpcfwi` has noted
    patient = INTERRUPTIBLE.replace("trap - TERM", 'trap "" TERM')
    number = submit(cluster, "marmousi_4gpu.sh", checkout(patient))
    for rank in range(4):
        cluster.wait_for_line(number, f"rank {rank} works\n")
    cluster.call("scancel", str(number))
    cluster.wait_for_line(number, "submit the same command again")
    job = cluster.wait(number)
    assert (job.state, job.restarts) == ("CANCELLED", 0)
    assert "rank 0 saves\n" in job.log


@pytest.mark.parametrize("script", ONE_NODE)
def test_scripts_request_a_signal_two_minutes_before_their_time_limit(script: str) -> None:
    lines = (ROOT / "slurm" / script).read_text().splitlines()
    assert {
        "#SBATCH --signal=B:USR1@120",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
    } <= set(lines)


@pytest.mark.parametrize("script", ONE_NODE)
def test_script_outside_of_slurm_says_how_to_submit_it(script: str, cluster: Cluster) -> None:
    done = cluster.call("bash", f"slurm/{script}", check=False)
    assert done.returncode != 0
    assert "submit this script with sbatch" in done.stderr


@pytest.mark.parametrize("found", ["{0}", ":{0}", "{0}:", ":{0}::/b c:", ":"])
def test_job_environment_has_no_empty_pythonpath_entry(found: str, tmp_path: Path) -> None:
    folder = make_checkout(tmp_path, "")
    (folder / "mpi4py.py").write_text("raise SystemExit('executed')")
    path = found.format(ROOT)
    env = make_env({"HPCFWI_ROOT": str(folder), "PYTHONPATH": path, "PYTHONSAFEPATH": "1"})
    done = subprocess.run(
        ["bash", "-c", ENVIRONMENT],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    expected = ":".join(filter(None, path.split(":")))
    assert (done.stdout, "executed" in done.stderr) == (f"[{expected}]", False)
