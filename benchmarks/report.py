"""Writes docs/performance.md, and the tables of docs/cluster.md, from the committed results.

`python benchmarks/report.py`.

Of each kind of result the newest file counts: `bench_*.json` (of `hpcfwi bench`), `engines_*.json`
(of `engines.py`), `scale_*.json` (of `scale.py`, in docs/cluster.md) and, where a graphics card was
measured, `gpu_*.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "performance.md"
CLUSTER = ROOT / "docs" / "cluster.md"
# Between these two lines of that page nothing is written by hand.
BEGIN, END = "<!-- Made by benchmarks/report.py: -->", "<!-- Until here. -->"

HEAD = """# Performance

Made by `benchmarks/report.py` from the numbers in `benchmarks/results`, which are what to change.
`hpcfwi bench` measures your machine in the same way. Times are medians over repetitions in which
everything that is compared is run in turn (A B A B), and ratios are medians of the ratios within a
turn, so that other work on the machine meets both sides. The load is what it had to do besides."""


def make_page(results: Path) -> str:
    """The whole page, from the newest result of each kind in a folder."""
    bench, engines, gpu = (newest(results, kind) for kind in ("bench", "engines", "gpu"))
    parts = [HEAD]
    if bench is not None:
        parts += _bench(bench)
    if engines is not None:
        parts += _engines(engines)
    parts += _gpu(gpu)
    return "\n\n".join(parts) + "\n"


def newest(results: Path, kind: str) -> dict[str, Any] | None:
    """The numbers of the newest file of a kind, by the date in it; None where there is none."""
    found = [json.loads(path.read_text()) for path in sorted(results.glob(f"{kind}_*.json"))]
    return max(
        found, key=lambda n: n["date"] if "date" in n else n["machine"]["date"], default=None
    )


def _bench(numbers: dict[str, Any]) -> Iterator[str]:
    case = numbers["case"]
    yield "## This machine, with `hpcfwi bench`"
    yield (
        f"{_machine(numbers)} {case['points'][0]} x {case['points'][1]} points and a boundary of "
        f"20, {case['steps']} steps, {case['shots']} shots, order 4, float32."
    )
    yield "### Engines"
    yield _table(
        ("engine", "case", "s", "million cell updates/s", "cpu is x times as fast"),
        [
            (
                r["engine"],
                r["case"],
                f"{r['seconds']:.3f}",
                f"{r['updates_per_second'] / 1e6:.0f}",
                f"{r['ratio']:.1f}",
            )
            for r in numbers["engines"]
        ],
    )
    yield "### Histories"
    yield (
        "What the backward pass of the `cpu` engine keeps of the forward one. Error: relative L2 "
        "difference from the exact gradient, that of `Snapshots(1)` in float32. Memory: what a "
        "forward and a backward pass of all shots add to the peak of a process of their own."
    )
    yield _table(
        ("history", "error", "memory, MB", "s"),
        [
            (
                r["history"],
                f"{r['error']:.1e}" if r["error"] else "0",
                f"{r['bytes'] / 1e6:.0f}",
                f"{r['seconds']:.3f}",
            )
            for r in numbers["histories"]
        ],
    )
    yield "### Ranks"
    if numbers["ranks"]:
        yield (
            f"The same {numbers['ranks'][0]['shots']} shots on each number of ranks, one thread "
            "a rank, gradients added; efficiency against one rank."
        )
        yield _table(
            ("ranks", "s an epoch", "efficiency"),
            [
                (r["ranks"], f"{r['seconds']:.3f}", f"{100 * r['efficiency']:.0f} %")
                for r in numbers["ranks"]
            ],
        )
    else:
        yield "Not measured: this machine had no mpirun that works."
    yield "### Cost of a gradient"
    yield (
        "The engine computes only where the wave may be "
        "([decision 012](decisions/012-windows.md)): longer records cost more than in proportion "
        "until the wave has filled the grid, larger grids less."
    )
    yield _table(
        ("case", "s", "times the first", "times its cells, steps and shots"),
        [
            (r["case"], f"{r['seconds']:.3f}", f"{r['ratio']:.1f}", f"{r['growth']:.1f}")
            for r in numbers["growth"]
        ],
    )
    reading, checkpoints = numbers["reading"], numbers["checkpoints"]
    yield "### Files"
    yield (
        f"Observed data are read at {reading['gathers_bytes_per_second'] / 1e6:.0f} MB/s, "
        f"{reading['ratio']:.2f} times the rate of a plain file "
        f"({reading['plain_bytes_per_second'] / 1e6:.0f} MB/s), both from the system's cache. A "
        f"checkpoint of {checkpoints['cells'] / 1e6:g} million cells with Adam "
        f"({checkpoints['bytes'] / 1e6:.0f} MB) is written, flushed to the disk, in "
        f"{checkpoints['write']:.2f} s and read in {checkpoints['read']:.2f} s."
    )


def _engines(numbers: dict[str, Any]) -> Iterator[str]:
    ours, theirs = (numbers["peaks"][name] / 1e6 for name in ("ours", "theirs"))
    yield "## Against Deepwave"
    yield (
        f"{_machine(numbers)} Float32, boundaries included in the points; Deepwave "
        f"{numbers['machine']['deepwave']}. The memory that the first gradient adds to the peak of "
        "a process of its own, at the same interval (samples in float16, Deepwave's in float32): "
        f"{ours:.0f} MB, Deepwave {theirs:.0f} MB. By `benchmarks/engines.py`."
    )
    yield _table(
        ("points", "shots", "steps", "order", "case", "hpcfwi, s", "Deepwave, s", "ratio"),
        [
            (
                _short(t["size"]["points"]),
                *(t["size"][key] for key in ("shots", "steps", "order")),
                t["case"],
                f"{t['ours']:.2f}",
                f"{t['theirs']:.2f}",
                f"{t['ratio']:.1f}",
            )
            for t in numbers["timings"]
        ],
    )


def _gpu(numbers: dict[str, Any] | None) -> Iterator[str]:
    yield "## Graphics cards"
    if numbers is None:
        yield "No card has been measured yet. [How to measure one](gpu.md), and what to send back."
        return
    yield (
        f"{numbers['card']}, torch {numbers['torch']}, {numbers['date'][:10]}; a copy on the card "
        f"moves {numbers['copy'] / 1e9:.0f} GB/s. By `benchmarks/gpu.py`."
    )
    if numbers["speeds"]:
        yield _columns(numbers["speeds"])
    if "kernels" in numbers:
        rows = [{"way": way, **times} for way, times in numbers["kernels"].items()]
        names = sorted({name for row in rows for name in row if name != "way"})
        yield "Milliseconds of each kernel in a step at 512^3, one after the other:"
        yield _columns([{"way": r["way"], **{n: r.get(n, 0.0) for n in names}} for r in rows])
    if numbers["memory"]:
        yield _columns([{"what": k, "MB": v} for k, v in numbers["memory"].items()])
    if numbers["left_out"]:
        yield "Left out: " + "; ".join(numbers["left_out"]) + "."


def _machine(numbers: dict[str, Any]) -> str:
    machine = numbers["machine"]
    where = f"{machine['cpu']}, {machine['threads']} threads"
    load = f", load {machine['load'][0]:g}" if "load" in machine else ""
    versions = ", ".join(f"{p} {machine[p]}" for p in ("hpcfwi", "torch") if machine.get(p))
    return f"{where}{load}; {versions}; {machine['date'][:10]}."


def _columns(rows: Sequence[dict[str, Any]]) -> str:
    """A table of records that all have the same keys."""
    return _table(tuple(rows[0]), [tuple(map(_short, row.values())) for row in rows])


def _short(value: object) -> str:
    if isinstance(value, list):
        return " x ".join(map(str, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def fill_in(page: str, results: Path) -> str:
    """The page of clusters with the tables of the newest `scale_*.json` in their place."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    numbers = newest(results, "scale")
    tables = "" if numbers is None else "\n\n".join(_scale(numbers))
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}"


