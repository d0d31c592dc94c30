"""Blows at random moments against a small inversion: python -m tests.torture [BLOWS [SEED]].

It has stages, with encoded shots, wavelets that are estimated, and searches along lines. Again and
again it is started on a random number of ranks, with a random schedule, and then one of its ranks
or its launcher is killed or sent a signal. Whenever it comes to its end it must have found the bits
of a run that nobody has disturbed, and it begins anew. Prints a line for each blow, and ends with 1
where bits differ or a job hangs.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import h5py

from hpcfwi.report.page import read_metrics
from tests.inversion.examples import write_input
from tests.ranks import make_env
from tests.run.test_stages import STAGES

# Of the stages, the last of which searches along lines
EPOCHS = (12, 20, 8)
MOST_RANKS = 4
# s: from the moment from which a blow may fall to the last at which it does, and to a job's end,
# which has loops to compile where it begins, beside others on a busy machine.
LATEST, END = 1.5, 240.0
# Codes of a job that has crashed, which no blow explains: of a rank, as its launcher tells it.
CRASHES = (128 + signal.SIGABRT, 128 + signal.SIGSEGV, 128 + signal.SIGBUS)
BLOWS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Torture:
    """A folder with an input, the digest that its inversion must have, and a source of chance.

    python: the words that start each rank's.
    """

    def __init__(self, folder: Path, seed: int, python: Sequence[str]) -> None:
        self._chance = random.Random(seed)
        self._python = python
        stages = [
            {**stage, "inversion": {**stage["inversion"], "epochs": epochs}}
            for stage, epochs in zip(STAGES, EPOCHS, strict=True)
        ]
        changes = {"stage": stages, "output.every": 20, "output.checkpoint": 3}
        self._input = write_input(folder, changes)
        self._run = folder / "run"
        self.ends: Counter[int] = Counter()
        undisturbed = folder / "undisturbed"
        if self._finish(self._start(1, undisturbed)) != 0:
            raise RuntimeError("the undisturbed run has failed")
        self._digest = digest_of(undisturbed)

    def strike(self) -> str:
        """Start the inversion, or go on with it, and let one blow fall; says what happened."""
        ranks = self._chance.randint(1, MOST_RANKS)
        job = self._start(ranks, self._run)
        if self._chance.random() < 0.7:
            self._wait_for_an_epoch(job)
        time.sleep(self._chance.uniform(0.0, LATEST))
        blow = self._chance.choice(BLOWS)
        victim = self._chance.choice([job.pid, *children_of(job.pid)])
        with suppress(ProcessLookupError):
            os.kill(victim, blow)
        code = self._finish(job)
        self.ends[code] += 1
        whom = "launcher" if victim == job.pid else "a rank"
        said = f"{ranks} ranks, {blow.name} to {whom}: {code}, {self.epochs()} epochs done"
        if code in CRASHES:
            said += f", a crash. The jobs have said:\n{last_words(self._input.parent)}"
        if code == 0:
            self.compare()
            shutil.rmtree(self._run)
        return said

    def conclude(self) -> None:
        """Let the inversion come to its end, and look at what it has found."""
        code = self._finish(self._start(2, self._run))
        if code != 0:
            raise RuntimeError(f"left alone it ended with {code}")
        self.compare()

    def compare(self) -> None:
        """Raise RuntimeError unless the result is that of the undisturbed run."""
        epochs = [entry["epoch"] for entry in read_metrics(self._run / "metrics.jsonl")]
        if epochs != list(range(1, sum(EPOCHS) + 1)):
            raise RuntimeError(f"the metrics have the epochs {epochs}")
        if digest_of(self._run) != self._digest:
            raise RuntimeError("the model has other bits than that of the undisturbed run")

    def epochs(self) -> int:
        return len(read_metrics(self._run / "metrics.jsonl"))

    def _start(self, ranks: int, run: Path) -> subprocess.Popen[bytes]:
        schedule = self._chance.choice(["static", "dynamic"])
        command = ["mpirun", "--bind-to", "none", "--oversubscribe", "-n", str(ranks)]
        command += [*self._python, "-m", "hpcfwi", "run", str(self._input), "--quiet"]
        command += ["--output", str(run), "--set", f"inversion.schedule={schedule}"]
        with (self._input.parent / "output.txt").open("ab") as output:
            return subprocess.Popen(command, env=make_env(), stdout=output, stderr=output)

    def _wait_for_an_epoch(self, job: subprocess.Popen[bytes]) -> None:
        before = self.epochs()
        while job.poll() is None and self.epochs() <= before:
            time.sleep(0.02)

    def _finish(self, job: subprocess.Popen[bytes]) -> int:
        try:
            return job.wait(END)
        except subprocess.TimeoutExpired:
            job.kill()
            raise RuntimeError(f"the job has not ended {END:.0f} s after the blow") from None


def children_of(parent: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = entry.read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                found.append(int(entry.parent.name))
    return found


def last_words(folder: Path) -> str:
    """The end of what the jobs have said."""
    return (folder / "output.txt").read_text(errors="replace")[-4000:]


def digest_of(run: Path) -> str:
    """The SHA-256 of the bytes of a run's model."""
    with h5py.File(run / "model.h5") as file:
        return hashlib.sha256(file["vp"][...].tobytes()).hexdigest()


def main(
    blows: int = 200, seed: int | None = None, python: Sequence[str] = (sys.executable,)
) -> int:
    """Let so many blows fall; 0 if the inversion has survived them."""
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    print(f"{blows} blows, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            torture = Torture(Path(folder), seed, python)
            for number in range(1, blows + 1):
                print(f"{number}/{blows}  {torture.strike()}", flush=True)
            torture.conclude()
        except RuntimeError as failure:
            print(f"Failed: {failure}. The jobs have said:", flush=True)
            print(last_words(Path(folder)), flush=True)
            return 1
    codes = ", ".join(f"{code}: {count}" for code, count in sorted(torture.ends.items()))
    print(f"The bits of the undisturbed run, after {blows} blows (exit codes {codes}).")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
