"""A fuzzer that changes bytes of good files at random and runs the program on them.

`python -m tests.fuzz.mutate --count 10000 --seed 1` tries 10000 files. It counts those that are
accepted and those that are refused with exit code 2. It reports how each other one failed: by a
signal, a traceback, another exit code, more than 20 s, or more than 1 GB. Each program runs in a
fork of this process, which has imported all modules. Time in which other programs had the processor
does not count. `--keep DIRECTORY` keeps the files that failed.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import random
import re
import resource
import select
import shutil
import signal
import struct
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import h5py
import numpy as np
import typer

from hpcfwi.parallel.context import Context
from hpcfwi.run import drawing
from hpcfwi.storage import checkpoint, probe
from hpcfwi.storage.gathers import GatherReader
from tests.fuzz.commands import ACCEPTED, REFUSED, call, check_only, message_of
from tests.inversion.bad_inputs import FILE_INSTEAD, write_given
from tests.inversion.examples import write_input
from tests.undrawn import DRAWING

SECONDS, MEMORY = 20.0, 10**9
GOOD = ("right", "exit 2")
# How often each kind is tried in turn, by default once; half of the files are models and gathers
SHARES = {"model": 3, "packed model": 3, "gathers": 3, "packed gathers": 3}
SHARES |= {"toml": 5, "checkpoint": 5}
INTEGERS = [0, 1, 2, 127, 255, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
VALUES = [
    b"0",
    b"-1",
    b"3",
    b"1e308",
    b"1e-300",
    b"nan",
    b"-inf",
    b"9223372036854775807",
    b"1000000",
]
VALUES += [b"[]", b"{}", b"[1e9, 1e9]", b"true", b'""', b'"/"', b'"\\u0000"', b"1979-05-27"]


@dataclass(frozen=True)
class Case:
    """A kind of file, its damage, and the program that reads it; `run` returns an exit code."""

    file: str
    run: Callable[[Path], int]
    damage: Callable[[random.Random, bytes], bytes]


@dataclass(frozen=True)
class Attempt:
    """The outcome of a program, "right", "exit 2" or how it failed; its time (s) and memory."""

    became: str
    seconds: float
    memory: int


def change_bytes(chance: random.Random, good: bytes) -> bytes:
    """Replace, copy or cut off a few bytes."""
    content = bytearray(good)
    for _ in range(chance.choice([1, 1, 1, 2, 4, 16])):
        at = chance.randrange(len(content))
        match chance.randrange(6):
            case 0 | 1:
                content[at] = chance.randrange(256)
            case 2:
                content[at] ^= 1 << chance.randrange(8)
            case 3:
                form = chance.choice(["<H", "<I", "<Q"])
                number = chance.choice(INTEGERS) % 256 ** struct.calcsize(form)
                new = struct.pack(form, number)
                content[at : at + len(new)] = new
            case 4:
                source, length = chance.randrange(len(content)), chance.choice([2, 8, 64])
                content[at : at + length] = content[source : source + length]
            case 5:
                if chance.random() < 0.05:
                    del content[at + 1 :]
    return bytes(content)


def change_checkpoint(chance: random.Random, good: bytes) -> bytes:
    """Change the body of a checkpoint and adapt its checksums."""
    header = checkpoint._HEADER
    begin = header.size + checkpoint._DIGEST_SIZE
    magic, version, _, epoch = header.unpack(good[: header.size])
    # The pickle is at the beginning; most other bytes are values
    first, rest = good[begin : begin + 4096], good[begin + 4096 :]
    body = (
        change_bytes(chance, first) + rest
        if chance.random() < 0.7
        else change_bytes(chance, first + rest)
    )
    begins = header.pack(magic, version, hashlib.sha256(body).digest(), epoch)
    return begins + hashlib.sha256(begins).digest() + body


def change_text(chance: random.Random, good: bytes) -> bytes:
    """Change bytes or a value, or repeat some bytes, which can nest deeply."""
    how = chance.random()
    if how < 0.4:
        return change_bytes(chance, good)
    if how < 0.7:
        found = chance.choice([*re.finditer(rb'"[^"]*"|[\d.]+', good)])
        return good[: found.start()] + chance.choice(VALUES) + good[found.end() :]
    at = chance.randrange(len(good))
    piece = chance.choice(
        [b"[", b"{", b"{a=", b"a.", b"'''", b'"', b"\n[a.b]\n", b"[[a]]\n", b"a=1\n"]
    )
    times = chance.choice([2, 100, 10_000, 200_000])
    return good[:at] + piece * times + good[at:]


def read_input(folder: Path) -> int:
    """Run the program until it would compute, then read all traces."""
    end = check_only("run", folder / "input.toml")
    if end.code == ACCEPTED and (folder / "given.h5").exists():
        with GatherReader(folder / "given.h5", Context.alone()) as reader:
            reader.read(np.arange(reader.survey.n_shots))
    elif end.code != ACCEPTED:
        message_of(end)
    return 0 if end.code == ACCEPTED else end.code


def continue_run(folder: Path) -> int:
    return _finish("run", folder / "input.toml", "--quiet")


def show(folder: Path) -> int:
    return _finish("show", folder / "run", "--quiet")


def _finish(*arguments: object) -> int:
    end = call(*arguments)
    if end.code == REFUSED:
        message_of(end)
    elif end.code != 0:
        raise AssertionError(end.errors)
    return end.code


def compress(path: Path) -> None:
    """Rewrite all arrays of a file in compressed chunks."""
    with h5py.File(path, "r+") as file:
        for name in [*file]:
            values = file[name][...]
            del file[name]
            chunks = tuple(max(1, n // 2) for n in values.shape)
            file.create_dataset(name, data=values, chunks=chunks, compression="gzip", shuffle=True)


def make_cases(folder: Path) -> dict[str, tuple[Case, Path]]:
    """Return each case with its folder of good files, which is made below `folder`."""
    made: dict[str, tuple[Case, Path]] = {}
    small = {"wave.engine": "eager", "inversion.epochs": 2, "output.checkpoint": 1}
    small |= {"inversion.batch": 1, "survey.sources.count": 2, "output.every": 1}
    small |= {"survey.duration": 0.4}
    for name, packed in (("model", False), ("packed model", True)):
        write_input(folder / name)
        if packed:
            compress(folder / name / "true.h5")
        made[name] = Case("true.h5", read_input, change_bytes), folder / name
    for name, packed in (("gathers", False), ("packed gathers", True)):
        write_input(folder / name, FILE_INSTEAD)
        write_given(folder / name)
        if packed:
            compress(folder / name / "given.h5")
        made[name] = Case("given.h5", read_input, change_bytes), folder / name
    write_input(folder / "toml")
    made["toml"] = Case("input.toml", read_input, change_text), folder / "toml"
    # The run is made in the folder of the damaged files, since its config has absolute paths
    scratch, done = folder / "scratch", folder / "done"
    write_input(scratch, {**small, "output.directory": "run"})
    os.chdir(scratch)
    assert call("run", scratch / "input.toml", "--quiet").code == 0
    os.chdir(folder)
    scratch.rename(done)
    for name, file, run, damage in (
        ("checkpoint", "checkpoints/epoch_000001.ckpt", continue_run, change_checkpoint),
        ("epoch", "epochs/epoch_0001.h5", show, change_bytes),
        ("fit", "epochs/stage_1.h5", show, change_bytes),
        ("metrics", "metrics.jsonl", show, change_bytes),
        ("run's config", "config.toml", show, change_text),
        ("run's model", "initial.h5", show, change_bytes),
    ):
        made[name] = Case(f"run/{file}", run, damage), done
    return made


@contextmanager
def without_slow_parts() -> Iterator[None]:
    """Skip figures and create the commands once, which would take most of the time."""
    with (
        mock.patch.object(typer.main, "get_command", cache(typer.main.get_command)),
        mock.patch.multiple(drawing, **dict.fromkeys(DRAWING, mock.DEFAULT)),
    ):
        yield


def waits_for_processor(process: int, helper: int | None = None) -> float:
    """Return the time (s) that a program or a child of the helper has waited for a processor."""
    there = [process]
    if helper is not None:
        there += map(int, Path(f"/proc/{helper}/task/{helper}/children").read_text().split())
    waited = 0
    for one in there:
        with suppress(OSError):  # the process has just ended
            waited += int(Path(f"/proc/{one}/schedstat").read_text().split()[1])
    return waited / 1e9


def attempt(run: Callable[[Path], int], folder: Path) -> Attempt:
    """Run a program in a fork with limits of time and memory."""
    helper = probe._find_helper()
    said = folder / "said"
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        code = 1
        with suppress(BaseException):
            # The helper is not a child of this process, which therefore cannot poll it
            helper.poll = lambda: None
            probe._helper = os.getpid(), helper
            output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = pages * resource.getpagesize() + MEMORY
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            try:
                os.chdir(folder)
                code = run(folder)
            except BaseException as error:
                os.write(2, f"{type(error).__name__}: {error}".encode(errors="replace"))
                code = 1
        os._exit(code)
    late, waited, end = False, 0.0, os.pidfd_open(child)
    while not select.select([end], [], [], 0.5)[0]:
        waited = max(waited, waits_for_processor(child, helper.pid))
        if time.monotonic() - begin - waited > SECONDS:
            late = True
            os.kill(child, signal.SIGKILL)
    seconds = time.monotonic() - begin - max(waited, waits_for_processor(child))
    os.close(end)
    _, status, usage = os.wait4(child, 0)
    memory = usage.ru_maxrss * 1024
    code = os.waitstatus_to_exitcode(status)
    if late:
        became = f"more than {SECONDS:g} s"
    elif code < 0:
        became = signal.Signals(-code).name
    elif memory > MEMORY:
        became = f"more than {MEMORY / 1e9:g} GB"
    elif code in (0, REFUSED):
        became = GOOD[(0, REFUSED).index(code)]
    else:
        became = f"exit {code}: {said.read_text(errors='replace')[-1000:]}"
    return Attempt(became, seconds, memory)


def attempts(
    count: int, seed: int, folder: Path, kinds: list[str] | None = None, keep: Path | None = None
) -> Iterator[tuple[str, Attempt]]:
    """Yield the kind of each damaged file and the outcome of its program."""
    cases = make_cases(folder)
    names = [n for n in cases if not kinds or n in kinds for _ in range(SHARES.get(n, 1))]
    scratch = folder / "scratch"
    # Import once what the forks need
    for name in {*names}:
        case, good = cases[name]
        shutil.copytree(good, scratch)
        os.chdir(scratch)
        assert case.run(scratch) == 0, case.file
        os.chdir(folder)
        shutil.rmtree(scratch)
    gc.freeze()
    for number in range(count):
        name = names[number % len(names)]
        case, good = cases[name]
        chance = random.Random(f"{seed} {number}")
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(good, scratch)
        content = case.damage(chance, (good / case.file).read_bytes())
        (scratch / case.file).write_bytes(content)
        if name == "checkpoint":
            for later in (scratch / case.file).parent.glob("epoch_*.ckpt"):
                if later.name != Path(case.file).name:
                    later.unlink()
        found = attempt(case.run, scratch)
        if found.became not in GOOD and keep is not None:
            shutil.copytree(scratch, keep / f"{name} {seed} {number}", dirs_exist_ok=True)
        yield name, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--kind", action="append", help="only these kinds of files")
    options = parser.parse_args()
    kept = options.keep and options.keep.resolve()
    total: dict[tuple[str, str], list[Attempt]] = defaultdict(list)
    with TemporaryDirectory(prefix="hpcfwi-mutate-") as name, without_slow_parts():
        for kind, found in attempts(options.count, options.seed, Path(name), options.kind, kept):
            total[kind, found.became.partition(":")[0]].append(found)
            if found.became not in GOOD:
                print(f"{kind}: {found.became}", flush=True)
        os.chdir("/")
    for (kind, became), alike in sorted(total.items()):
        seconds, memory = max(f.seconds for f in alike), max(f.memory for f in alike)
        print(f"{kind:16} {became:16} {len(alike):5}, up to {seconds:.1f} s, {memory / 1e9:.2f} GB")
    failed = sum(len(alike) for (_, became), alike in total.items() if became not in GOOD)
    probe._end_helper()
    # The maximum over all programs and children of the helper
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(f"{options.count} files, {failed} failures, up to {most / 1e9:.2f} GB with the helper")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
