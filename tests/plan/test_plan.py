"""The numbers of a plan, against arithmetic and against a run."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace

import pytest
import torch

from hpcfwi.errors import say_bytes
from hpcfwi.inversion.memory import estimate_overhead
from hpcfwi.operators import simulator
from hpcfwi.operators.simulator import MemoryShare
from hpcfwi.parallel.context import Context
from hpcfwi.plan.estimate import Machine
from hpcfwi.plan.plan import Speed, Stopwatch, make_plan, measure_speed, write_plan
from hpcfwi.run import commands
from hpcfwi.wave import Method, warm_up
from hpcfwi.wave.numerics import longest_step
from tests.inversion.examples import prepared, write_input
from tests.parallel.together import on_ranks
from tests.ranks import run_command, run_ranks
from tests.run.test_job import contents, only_message

GIGA = 10**9
TWO_THREADS = Machine(
    hosts=("here",),
    threads=(2,),
    shares=(MemoryShare(16 * GIGA, 2),),
    device=torch.device("cpu"),
    program=GIGA // 2,
    ready=4.0,
    compiling=1.0,
)


@pytest.fixture(autouse=True)
def two_threads():
    """Set two threads, since the footprint of an engine depends on the threads of the process."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def planned(folder, changes=None, machine=TWO_THREADS, speed=None, has_data=False):
    experiment = prepared(folder, changes)
    overhead = estimate_overhead(experiment, len(machine.threads), rank=0)
    return make_plan("input.toml", experiment, overhead, machine, has_data, speed)


def ranks(count, threads=1):
    shares = (MemoryShare(16 * GIGA, threads),) * count
    return replace(TWO_THREADS, hosts=("here",) * count, threads=(threads,) * count, shares=shares)


def with_memory(machine, memory):
    """Return the same machine with `memory` bytes for each rank."""
    shares = tuple(replace(share, memory=memory) for share in machine.shares)
    return replace(machine, shares=shares)


def keys(plan, severity):
    return [finding.where for finding in plan.findings if finding.severity == severity]


def test_plan_has_grid_and_stability_limit_of_the_scheme(tmp_path):
    fastest = float(prepared(tmp_path).initial["vp"].max())
    grid, speeds, steps, _, peak, *_ = planned(tmp_path).grid
    assert grid == "30 x 60 points, 20 x 20 m apart; 50 x 80 with the boundary"
    assert speeds == f"velocities 1500 to {fastest:.0f} m/s"
    longest = 1000 * longest_step(4, (20.0, 20.0), fastest)
    assert steps == (
        f"150 samples of 4 ms: no substeps (up to {longest:.3g} ms needs none); Courant number "
        f"{fastest * 0.004 / 20.0:.2f}"
    )
    points, error, delay = map(float, re.findall(r"([+.\d-]+) (?:points|%|ms)", peak))
    assert points == pytest.approx(1500.0 / (8.0 * 20.0), rel=0.03)
    assert peak.endswith("early after 0.9 km"), "distance that the slowest wave travels in 0.6 s"
    assert delay == pytest.approx(10.0 * error * 0.9 / 1.5, rel=0.05)


def test_substeps_are_noted_with_their_cost(tmp_path):
    plan = planned(tmp_path, {"survey.dt": 0.01})
    assert "3 substeps" in plan.grid[2]
    (note,) = [f for f in plan.findings if f.where == "survey.dt"]
    assert note.severity == "note"
    assert "3 times as long" in note.found


def test_history_in_plan_is_chosen_as_in_a_run(tmp_path):
    # A wavelet of high frequency is sampled at every step, and its snapshots are not rounded.
    for frequency, wanted in ((8.0, "float16"), (40.0, "every step, full precision")):
        plan = planned(tmp_path, {"survey.wavelet.frequency": frequency})
        assert plan.memory.chosen is not None
        assert wanted in plan.memory.chosen


def test_memory_of_waves_is_engine_footprint_of_shots_at_once(tmp_path):
    plan = planned(tmp_path, {"inversion.batch": 8, "wave.history": {"interval": 5}})
    (asked,) = (
        sizes
        for name, sizes in plan.memory.choices
        if name.startswith("snapshots") and "full" in name
    )
    one, two = asked[:2]
    assert plan.memory.counts[:2] == (1, 2)
    # 149 steps, every fifth of them kept, of 50 x 80 cells and a margin.
    assert one > 30 * 50 * 80 * 4
    assert two == pytest.approx(2 * one, rel=0.05), "they share the model"
    assert plan.memory.waves == two
    # The data of this epoch and the next.
    assert plan.memory.overhead.traces == 30 * 150 * 2 * 8 * 4


