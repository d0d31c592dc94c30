"""A Slurm cluster of one node, made of ordinary processes, for the duration of the tests.

munged, slurmctld and slurmd run from a temporary folder of pytest on free ports. They read nothing
from /etc and leave no files. The node claims four GPUs, which are copies of /dev/null, and more
cores than the machine has, as the job scripts request them. A requeued job starts again after its
old credential has expired: here after 5 s, the least value of Slurm. Workers of pytest have their
clusters at the same time. The jobs of these have different numbers, because Open MPI names the
memory that ranks share after the number of the job.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ranks import ROOT

DAEMONS = ("munged", "slurmctld", "slurmd")
GPUS, CORES = 4, 64
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}
NULL_DEVICE = os.makedev(1, 3)

# The job scripts, and the options of sbatch with which they fit into the cluster
ONE_NODE = {
    "marmousi_4gpu.sh": (),
    "marmousi_nodes.sh": ("--nodes=1",),
    "marmousi_cpu.sh": ("--nodes=1",),
}

SLURM_CONF = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
FirstJobId={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
PlugStackConfig=/dev/null
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 Port={node_port} CPUs={cores} Gres=gpu:{gpus}
PartitionName=tests Nodes=ALL Default=YES DefaultTime=5 MaxTime=INFINITE State=UP
"""


def make_checkout(folder: Path, program: str) -> Path:
    """Make a checkout for submitting jobs, in which `hpcfwi` is a Bash program."""
    commands = folder / ".venv" / "bin"
    commands.mkdir(parents=True)
    shutil.copytree(ROOT / "slurm", folder / "slurm")
    (folder / "hpcfwi").mkdir()  # the package has the name of the command
    for name, body in {"python": f'exec {sys.executable} "$@"', "hpcfwi": program}.items():
        (commands / name).write_text(f"#!/bin/bash\n{body}\n")
        (commands / name).chmod(0o755)
    return folder


def use_launcher(folder: Path, name: str) -> None:
    """Let a checkout start ranks by the first example with this launcher in environment.sh."""
    script = folder / "slurm" / "environment.sh"
    text = script.read_text()
    examples = re.findall(r"^#? ?launch=\(.*\n(?:.+\n)*", text, re.MULTILINE)
    example = next(example for example in examples if re.search(rf"\b{name} ", example))
    script.write_text(text + re.sub("^# ", "", example, flags=re.MULTILINE))


@dataclass(frozen=True)
class Job:
    """The outcome of a batch job."""

    state: str
    exit_code: int
    restarts: int
    log: str


