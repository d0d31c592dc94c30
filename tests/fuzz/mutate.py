"""Bytes of good files are changed at random, and the program is run on what comes of it.

`python -m tests.fuzz.mutate --count 10000 --seed 1` tries so many files, and says how many were
taken as right, how many were refused with exit code 2, how many ended with 1 and a reason, and how
each other one failed: by a signal, a traceback, more than 20 s, or more than 1 GB. Each program
runs in a fork of this process, in which everything is imported already. `--keep DIRECTORY` keeps
the files that failed.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import random
import resource
import shutil
import signal
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import h5py
import numpy as np

from hpcfwi.parallel.context import Context
from hpcfwi.run import fits, records
from hpcfwi.storage import checkpoint, probe
from hpcfwi.storage.gathers import GatherReader
from tests.fuzz.commands import ACCEPTED, REFUSED, call, check_only, message_of
from tests.inversion.bad_inputs import FILE_INSTEAD, write_given
from tests.inversion.examples import write_input

SECONDS, MEMORY = 20.0, 10**9
# Exit code 1 with one line that says why, as where a step has led to no model
STOPPED = 99
GOOD = ("right", "exit 2", "exit 1, told")
INTEGERS = [0, 1, 2, 127, 255, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]


@dataclass(frozen=True)
class Case:
    """A kind of file: which is damaged, how, and what is then run; `run` returns an exit code."""

    file: str
    run: Callable[[Path], int]
    damage: Callable[[random.Random, bytes], bytes]


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
    """Change the body of a checkpoint, and have its checksums agree."""
    header, epoch = checkpoint._HEADER, checkpoint._EPOCH
    begin = header.size + epoch.size + checkpoint._DIGEST_SIZE
    magic, version, score, _ = header.unpack(good[: header.size])
    # The pickle is at the beginning; most of the rest are values
    first, rest = good[begin : begin + 4096], good[begin + 4096 :]
    body = (
        change_bytes(chance, first) + rest
        if chance.random() < 0.7
        else change_bytes(chance, first + rest)
    )
    number = good[header.size : header.size + epoch.size]
    begins = header.pack(magic, version, score, hashlib.sha256(body).digest()) + number
    return begins + hashlib.sha256(begins).digest() + body


def change_text(chance: random.Random, good: bytes) -> bytes:
    """Change bytes, or repeat some so often that they nest."""
    if chance.random() < 0.7:
        return change_bytes(chance, good)
    at = chance.randrange(len(good))
    piece = chance.choice(
        [b"[", b"{", b"{a=", b"a.", b"'''", b'"', b"\n[a.b]\n", b"[[a]]\n", b"a=1\n"]
    )
    times = chance.choice([2, 100, 10_000, 200_000])
    return good[:at] + piece * times + good[at:]


def read_input(folder: Path) -> int:
    """The program, up to where it would begin to compute; then all traces are read."""
    end = check_only("run", folder / "input.toml")
    if end.code == ACCEPTED and (folder / "given.h5").exists():
        with (
            mock.patch.object(sys, "stderr"),
            GatherReader(folder / "given.h5", Context.alone()) as reader,
        ):
            reader.read(np.arange(reader.survey.n_shots))
    elif end.code != ACCEPTED:
        message_of(end)
    return 0 if end.code == ACCEPTED else end.code


def go_on(folder: Path) -> int:
    return _finish("run", folder / "input.toml", "--quiet")


def show(folder: Path) -> int:
    return _finish("show", folder / "run", "--quiet")


def _finish(*arguments: object) -> int:
    end = call(*arguments)
    if end.code == REFUSED:
        message_of(end)
    elif "Traceback" in end.errors or end.errors.count("\n") > 1:
        raise AssertionError(end.errors)
    return STOPPED if end.code == 1 else end.code


def compress(path: Path) -> None:
    """Store all arrays of a file anew, in chunks and compressed."""
    with h5py.File(path, "r+") as file:
        for name in [*file]:
            values = file[name][...]
            del file[name]
            chunks = tuple(max(1, n // 2) for n in values.shape)
            file.create_dataset(name, data=values, chunks=chunks, compression="gzip", shuffle=True)


def make_cases(folder: Path) -> dict[str, tuple[Case, Path]]:
    """Each case with a folder of good files, which are made below `folder`."""
    made: dict[str, tuple[Case, Path]] = {}
    small = {"wave.engine": "eager", "inversion.epochs": 2, "output.checkpoint": 1}
    small |= {"inversion.batch": 1, "survey.sources.count": 2, "output.every": 1}
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
    # It is made where the damaged ones will be, whose names are in its config
    scratch, done = folder / "scratch", folder / "done"
    write_input(scratch, {**small, "output.directory": "run"})
    with undrawn():
        os.chdir(scratch)
        assert call("run", scratch / "input.toml", "--quiet").code == 0
        os.chdir(folder)
    scratch.rename(done)
    for name, file, run, damage in (
        ("checkpoint", "checkpoints/epoch_000001.ckpt", go_on, change_checkpoint),
        ("epoch", "epochs/epoch_0001.h5", show, change_bytes),
        ("fit", "epochs/stage_1.h5", show, change_bytes),
        ("metrics", "metrics.jsonl", show, change_bytes),
        ("run's config", "config.toml", show, change_text),
        ("run's model", "initial.h5", show, change_bytes),
    ):
        made[name] = Case(f"run/{file}", run, damage), done
    return made


@contextmanager
def undrawn() -> Iterator[None]:
    """Figures take longer than all the rest."""
    with (
        mock.patch.object(records, "draw_survey"),
        mock.patch.object(records, "draw_epoch_figures"),
        mock.patch.object(fits, "draw_fit"),
    ):
        yield


def attempt(run: Callable[[Path], int], folder: Path) -> str:
    """Run a program in a fork, within limits; "right", "exit 2", or how it failed."""
    helper = probe._find_helper()
    said = folder / "said"
    child = os.fork()
    if child == 0:
        code = 1
        with suppress(BaseException):
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
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.002)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return f"more than {SECONDS:g} s"
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return signal.Signals(-code).name
    if code == 0:
        return "right"
    if code in (REFUSED, STOPPED):
        return "exit 2" if code == REFUSED else "exit 1, told"
    return f"exit {code}: {said.read_text(errors='replace')[-400:]}"


def attempts(
    count: int, seed: int, folder: Path, kinds: list[str] | None = None, keep: Path | None = None
) -> Iterator[tuple[str, str]]:
    """The kind of each damaged file, and what became of it."""
    cases = make_cases(folder)
    names = [name for name in cases if not kinds or name in kinds]
    scratch = folder / "scratch"
    # What the forks need is imported here, once
    for case, good in cases.values():
        shutil.copytree(good, scratch)
        os.chdir(scratch)
        with undrawn():
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
        with undrawn():
            became = attempt(case.run, scratch)
        if became not in GOOD and keep is not None:
            shutil.copytree(scratch, keep / f"{name} {number}", dirs_exist_ok=True)
        yield name, became


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--kind", action="append", help="only these kinds of files")
    options = parser.parse_args()
    kept = options.keep and options.keep.resolve()
    total: Counter[tuple[str, str]] = Counter()
    with TemporaryDirectory(prefix="hpcfwi-mutate-") as name:
        for kind, became in attempts(options.count, options.seed, Path(name), options.kind, kept):
            total[kind, became.partition(":")[0]] += 1
            if became not in GOOD:
                print(f"{kind}: {became}", flush=True)
        os.chdir("/")
    for (kind, became), number in sorted(total.items()):
        print(f"{kind:16} {became:12} {number}")
    failed = sum(n for (_, became), n in total.items() if became not in GOOD)
    print(f"{options.count} files, {failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