def _scale(numbers: dict[str, Any]) -> Iterator[str]:
    machine, ranks, shots, receivers, cells = (
        numbers[key] for key in ("machine", "ranks", "shots", "receivers", "cells")
    )
    yield (
        f"{machine['cpu']}, {machine['cores']} cores, one thread a rank; torch {machine['torch']}; "
        f"{machine['date'][:10]}. MB and kB are 10^6 and 10^3 bytes."
    )
    first, last = ranks[0], ranks[-1]
    yield (
        f"**Ranks.** {first['points']} x {first['points']} cells, {first['batch']} shots an epoch. "
        f"{last['ranks']} ranks were connected after {last['connected_s']:.0f} s, one alone after "
        f"{first['connected_s']:.1f} s: their CPU seconds, on the cores that are there."
    )
    yield _grow(ranks, "rank", 512)
    calls = [f"{count:,} of {n}" for n, count in numbers["file_calls"].items() if count is not None]
    if calls:
        yield (
            "Calls to the file system in a run of one epoch, of the last of so many ranks, which "
            f"draws where it is alone: {', '.join(calls)}."
        )
    yield f"**Shots of the survey.** {shots[-1]['ranks']} ranks, {shots[-1]['batch']} an epoch."
    yield _grow(shots, "shot", 100_000)
    yield (
        f"**Receivers**, of each shot its own: {receivers[-1]['ranks']} ranks of one host, "
        f"{receivers[-1]['shots']:,} shots. What the host has once is no rank's own."
    )
    yield _grow(receivers, "receiver", receivers[-1]["receivers"])
    yield f"**Cells.** {cells[-1]['ranks']} ranks, {cells[-1]['batch']} shots of 30 steps an epoch."
    yield _grow([{**case, "cells": case["points"] ** 2} for case in cells], "cell", 1000**3)


