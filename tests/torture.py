"""Kills and signals ("blows") at random moments: python -m tests.torture [BLOWS [SEED]].

The inversion has stages with encoded shots, estimated wavelets and line searches. Repeatedly, it is
started on a random number of ranks, with a random schedule and one or two ranks for each shot, and
then one of its ranks or its launcher is killed or gets a signal. When it is complete, it must have
the bits of an undisturbed run, and it begins again. The program prints a line for each blow, and
ends with 1 if bits differ or a job hangs.
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

from hpcfwi.report.text import read_metrics
from tests.inversion.examples import write_input
from tests.ranks import make_env
from tests.run.test_stages import STAGES

# Epochs of the stages; the last stage has line searches
EPOCHS = (12, 20, 8)
MOST_RANKS = 4
# s: the latest moment of a blow, and the longest time until a job ends, which may have to compile
# its loops on a busy machine.
LATEST, END = 1.5, 240.0
# Exit codes of a launcher with a crashed rank, which no blow explains
CRASHES = (128 + signal.SIGABRT, 128 + signal.SIGSEGV, 128 + signal.SIGBUS)
HPCFWI = (sys.executable, "-m", "hpcfwi")
BLOWS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Torture:
    """An inversion, the digest that it must have, and a random generator.

    program: the command that starts `hpcfwi` on each rank.
    """

    def __init__(self, folder: Path, seed: int, program: Sequence[str]) -> None:
        self._chance = random.Random(seed)
        self._program = program
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
        """Start or continue the inversion, apply one blow, and return a description."""
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
        """Run the inversion to its end and compare its result."""
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
        command += [*self._program, "run", str(self._input), "--quiet"]
        command += ["--output", str(run), "--set", f"inversion.schedule={schedule}"]
        size = self._chance.choice([n for n in (1, 2) if ranks % n == 0])
        command += ["--set", f"wave.ranks_per_shot={size}"]
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
    """Return the child processes of a process."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = entry.read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                found.append(int(entry.parent.name))
    return found


def last_words(folder: Path) -> str:
    """Return the end of the output of the jobs."""
    return (folder / "output.txt").read_text(errors="replace")[-4000:]


def digest_of(run: Path) -> str:
    """Return the SHA-256 of the bytes of a run's model."""
    with h5py.File(run / "model.h5") as file:
        return hashlib.sha256(file["vp"][...].tobytes()).hexdigest()


def main(blows: int = 200, seed: int | None = None, program: Sequence[str] = HPCFWI) -> int:
    """Apply a number of blows; return 0 if the inversion has survived them."""
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    print(f"{blows} blows, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            torture = Torture(Path(folder), seed, program)
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
