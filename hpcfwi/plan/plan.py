"""A plan, what an experiment takes on a machine of some speed, and its text.

A plan is a pure function of estimates and measured times, which `run.commands` finds. The text has
findings first, in plain lines for terminals and batch logs.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from hpcfwi.errors import say_bytes
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.memory import Upkeep
from hpcfwi.operators.batching import largest_task
from hpcfwi.plan.checks import (
    SEVERITIES,
    Finding,
    check_experiment,
    check_room,
    check_sharing,
    check_steps,
)
from hpcfwi.plan.comparison import Comparison, describe
from hpcfwi.plan.estimate import (
    Band,
    Machine,
    Memory,
    Resolution,
    Sharing,
    Work,
    count_work,
    find_resolution,
    share_work,
    weigh_memory,
)
from hpcfwi.plan.speed import Reading, Speed, Timing, estimate_reading, estimate_timing
from hpcfwi.report.log import say_duration


@dataclass(frozen=True)
class Plan:
    """The plan of a run.

    name: of the input file; timing: None if nothing could be measured; comparison: of the data with
    those of the starting model in this stage, None if nothing could be simulated.
    """

    name: str
    findings: tuple[Finding, ...]
    resolution: Resolution
    sharing: Sharing
    work: Work
    memory: Memory
    timing: Timing | None
    reading: Reading
    comparison: Comparison | None = None


def make_plan(
    name: str,
    experiment: Experiment,
    upkeep: Upkeep,
    machine: Machine,
    has_data: bool,
    speed: Speed | None = None,
) -> Plan:
    """The plan of an experiment; without times where the speed is not known.

    experiment: with its models on the grid of its waves; upkeep: of rank 0; has_data: whether the
    observed data need not be simulated. Raises `InputError` where the engine has no such history.
    """
    model = experiment.initial.as_tensors(machine.device)
    simulator, survey = experiment.compared(), experiment.survey
    task = largest_task(simulator, model, survey, experiment.costs_of(survey, simulator))
    sharing = share_work(experiment, machine)
    memory = weigh_memory(experiment, task, upkeep, sharing, machine)
    work, timing = count_work(experiment), None
    if speed is not None:
        timing = estimate_timing(experiment, task, sharing, work, machine, speed, has_data)
    findings = [
        *check_room(memory),
        *check_experiment(experiment, task.problem.dt),
        *check_steps(experiment, task.substeps),
        *check_sharing(sharing),
    ]
    return Plan(
        name,
        tuple(findings),
        find_resolution(experiment, task),
        sharing,
        work,
        memory,
        timing,
        estimate_reading(experiment, timing),
    )


WIDTH = 100
LOADED = 0.7  # share of the processors, below which times are not believed


def write_plans(plans: Sequence[Plan], stream: TextIO, quiet: bool = False) -> None:
    """Write the report of each stage; `quiet`: only errors and warnings."""
    for number, plan in enumerate(plans):
        if number and not quiet:
            stream.write("\n")
        write_plan(plan, stream, quiet)
    times = [plan.timing for plan in plans if plan.timing is not None]
    if len(plans) > 1 and len(times) == len(plans) and not quiet:
        whole = times[0].ready + sum(time.total - time.ready for time in times)
        stream.write(f"\nAll {len(plans)} stages: {_duration(whole)}, and the figures\n")


def write_plan(plan: Plan, stream: TextIO, quiet: bool = False) -> None:
    """Write the report; `quiet`: only errors and warnings."""
    lines = list(_findings(plan.name, plan.findings, quiet))
    if not quiet:
        for title, part in (
            ("Grid", _resolution(plan.resolution)),
            ("Work", [*_sharing(plan.sharing), *_work(plan.work, plan.sharing)]),
            ("Memory of a rank", _memory(plan.memory, plan.sharing)),
            ("Time", _timing(plan.timing, plan.sharing)),
            ("Observed data", _reading(plan.reading)),
            ("Starting model", () if plan.comparison is None else describe(plan.comparison)),
        ):
            told = ["  " + line for line in part]
            lines += ["", title, *told] if told else []
    stream.write("".join(line.rstrip() + "\n" for line in lines))
    stream.flush()


def write_findings(
    name: str, findings: Sequence[Finding], stream: TextIO, quiet: bool = False
) -> None:
    """Write how many were found in the input file of that name, and each; `quiet` as above."""
    stream.write("".join(line.rstrip() + "\n" for line in _findings(name, findings, quiet)))


def _findings(name: str, findings: Sequence[Finding], quiet: bool) -> Iterator[str]:
    shown = [s for s in SEVERITIES if not (quiet and s == "note")]
    found = [f for s in shown for f in findings if f.severity == s]
    if not quiet:
        counts = {s: sum(f.severity == s for f in found) for s in shown}
        told = ", ".join(f"{n} {s}{'s' * (n > 1)}" for s, n in counts.items() if n)
        yield f"{name}: {told or 'nothing to object to'}"
    for finding in found:
        yield from textwrap.wrap(str(finding), WIDTH, subsequent_indent="  ")


def _resolution(r: Resolution) -> Iterator[str]:
    yield (
        f"{_times(r.shape)} points, {_times(r.spacing)} m apart; {_times(r.padded)} with the "
        "boundary"
    )
    yield f"velocities {r.velocities[0]:.0f} to {r.velocities[1]:.0f} m/s"
    steps = "no substeps" if r.substeps == 1 else f"{r.substeps} substeps"
    yield (
        f"{r.samples} samples of {_ms(r.axis.dt)}: {steps} (up to {_ms(r.longest)} needs none); "
        f"Courant number {r.courant:.2f}"
    )
    if r.lost:
        yield (
            f"in this band records begin {_ms(-r.axis.start)} before the shot, and what was "
            f"observed in their last {_ms(r.lost)} is not compared"
        )
    yield "at the slowest velocity:"
    for band in r.bands:
        yield (
            f"{band.name + ' ':.<27} {band.frequency:4.3g} Hz: {band.points:4.1f} points a "
            f"wavelength, {_error(band, r.path)}"
        )


def _error(band: Band, path: float) -> str:
    if band.error == -float("inf"):
        return "which the grid does not carry"
    late = "late" if band.delay >= 0 else "early"
    return (
        f"phase velocity {100 * band.error:+.2g} %, "
        f"up to {_ms(abs(band.delay))} {late} after {path / 1000:.3g} km"
    )


def _sharing(s: Sharing) -> Iterator[str]:
    threads = "/".join(map(str, sorted(set(s.threads))))
    yield (
        f"{s.ranks} rank{'s' * (s.ranks > 1)} on {s.hosts} host{'s' * (s.hosts > 1)}, {threads} "
        f"thread{'s' * (max(s.threads) > 1)} each"
    )
    shots = f"{s.batch} of {s.shots} shots"
    if s.encoded:
        shots = f"{s.batch} encoded shot{'s' * (s.batch > 1)} of all {s.shots} sources"
    yield (
        f"{s.epochs} epochs of {shots}: a rank has up to {s.part}, "
        f"{s.at_once} at a time in {s.rounds} round{'s' * (s.rounds > 1)}"
    )
    yield from textwrap.wrap(s.advice, WIDTH - 2)


def _work(w: Work, s: Sharing) -> Iterator[str]:
    least, likely = w.least.count, w.likely.count
    each = f"{likely / s.epochs:.3g} shots an epoch"
    whole = f"{likely:.0f} in all"
    if least < likely:
        each = f"{least / s.epochs:.3g} or more, likely {each}"
        whole = f"{least:.0f} or more in all, likely {likely:.0f}"
    yield f"{w.optimizer} simulates {each}, {whole}; {w.ending} more are looked at in the end"


def _memory(m: Memory, s: Sharing) -> Iterator[str]:
    heads = [f"{n} shot{'s' * (n > 1)}" for n in m.counts]
    width = max(len(choice.name) for choice in m.choices) + 2
    yield "engine " + m.engine
    yield "history".ljust(width) + "".join(f"{head:>12}" for head in heads) + "   at once"
    for choice in m.choices:
        cells = "".join(f"{say_bytes(n):>12}" for n in choice.bytes)
        yield choice.name.ljust(width) + cells + ("   <-" if choice.name == m.chosen else "")
    yield from textwrap.wrap(m.why, WIDTH - 2)
    yield from textwrap.wrap(
        f"{s.at_once} shot{'s' * (s.at_once > 1)} {say_bytes(m.waves)}, observed traces "
        f"{say_bytes(m.data)}, models, gradients and sums {say_bytes(m.arrays)}, the optimiser's "
        f"state {say_bytes(m.remembered)}, rank 0's figures and files {say_bytes(m.records)}: "
        f"{say_bytes(m.beyond)} beyond the {say_bytes(m.program)} of the program itself",
        WIDTH - 2,
    )
    if m.ranks > 1:
        yield from textwrap.wrap(
            f"models and the survey are there once for the {m.ranks} ranks of a host, "
            f"{say_bytes(m.once)}, and twice while they are prepared; all in all a host takes "
            f"{say_bytes(m.together)} beyond the programs",
            WIDTH - 2,
        )
    if m.otherwise is not None:
        word = "sharded" if m.otherwise < m.remembered else "not sharded"
        yield f"{word}, that state would take {say_bytes(m.otherwise)} of each rank"


def _timing(t: Timing | None, s: Sharing) -> Iterator[str]:
    if t is None:
        yield "not measured"
        return
    extent = "whole records" if t.measured == t.samples else f"{t.measured} of {t.samples} samples"
    yield (
        f"{t.updates:.3g} cell updates an epoch, forwards and backwards; measured on {extent}: "
        f"{t.updates / t.epoch / 1e6:.0f} million a second"
    )
    yield f"start {_duration(t.ready)}" + (
        f", observed data {_duration(t.observe)}" if t.observe else ", observed data are there"
    )
    if t.processors < LOADED:
        yield (
            f"other programs were busy: these processes had a processor for "
            f"{100.0 * t.processors:.0f} % of their time, and times here may be that much too long"
        )
    least = f", {_duration(t.least)} at least" if t.least < t.total else ""
    yield (
        f"an epoch {_duration(t.epoch)}, {s.epochs} epochs {_duration(s.epochs * t.epoch)}, the "
        f"look at their end {_duration(t.ending)}; in all {_duration(t.total)}{least}, and the "
        "figures"
    )
    yield (
        f"preparing the engine took {_duration(t.compile)}, not counted above: compiled code is "
        "kept, and the next start is shorter"
    )


def _reading(r: Reading) -> Iterator[str]:
    rate = "" if r.rate is None else f": {r.rate / 1e6:.3g} MB/s, all ranks together, keep up"
    yield f"{say_bytes(r.whole)} in the file, {say_bytes(r.epoch)} read an epoch{rate}"


def _times(values: tuple[float, ...]) -> str:
    return " x ".join(f"{v:g}" for v in values)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


def _duration(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10.0 else say_duration(seconds)