@dataclass(frozen=True)
class Cluster:
    """The commands of Slurm for the cluster in `folder`."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """The environment of commands and jobs, without variables of an outer job.

        OMP_NUM_THREADS is removed, since jobs count their threads themselves.
        """
        outer = {
            name: value
            for name, value in os.environ.items()
            if "SLURM" not in name and name != "OMP_NUM_THREADS"
        }
        return outer | {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def call(
        self, *command: str | Path, cwd: Path = ROOT, timeout: float = 150.0, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run one command and return what it printed."""
        done = subprocess.run(
            [str(word) for word in command],
            cwd=cwd,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done

    def submit(self, *command: str | Path, cwd: Path = ROOT) -> int:
        """Run `sbatch` with these arguments in the folder `cwd`; return the number of the job."""
        log = f"--output={self.folder}/%j.log"
        return int(self.call("sbatch", "--parsable", log, *command, cwd=cwd).stdout)

    def log(self, job: int) -> str:
        """Return the output of the job so far, including that of earlier tries."""
        path = self.folder / f"{job}.log"
        return path.read_text() if path.exists() else ""

    def describe(self, job: int) -> dict[str, str]:
        """Return Slurm's record of a job: JobState, ExitCode, Restarts, ..."""
        record = self.call("scontrol", "show", "job", "--oneliner", str(job)).stdout
        return dict(word.split("=", 1) for word in record.split() if "=" in word)

    def wait(self, job: int, timeout: float = 180.0) -> Job:
        """Wait until the job has ended and is not requeued.

        On a busy machine, a requeued job that starts torchrun again needs more than a minute.
        """
        for _ in seconds(timeout, lambda: f"job {job} did not end: {self.log(job)}"):
            record = self.describe(job)
            if record["JobState"] in ENDED:
                code = int(record["ExitCode"].split(":")[0])
                return Job(record["JobState"], code, int(record["Restarts"]), self.log(job))
        raise AssertionError  # `seconds` never ends by itself

    def clear(self) -> None:
        """Cancel the jobs of failed tests, since their processes outlive the daemons."""
        self.call("scancel", "--user=root", check=False)
        for _ in seconds(20.0, lambda: "a job would not end"):
            if not self.call("squeue", "--noheader").stdout:
                break

    def wait_for_line(self, job: int, text: str, timeout: float = 30.0) -> None:
        """Wait until the job has printed this text."""
        for _ in seconds(timeout, lambda: f"job {job} never said {text!r}: {self.log(job)}"):
            if text in self.log(job):
                return


def seconds(timeout: float, complaint: Callable[[], str], pause: float = 0.1) -> Iterator[None]:
    """Yield every `pause` seconds; fail with `complaint()` after `timeout` seconds."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        yield
        time.sleep(pause)
    pytest.fail(complaint())


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def start(stack: ExitStack, folder: Path, *command: str | Path) -> None:
    """Start a daemon in the foreground, as a child of this process, until the stack is closed."""
    name = Path(command[0]).name
    log = stack.enter_context((folder / f"{name}.log").open("w"))
    daemon = subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=Cluster(folder).environment,
        start_new_session=True,
    )
    stack.callback(stop, daemon)


def stop(daemon: subprocess.Popen[bytes]) -> None:
    daemon.send_signal(signal.SIGTERM)
    try:
        daemon.wait(timeout=10)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def bring_up(stack: ExitStack, folder: Path) -> Cluster:
    """Write the configuration, start the daemons, and wait until the node accepts jobs."""
    for name in ("munge", "state", "spool", "devices", "pmix"):
        (folder / name).mkdir()
    folder.chmod(0o755)  # munged refuses a socket in a folder that others cannot enter
    (folder / "munge").chmod(0o755)
    key = folder / "munge" / "key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(1024))

    for number in range(GPUS):
        os.mknod(folder / "devices" / f"gpu{number}", 0o020666, NULL_DEVICE)
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/devices/gpu[0-{GPUS - 1}]\n")
    # The default is in /tmp, where jobs of another cluster have the same names
    (folder / "mpi.conf").write_text(f"PMIxCliTmpDirBase={folder}/pmix\n")
    (folder / "slurm.conf").write_text(
        SLURM_CONF.format(
            folder=folder,
            host=socket.gethostname().split(".")[0],
            controller_port=free_port(),
            node_port=free_port(),
            cores=CORES,
            gpus=GPUS,
        )
    )

    munge = {
        "socket": "socket",
        "key-file": "key",
        "pid-file": "pid",
        "seed-file": "seed",
        "log-file": "log",
    }
    paths = [f"--{option}={folder / 'munge' / name}" for option, name in munge.items()]
    start(stack, folder, "munged", "--foreground", "--force", *paths)
    start(stack, folder, "slurmctld", "-D", "-c", "-f", folder / "slurm.conf")
    start(stack, folder, "slurmd", "-D", "-f", folder / "slurm.conf")

    cluster = Cluster(folder)

    def complaint() -> str:
        logs = "".join(path.read_text()[-2000:] for path in folder.glob("*.log"))
        return f"the cluster did not come up:\n{logs}"

    for _ in seconds(30.0, complaint):
        if cluster.call("sinfo", "-h", "-o", "%t", check=False).stdout.strip() == "idle":
            break
    return cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running cluster; the tests are skipped if it cannot be started."""
    missing = [name for name in DAEMONS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: Slurm's daemons are needed for this test")
    if os.geteuid() != 0:
        pytest.skip("not root: only root can bring up Slurm's daemons for this test")
    with ExitStack() as stack:
        cluster = bring_up(stack, tmp_path_factory.mktemp("slurm"))
        stack.callback(cluster.clear)
        yield cluster