ADAM, NCG = {"name": "adam", "lr": 20.0}, {"name": "ncg", "step": 20.0}
LBFGS = {"name": "lbfgs", "step": 20.0, "memory": 7}


@pytest.mark.parametrize(
    ("optimizer", "each", "shared"),
    [(ADAM, 8, 0), ({"name": "sgd", "lr": 20.0}, 4, 0), (LBFGS, 56, 48)],
)
def test_optimizer_memory_is_counted_per_rank_with_and_without_shards(
    optimizer, each, shared, tmp_path
):
    found = {}
    for sharded in (True, False):
        changes = {"inversion.optimizer": {**optimizer, "sharded": sharded}}
        for count in (1, 4):
            found[sharded, count] = planned(tmp_path, changes, ranks(count)).memory
    whole, shard = each * 30 * 60, each * 512  # 450 cells, to the next whole line
    for memory in (found[True, 1], found[False, 1]):
        assert (memory.overhead.remembered, memory.otherwise) == (whole, None)
    assert (found[True, 4].overhead.remembered, found[True, 4].otherwise) == (shard, whole)
    assert (found[False, 4].overhead.remembered, found[False, 4].otherwise) == (whole, shard)
    more = found[True, 4].overhead.records - found[False, 4].overhead.records
    assert more == shared * 30 * 60, "a state to be saved shares arrays with the next, or is whole"
    assert found[False, 4].arrays == found[True, 4].arrays