# What is counted, in which words, and in units of how many.
COUNTED = (
    ("start_cpu_s", "CPU seconds until connected", 1.0),
    ("own_memory", "memory that is its own, MB", 1e6),
    ("descriptors", "descriptors", 1.0),
    ("begun_carried", "carried before and in the first epoch, kB", 1e3),
    ("collectives", "collectives an epoch", 1.0),
    ("carried", "carried by these, kB", 1e3),
    ("sent", "sent by sockets an epoch, kB", 1e3),
)
# Never twice the same: no line is drawn through these.
MEASURED = ("start_cpu_s", "own_memory")


def _grow(cases: Sequence[dict[str, Any]], what: str, goal: int) -> str:
    """A row for each thing that is counted, on rank 0 and on that of the others which has most.

    Then how it grows with each one more between the last two cases, and where that leads, if they
    are not there already.
    """
    places = [case[f"{what}s"] for case in cases]
    left = [goal] if goal != places[-1] else []
    rows: list[list[str]] = []
    for key, name, unit in COUNTED:
        before, last = cases[-2][key], cases[-1][key]
        slopes = [(b - a) / (places[-1] - places[-2]) for a, b in zip(before, last, strict=True)]
        reached = [
            [b + s * (n - places[-1]) for b, s in zip(last, slopes, strict=True)] for n in left
        ]
        found, further = (
            [_both([value / unit for value in values]) for values in part]
            for part in ([case[key] for case in cases], reached)
        )
        grows = _both(slopes) + " B" * (unit > 1.0)
        if key in MEASURED:
            grows, further = "", [""] * len(left)
        rows.append([name, *found, grows, *further])
    counted = [f"{n:,}" for n in places]
    return _table((f"{what}s", *counted, f"each {what} more", *(f"*{n:,}*" for n in left)), rows)


def _both(values: Sequence[float]) -> str:
    """Rank 0's and the others', as one where they read alike."""
    read = [
        f"{v:,.0f}" if abs(v) >= 1000 else f"{v:.3g}" if abs(v) >= 0.05 else "0" for v in values
    ]
    return " / ".join(dict.fromkeys(read))


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(make_page(RESULTS), encoding="utf-8")
    CLUSTER.write_text(fill_in(CLUSTER.read_text(encoding="utf-8"), RESULTS), encoding="utf-8")
    print(f"Written: {PAGE.relative_to(ROOT)}, {CLUSTER.relative_to(ROOT)}")
