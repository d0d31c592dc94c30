"""Run an inversion three times on this GPU: twice on one rank, and once on two ranks that share it.

    python benchmarks/job.py inputs/marmousi.toml --output results

The program exits with 1 if the three models do not have the same bits. The JSON file has the hashes
of the models, and the seconds of each command and of its epochs. Without a GPU the inversions run
on CPUs, for a trial.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import h5py
import torch

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Job:
    """An inversion: the seconds of the command and of an epoch (median), and the model's hash."""

    name: str
    ranks: int
    seconds: float
    epoch: float
    bits: str


def run_job(name: str, ranks: int, config: Path, settings: list[str], folder: Path) -> Job:
    """Run an inversion; if it fails, exit with its exit status."""
    device = "cpu" if not torch.cuda.is_available() else "shared-gpu" if ranks > 1 else "auto"
    launcher = shlex.split(os.environ.get("MPIRUN", "mpirun")) if ranks > 1 else []
    words = [*launcher, *(["-n", str(ranks)] if launcher else []), sys.executable, "-m", "hpcfwi"]
    words += ["run", str(config), "--device", device, "--output", str(folder / name), *settings]
    print(shlex.join(words), flush=True)
    begin = time.perf_counter()
    if code := subprocess.run(words, check=False).returncode:
        raise SystemExit(code)
    seconds = time.perf_counter() - begin
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    epochs = [entry["seconds"] for entry in map(json.loads, lines)]
    with h5py.File(folder / name / "model.h5") as file:
        bits = hashlib.sha256(file["vp"][:].tobytes()).hexdigest()
    return Job(name, ranks, seconds, statistics.median(epochs), bits)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    settings = [word for value in arguments.set for word in ("--set", value)]
    now = datetime.now(UTC)
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    runs = Path("runs") / f"job-{now:%Y%m%dT%H%M%S}"
    jobs = [
        run_job(name, ranks, arguments.config, settings, runs)
        for name, ranks in (("alone", 1), ("again", 1), ("shared", 2))
    ]
    alike = len({job.bits for job in jobs}) == 1
    numbers = {
        "card": card,
        "date": now.isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "config": str(arguments.config),
        "settings": arguments.set,
        "alike": alike,
        "jobs": [asdict(job) for job in jobs],
    }
    arguments.output.mkdir(parents=True, exist_ok=True)
    place = re.sub(r"\W+", "_", card).lower()
    file = arguments.output / f"job_{place}_{now:%Y-%m-%d}.json"
    file.write_text(json.dumps(numbers, indent=2) + os.linesep)
    for job in jobs:
        print(f"{job.name}: {job.seconds:.1f} s, {job.epoch:.3f} s an epoch, {job.bits[:16]}")
    print(f"the bits are {'the same' if alike else 'NOT the same'}; written to {file}")
    raise SystemExit(not alike)


if __name__ == "__main__":
    main()