def test_optimizer_memory_with_a_network_is_that_of_its_weights(tmp_path):
    network = {"kind": "siren", "width": 16, "depth": 1}
    weights = [2 * 16, 16, 16 * 16, 16, 16, 1]
    for count in (1, 2):
        changes = {"model.network": network, "inversion.optimizer": {**ADAM, "sharded": True}}
        memory = planned(tmp_path, changes, ranks(count)).memory
        cut = sum(weights) if count == 1 else sum(64 * -(-n // 128) for n in weights)
        assert memory.overhead.remembered == 8 * cut


def test_memory_shared_on_a_host_is_counted_once(tmp_path):
    two, hosts = ranks(4), ("here", "there", "here", "there")
    memory = planned(tmp_path, machine=replace(two, hosts=hosts)).memory
    assert memory.ranks == 2
    overhead = replace(memory.overhead, host=10 * GIGA)
    memory = replace(memory, overhead=overhead)
    assert memory.beyond < GIGA
    assert memory.together == 10 * GIGA + 2 * memory.beyond - overhead.records


def test_optimizer_without_shards_has_no_alternative_memory(tmp_path):
    memory = planned(tmp_path, {"inversion.optimizer": NCG}, ranks(4)).memory
    assert (memory.overhead.remembered, memory.otherwise) == (8 * 30 * 60, None)


def test_reproducible_run_with_less_memory_has_same_history_for_fewer_shots(tmp_path):
    roomy = planned(tmp_path).memory
    tight = with_memory(TWO_THREADS, int(0.9 * roomy.waves))
    memory = planned(tmp_path, machine=tight).memory
    assert memory.chosen == roomy.chosen
    assert "1 shot at once" in memory.why
    assert any(line.startswith("1 shot ") for line in memory.describe()), "with its waves"
    other = planned(tmp_path, {"inversion.reproducible": False}, machine=tight).memory
    assert other.chosen != roomy.chosen
    assert "2 shots at once" in other.why


def test_history_that_does_not_fit_is_an_error_and_nothing_is_timed(tmp_path):
    plan = planned(tmp_path, machine=with_memory(TWO_THREADS, 1000))
    assert plan.memory.chosen is None
    assert keys(plan, "error") == ["wave.history"]
    assert plan.timing is None


def test_memory_of_a_shot_includes_its_traces(tmp_path):
    changes = {"wave.history": {"interval": 5}}
    machine, each_shot = ranks(1), 30 * 150 * 8
    assert estimate_overhead(prepared(tmp_path, changes), ranks=1, rank=0).each_shot == each_shot
    waves = planned(tmp_path, changes, machine).memory.waves
    for memory, fits in ((waves, False), (waves + each_shot, True)):
        share = MemoryShare(memory, 1, each_shot=each_shot)
        memory = planned(tmp_path, changes, replace(machine, shares=(share,))).memory
        assert (memory.chosen is not None) == fits


@pytest.mark.parametrize(
    ("batch", "machine", "severity"),
    [(2, ranks(3), "warning"), (3, ranks(2, threads=2), "note"), (4, ranks(2, threads=2), None)],
)
def test_idle_ranks_are_a_warning_and_idle_threads_a_note(batch, machine, severity, tmp_path):
    plan = planned(tmp_path, {"inversion.batch": batch}, machine)
    found = [f.severity for f in plan.findings if f.where == "inversion.batch"]
    assert found == ([severity] if severity else [])


@pytest.mark.parametrize(("machine", "severity"), [(ranks(1, threads=2), []), (ranks(2), ["note"])])
def test_batch_of_one_encoded_shot_gives_no_warning(machine, severity, tmp_path):
    plan = planned(tmp_path, {"inversion.batch": 1, "inversion.encoding": "signs"}, machine)
    found = [f for f in plan.findings if f.where == "inversion.batch"]
    assert [f.severity for f in found] == severity
    assert [f.remedy for f in found] == [
        "Start 1 rank with all cores; the threads of a rank share a shot." for _ in severity
    ]
    assert "batch of" not in plan.sharing.advice


@pytest.mark.parametrize(("batch", "severity"), [(1, ["warning"]), (2, [])])
def test_crews_need_a_shot_each_and_their_threads_do_not(batch, severity, tmp_path):
    machine = replace(ranks(2, threads=2), crew=(2, 1))
    found = planned(tmp_path, {"inversion.batch": batch}, machine).findings
    found = [f for f in found if f.where == "inversion.batch"]
    assert [f.severity for f in found] == severity
    assert all("shared by 2 crews: 1 of them is idle" in f.found for f in found)


def test_crew_shares_an_encoded_shot(tmp_path):
    changes = {"inversion.batch": 1, "inversion.encoding": "signs"}
    plan = planned(tmp_path, changes, replace(ranks(2), crew=(2, 1)))
    assert plan.sharing.advice == "The ranks of a crew share an encoded shot."
    (found,) = [f for f in plan.findings if f.where == "inversion.batch"]
    assert "1 encoded shot of an epoch cannot be shared by 2 crews" in found.found
    assert "wave.ranks_per_shot" in found.remedy


def test_batch_size_that_fills_last_round_is_recommended(tmp_path):
    plan = planned(tmp_path, {"inversion.batch": 5})
    assert plan.sharing.rounds == 3
    assert "leaves 1 of 2 threads idle: a batch of 4 or 6" in plan.sharing.advice


def test_times_are_added_up_for_rank_with_most_rounds(tmp_path):
    speed = Speed(forward=1.0, gradient=3.0, illuminated=4.0, measured=150, processors=1.0)
    changes = {"inversion.batch": 7, "inversion.epochs": 10, "output.every": 5}
    plan = planned(tmp_path, changes, ranks(3), speed)
    # 7 shots: 3, 2 and 2; 10 shots observed: 4, 3 and 3; two of ten epochs are drawn. One shot more
    # is simulated to find the scale of sums.
    epochs = 10 * 3 * 3.2 + 3 / 7 * 4.0
    assert plan.sharing.rounds == 3
    assert plan.timing.observe == 4.0
    assert plan.timing.epoch == pytest.approx(epochs / 10)
    assert plan.timing.ending == 4.0, "the survey's 10 shots"
    assert plan.timing.total == plan.timing.least == pytest.approx(4.0 + 4.0 + epochs + 4.0)
    assert plan.timing.updates == pytest.approx(2 * 50 * 80 * 150 * 7.1)
    whole, epoch = (say_bytes(shots * 30 * 150 * 4) for shots in (10, 7))
    rate = 7 * 30 * 150 * 4 / (epochs / 10) / 1e6
    assert plan.reading == (
        f"{whole} in the file, {epoch} read per epoch: requires {rate:.3g} MB/s for all ranks "
        "together"
    )
    assert planned(tmp_path, changes, ranks(3), speed, has_data=True).timing.observe == 0.0


@pytest.mark.parametrize(("share", "reported"), [(0.4, True), (0.95, False)])
def test_plan_warns_of_times_measured_while_other_programs_ran(share, reported, tmp_path):
    speed = Speed(forward=1.0, gradient=3.0, illuminated=4.0, measured=150, processors=share)
    stream = io.StringIO()
    write_plan(planned(tmp_path, {}, ranks(1), speed), stream)
    text = stream.getvalue()
    assert ("had a processor for only 40 % of their time" in text) == reported
    times = text.split("\nTime\n")[1].split("\n\n")[0]
    assert max(map(len, times.splitlines())) < 100


class FakeStopwatch(Stopwatch):
    """A stopwatch whose times follow a given function of the number of samples."""

    def __init__(self, experiment, law):
        super().__init__(experiment, Context.alone())
        self.law = law

    def time_forward(self, samples):
        return 0.4 * self.law(samples)

    def time_gradient(self, samples, illuminate=False):
        whole_grid = 2.0 * samples / self.samples if illuminate else 0.0
        return self.law(samples) + whole_grid


@pytest.mark.parametrize("budget", [9.0, 0.05])
def test_time_of_whole_record_is_extrapolated_from_its_beginning(budget, tmp_path):
    experiment = prepared(tmp_path, {"survey.duration": 8.0})
    watch = FakeStopwatch(experiment, lambda samples: 0.01 + 2.0 * samples / 2000)
    watch.count_updates = float
    speed = measure_speed(watch, budget)
    assert (speed.measured == 2000) == (budget == 9.0)
    assert speed.gradient == pytest.approx(2.01, rel=0.05)
    assert speed.forward == pytest.approx(0.4 * 2.01, rel=0.05)


def test_extrapolated_time_accounts_for_expanding_wave(tmp_path):
    """Work grows with the number of cells that the wave has reached, until it fills the grid."""
    experiment = prepared(tmp_path, {"survey.dt": 0.002, "model.spacing": 1.0})
    watch = FakeStopwatch(experiment, float)
    watch.law = lambda samples: watch.count_updates(samples) / watch.count_updates(300)
    assert watch.law(75) < 0.2
    speed = measure_speed(watch, 0.3)
    assert speed.measured == 75
    assert speed.gradient == pytest.approx(1.0, rel=0.05)


def test_plan_is_printed_and_writes_no_file(hpcfwi, tmp_path, capsys):
    path = write_input(tmp_path)
    before = contents(tmp_path)
    assert hpcfwi("plan", path) == 0
    text = capsys.readouterr().out
    assert contents(tmp_path) == before
    lines = text.splitlines()
    assert lines[0].endswith("1 warning, 1 note")
    assert lines[1].startswith("WARNING: survey.duration: the record ends")
    for word in (
        "NOTE: inversion.fixed_above: all sources and receivers",
        "30 x 60 points",
        "snapshots, every",
        "<-",
        "an epoch",
        "MB/s",
        "whole records",
    ):
        assert word in text


def test_quick_plan_measures_no_times(hpcfwi, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(commands, "Stopwatch", None)
    assert hpcfwi("plan", write_input(tmp_path), "--quick") == 0
    text = capsys.readouterr().out
    assert "Time\n  not measured" in text
    assert "<-" in text, "memory is estimated without times"


def test_plan_says_that_run_directory_has_other_values(hpcfwi, tmp_path, capsys):
    path = write_input(tmp_path)
    assert hpcfwi("forward", path) == 0
    before = contents(tmp_path)
    capsys.readouterr()
    settings = ("--set", "model.spacing=25.0", "--set", "inversion.epochs=7")
    assert hpcfwi("plan", path, *settings) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "24 x 48 points" in text
    assert "the run in this directory has other values: no model.spacing. To run" in text
    assert "observed data exist already" not in text
    assert contents(tmp_path) == before
    assert hpcfwi("plan", path) == 0
    text = capsys.readouterr().out
    assert "observed data exist already" in text
    assert "other values" not in text


def test_quiet_plan_prints_only_warnings(hpcfwi, tmp_path, capsys):
    path = write_input(tmp_path)
    assert hpcfwi("plan", path, "--quiet") == 0
    text = capsys.readouterr().out
    assert text.startswith("WARNING: survey.duration")
    assert "NOTE" not in text
    assert "Memory" not in text


def test_plan_reports_all_errors_and_a_run_only_the_first(hpcfwi, tmp_path, capsys):
    path = write_input(tmp_path)
    errors = ("--set", "inversion.batch=99", "--set", "inversion.bounds=[1.0, 2.0]")
    assert hpcfwi("plan", path, *errors) == 2
    captured = capsys.readouterr()
    assert captured.out.startswith(f"{path}: 2 errors\nERROR: inversion.batch: found 99")
    assert "ERROR: inversion.bounds: found [1.0, 2.0]" in captured.out
    assert only_message(captured.err).startswith("inversion.batch: found 99")
    assert hpcfwi("run", path, *errors) == 2
    captured = capsys.readouterr()
    assert only_message(captured.err).startswith("inversion.batch: found 99")
    assert "inversion.bounds" not in captured.out + captured.err


def test_all_errors_of_keys_are_reported_at_once(hpcfwi, tmp_path, capsys):
    changes = {"inversion.parameters": ["vp", "vs"], "wave.attenuation": {"frequency": 5.0}}
    assert hpcfwi("plan", write_input(tmp_path, changes)) == 2
    captured = capsys.readouterr()
    assert "2 errors\nERROR: inversion.parameters: found vs" in captured.out
    assert "ERROR: wave.attenuation: waves" in captured.out
    assert captured.err.startswith("hpcfwi: inversion.parameters: found vs")


def test_physics_error_exits_with_2_and_one_message_after_the_plan(hpcfwi, tmp_path, capsys):
    path = write_input(tmp_path)
    assert hpcfwi("plan", path, "--set", "survey.wavelet.frequency=60.0") == 2
    captured = capsys.readouterr()
    assert "ERROR: model.spacing: a spacing of 20 m" in captured.out
    assert only_message(captured.err).startswith("model.spacing: a spacing of 20 m")


def test_plan_simulates_nothing_if_memory_does_not_suffice(hpcfwi, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(simulator, "memory_at_hand", lambda _: 1000)
    monkeypatch.setattr(commands, "Stopwatch", None)
    assert hpcfwi("plan", write_input(tmp_path)) == 2
    captured = capsys.readouterr()
    assert captured.out.splitlines()[1].startswith(
        "ERROR: wave.history: the simulation of one shot takes"
    )
    assert "not measured" in captured.out
    assert only_message(captured.err).startswith("wave.history")


def test_three_ranks_print_one_plan(tmp_path):
    path = write_input(tmp_path)
    before = contents(tmp_path)
    done = run_ranks(3, ["-m", "hpcfwi", "plan", str(path)], warm=True)
    assert done.stdout.count("Memory per rank") == 1
    assert "3 ranks on 1 host, 1 thread each" in done.stdout
    assert "observed data" in done.stdout
    assert "the 3 ranks of a host share one copy" in done.stdout
    assert contents(tmp_path) == before


def test_program_of_a_measured_plan_does_not_include_the_engine_twice(tmp_path):
    path = write_input(tmp_path, {"stage": [{"name": "one"}, {"name": "two"}]})
    sizes = []
    for options in (["--quick"], []):
        done = run_ranks(1, ["-m", "hpcfwi", "plan", str(path), *options], warm=True)
        text = " ".join(done.stdout.split())
        sizes += map(float, re.findall(r"besides (\d+) MB for the program itself", text))
    assert len(sizes) == 4
    assert max(sizes) < 1.15 * min(sizes)


def test_three_ranks_refuse_a_bad_input_with_one_message(tmp_path):
    path = write_input(tmp_path)
    before = contents(tmp_path)
    bad = ["-m", "hpcfwi", "plan", str(path), "--set", "inversion.batch=11"]
    done = run_ranks(3, bad, warm=True, code=2)
    assert done.stderr.count("hpcfwi: ") == 1
    assert "hpcfwi: inversion.batch: found 11" in done.stderr
    assert contents(tmp_path) == before


MEASURE = """
import json, sys
from pathlib import Path
from hpcfwi.run import job
from hpcfwi.plan.plan import Stopwatch
from hpcfwi.parallel.context import Context
from tests.undrawn import draw_nothing
from hpcfwi.system import peak_resident_bytes, resident_bytes
draw_nothing()
context = Context.alone()
prepared = job.prepare(job.load_config(Path(sys.argv[1])), context)
Stopwatch(prepared, context).warm_up()
before = resident_bytes()
job.run_job(Path(sys.argv[1]), [], context, inverts=True, quiet=True)
print(json.dumps(peak_resident_bytes() - before))
"""


def test_memory_beyond_the_program_is_memory_that_a_run_takes(tmp_path):
    """The run has a separate process, and its history outweighs everything else."""
    changes = {
        "model.spacing": 10.0,
        "wave.history": {"interval": 1},
        "survey.duration": 2.4,
        "inversion.epochs": 2,
    }
    plan = planned(tmp_path, changes, ranks(1))
    path = write_input(tmp_path, changes)
    # A process that compiles kernels takes more memory for that than for the run.
    warm_up(Method(order=4, engine="cpu"), {"vp": torch.full((1, 1), 2000.0)})
    taken = json.loads(run_command([sys.executable, "-c", MEASURE, path]).stdout)
    assert plan.memory.beyond == pytest.approx(taken, rel=0.2)


def test_plan_is_made_by_one_rank_for_all_ranks(tmp_path, monkeypatch):
    experiment, made = prepared(tmp_path), []

    def make(*arguments):
        plan = make_plan(*arguments)
        made.append(replace(plan, memory=replace(plan.memory, chosen=None)))
        return made[-1]

    monkeypatch.setattr(commands, "make_plan", make)
    plans = on_ranks(3, lambda c: commands._plan_stage("", experiment, TWO_THREADS, False, 1.0, c))
    assert plans == made * 3
