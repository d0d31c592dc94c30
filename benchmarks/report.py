"""Write docs/performance.md and the tables of docs/cluster.md from the committed results.

    python benchmarks/report.py

The newest file of each kind is used: `bench_*.json` of `hpcfwi bench`, `engines_*.json` and
`long_*.json` of `engines.py`, `equations_*.json` of `equations.py`, `gpu_*.json` of `gpu.py` and,
for docs/cluster.md, `scale_*.json` of `scale.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hpcfwi.bench import tabulate

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "performance.md"
CLUSTER = ROOT / "docs" / "cluster.md"
# Lines of docs/cluster.md between which this program replaces the text.
BEGIN, END = "<!-- Made by benchmarks/report.py: -->", "<!-- Until here. -->"

HEAD = """# Performance

`benchmarks/report.py` makes this page from the results in `benchmarks/results`: do not edit it
here. `hpcfwi bench` measures your machine in the same way.

Alternatives run in turn (A B A B), so that other work on the machine affects all of them. Times
are medians over the repetitions, and ratios are medians of the ratios within a turn. "Load" is
the load average of the machine."""


def make_page(results: Path) -> str:
    """Return the text of docs/performance.md, from the newest result of each kind in a folder."""
    parts = [HEAD]
    for kind, describe in (
        ("bench", _bench),
        ("engines", _engines),
        ("long", _long),
        ("equations", _equations),
    ):
        numbers = newest(results, kind)
        if numbers is not None:
            parts += describe(numbers)
    parts += _gpu(newest(results, "gpu"))
    return "\n\n".join(parts) + "\n"


def newest(results: Path, kind: str) -> dict[str, Any] | None:
    """Return the contents of the newest file of a kind, by its date; None if there is none."""
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
    tables = {name: _table(*table) for name, table in tabulate(numbers).items()}
    yield "### Engines"
    yield tables["engines"]
    yield "### Histories"
    yield (
        "The history is the data of the forward pass that the backward pass of the `cpu` engine "
        "needs ([how](physics.md#the-history-of-the-forward-pass)). Error: relative L2 difference "
        "from the exact gradient, which is that of `Snapshots(1)` in float32. Memory: growth of "
        "the peak of a process that does nothing else, by the forward and backward pass of all "
        "shots."
    )
    yield tables["histories"]
    yield "### Ranks"
    if numbers["ranks"]:
        yield (
            f"All rows have the same {numbers['ranks'][0]['shots']} shots, one thread per rank, "
            "and the sum of the gradients. The efficiency is relative to one rank."
        )
        yield tables["ranks"]
    else:
        yield "Not measured: this machine had no mpirun that works."
    yield "### Cost of a gradient"
    yield (
        "Times and work are relative to those of the first case. The engine computes only cells "
        "that the wave may have reached ([decision 012](decisions/012-windows.md)). The cost "
        "therefore grows faster than the length of the record until the wave fills the grid, and "
        "more slowly than the grid."
    )
    yield tables["growth"]
    reading, checkpoints = numbers["reading"], numbers["checkpoints"]
    yield "### Files"
    yield (
        f"Observed data are read at {reading['gathers_bytes_per_second'] / 1e6:.0f} MB/s, "
        f"{reading['ratio']:.2f} times the rate of a plain file "
        f"({reading['plain_bytes_per_second'] / 1e6:.0f} MB/s), both from the page cache. A "
        f"checkpoint of {checkpoints['cells'] / 1e6:g} million cells with Adam "
        f"({checkpoints['bytes'] / 1e6:.0f} MB) is written and flushed to the disk in "
        f"{checkpoints['write']:.2f} s, and read in {checkpoints['read']:.2f} s."
    )


def _engines(numbers: dict[str, Any]) -> Iterator[str]:
    ours, theirs = (numbers["peaks"][name] / 1e6 for name in ("ours", "theirs"))
    yield "## Against Deepwave"
    yield (
        f"{_machine(numbers)} Deepwave {numbers['machine']['deepwave']}. Both compute in float32. "
        "The points include the boundaries. At the same interval, the first gradient adds "
        f"{ours:.0f} MB to the peak memory of a process with hpcfwi (samples in float16), and "
        f"{theirs:.0f} MB with Deepwave (in float32). Measured by `benchmarks/engines.py`."
    )
    sizes = ("points", "shots", "steps", "order")
    yield _tabulate_ratios(sizes, [{**t["size"], **t} for t in numbers["timings"]])


def _tabulate_ratios(sizes: Sequence[str], timings: Sequence[dict[str, Any]]) -> str:
    """Return a table of cases, with their sizes, the seconds of both programs and the ratios."""
    return _table(
        (*sizes, "case", "hpcfwi, s", "Deepwave, s", "ratio"),
        [
            (
                *(_short(t[size]) for size in (*sizes, "case")),
                *(f"{t['ours']:.2f}", f"{t['theirs']:.2f}", f"{t['ratio']:.1f}"),
            )
            for t in timings
        ],
    )


def _long(numbers: dict[str, Any]) -> Iterator[str]:
    yield "## Where the wave fills the grid"
    machine = numbers["machine"]
    yield (
        f"{_machine(numbers)} Devito {machine['devito']}, Deepwave {machine['deepwave']}. Forward "
        "simulations of one shot in float32, from a source in the middle of the grid. hpcfwi does "
        "not compute cells that the wave has not reached yet: of 431 x 1231 points these are a "
        "third of all updates, in the other cases a sixth. The points include the boundaries of "
        "20 cells: a CPML in hpcfwi and Deepwave, plain damping in Devito. A copy moves "
        f"{numbers['copying'] / 1e9:.0f} GB/s; an update moves at least 16 bytes. Measured by "
        "`benchmarks/engines.py --long`."
    )
    programs = {"ours": "hpcfwi", "devito": "Devito", "deepwave": "Deepwave"}
    yield _table(
        (
            *("points", "steps", "order", *(f"{name}, s" for name in programs.values())),
            *("million updates/s", "Devito / hpcfwi", "Deepwave / hpcfwi"),
        ),
        [
            (
                _short(t["size"]["points"]),
                *(t["size"][key] for key in ("steps", "order")),
                *(f"{t['seconds'][name]:.2f}" for name in programs),
                f"{t['updates'] / t['seconds']['ours'] / 1e6:.0f}",
                *(f"{t['ratios'][name]:.2f}" for name in ("devito", "deepwave")),
            )
            for t in numbers["timings"]
        ],
    )
    yield (
        "A gradient is a forward and a backward pass, here with the default history. Its cost, and "
        "the speed of two threads that share the shot:"
    )
    rows = []
    for each in numbers["passes"]:
        forward, forward_on_two, gradient, gradient_on_two = (
            each["seconds"][f"{name}, {threads}"]
            for name in ("forward", "gradient")
            for threads in (1, 2)
        )
        rows.append(
            {
                **{key: each["size"][key] for key in ("points", "steps", "order")},
                "forward, s": f"{forward:.2f}",
                "backward / forward": f"{gradient / forward - 1:.2f}",
                "two threads, forward": f"{forward / forward_on_two:.2f}",
                "two threads, gradient": f"{gradient / gradient_on_two:.2f}",
            }
        )
    yield _columns(rows)


def _equations(numbers: dict[str, Any]) -> Iterator[str]:
    yield "## Elastic waves, and density"
    yield (
        f"{_machine(numbers)} Deepwave {numbers['machine']['deepwave']}. One shot in the middle of "
        "a grid in float32; its wave has filled 340 x 640 points after about 500 steps. Gradients "
        "are those with respect to all parameters, and both programs store every "
        f"{numbers['interval']} steps (hpcfwi in float16). Measured by `benchmarks/equations.py`."
    )
    cases = ("forward", "gradient")
    yield _tabulate_ratios(
        ("equation", "order", "points", "steps"),
        [{**t, "case": cases[t["gradient"]]} for t in numbers["timings"]],
    )


def _gpu(numbers: dict[str, Any] | None) -> Iterator[str]:
    yield "## Graphics cards"
    if numbers is None:
        yield "No card has been measured yet. [How to measure one](gpu.md) has its own page."
        return
    yield (
        f"{numbers['card']}, torch {numbers['torch']}, Triton {numbers['triton']}, "
        f"{numbers['date'][:10]}. Simulations of a batch of shots in float32, measured by "
        "`benchmarks/gpu.py` ([the cases](gpu.md)). A copy on the card moves "
        f"{numbers['copy'] / 1e9:.0f} GB/s; the share is that of the bytes that an update has to "
        "move, including absorbing cells, in the time that it takes. A gradient is named by its "
        "history."
    )
    if numbers["deepwave"]:
        yield (
            f"Deepwave is version {numbers['deepwave']}; its gradients store the field at about "
            "the same steps, in full. Seconds of each program, and their ratio:"
        )
    seconds = {(_short(s["shape"]), s["order"], s["what"]): s for s in numbers["speeds"]}
    rows = []
    for (points, order, what), ours in seconds.items():
        kind = what.split(",")[0]
        theirs = seconds.get((points, order, f"{kind}, Deepwave"))
        if ours is not theirs:
            rows.append(
                {
                    "points": points,
                    "order": order,
                    "case": what,
                    "seconds": ours["seconds"],
                    "billion updates/s": f"{ours['updates'] / 1e3:.1f}",
                    "share": f"{ours['of_floor']:.0%}",
                    "Deepwave, s": theirs["seconds"] if theirs else "",
                    "ratio": f"{theirs['seconds'] / ours['seconds']:.1f}" if theirs else "",
                }
            )
    if rows:
        yield _columns(rows)
    if "kernels" in numbers:
        names = sorted({name for times in numbers["kernels"].values() for name in times})
        yield "Milliseconds of each kernel in a step at 512 x 512 x 512, one after the other:"
        yield _columns(
            [
                {"step": way, **{name: times.get(name, "") for name in names}}
                for way, times in numbers["kernels"].items()
            ]
        )
    if numbers["memory"]:
        yield "Memory of one shot on 281 x 1361 points, with 4000 steps:"
        yield _columns([{"history": k, "MB": f"{v:.0f}"} for k, v in numbers["memory"].items()])
    if numbers["left_out"]:
        yield "Left out: " + "; ".join(numbers["left_out"]) + "."


def _machine(numbers: dict[str, Any]) -> str:
    machine = numbers["machine"]
    threads = machine["threads"]
    where = f"{machine['cpu']}, {threads} {'thread' if threads == 1 else 'threads'}"
    load = f", load {machine['load'][0]:g}" if "load" in machine else ""
    versions = ", ".join(f"{p} {machine[p]}" for p in ("hpcfwi", "torch") if machine.get(p))
    return f"{where}{load}; {versions}; {machine['date'][:10]}."


def _columns(rows: Sequence[dict[str, Any]]) -> str:
    """Return a table of records that all have the same keys."""
    return _table(tuple(rows[0]), [tuple(map(_short, row.values())) for row in rows])


def _short(value: object) -> str:
    if isinstance(value, list):
        return " x ".join(map(str, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def fill_in(page: str, results: Path) -> str:
    """Return docs/cluster.md, whose text is `page`, with the tables of the newest result."""
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
        f"{machine['cpu']}, {machine['cores']} cores, one thread per rank; "
        f"torch {machine['torch']}; {machine['date'][:10]}. MB and kB are 10^6 and 10^3 bytes."
    )
    first, last = ranks[0], ranks[-1]
    yield (
        f"**Ranks.** {first['points']} x {first['points']} cells, {first['batch']} shots per "
        f"epoch. {last['ranks']} ranks on these cores were connected after "
        f"{last['connected_s']:.0f} s, a single rank after {first['connected_s']:.1f} s."
    )
    yield _grow(ranks, "rank", 512)
    counts = numbers["file_calls"].items()
    calls = [f"{count:,} with {n}" for n, count in counts if count is not None]
    if calls:
        yield (
            "Calls to the file system by the last rank, in a run of one epoch, by the number of "
            f"ranks: {', '.join(calls)}. A single rank also draws the figures."
        )
    yield f"**Shots of the survey.** {shots[-1]['ranks']} ranks, {shots[-1]['batch']} an epoch."
    yield _grow(shots, "shot", 100_000)
    yield (
        f"**Receivers**, which differ from shot to shot: {receivers[-1]['ranks']} ranks of one "
        f"host, {receivers[-1]['shots']:,} shots. Private memory excludes memory that ranks share."
    )
    yield _grow(receivers, "receiver", receivers[-1]["receivers"])
    ranks, batch = cells[-1]["ranks"], cells[-1]["batch"]
    yield f"**Cells.** {ranks} ranks, {batch} shots of 30 steps per epoch."
    yield _grow([{**case, "cells": case["points"] ** 2} for case in cells], "cell", 1000**3)


# The counted quantities: key in the results, name in the table, and unit.
COUNTED = (
    ("start_cpu_s", "CPU seconds until connected", 1.0),
    ("own_memory", "private memory, MB", 1e6),
    ("descriptors", "descriptors", 1.0),
    ("begun_carried", "carried until the end of the first epoch, kB", 1e3),
    ("collectives", "collectives per epoch", 1.0),
    ("carried", "carried per epoch, kB", 1e3),
    ("sent", "sent per epoch, kB", 1e3),
)
# Quantities that differ from run to run and are therefore not extrapolated.
MEASURED = ("start_cpu_s", "own_memory")


def _grow(cases: Sequence[dict[str, Any]], what: str, goal: int) -> str:
    """Return a table with a row for each counted quantity and a column for each case.

    A cell has the number of rank 0 and the largest of the other ranks. The next column has the
    growth per `what` between the last two cases. The last column extrapolates it to `goal`, if the
    last case is smaller.
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
    """Return the numbers of rank 0 and of the others, or one number if they read the same."""
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
