"""Tests that docs/performance.md and docs/cluster.md agree with the committed results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def load_report():
    """Return benchmarks/report.py, a script outside of packages, as a module."""
    spec = importlib.util.spec_from_file_location("report", ROOT / "benchmarks" / "report.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


report = load_report()


def test_performance_page_agrees_with_the_committed_results():
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert page == report.make_page(report.RESULTS), "run `make performance`"


def test_tables_of_the_cluster_page_agree_with_the_newest_results():
    page = report.CLUSTER.read_text(encoding="utf-8")
    assert page == report.fill_in(page, report.RESULTS), "run `make performance`"
    found = report.newest(report.RESULTS, "scale")
    assert f"| {found['ranks'][-1]['ranks']} |" in page


def test_counts_are_extrapolated_linearly_from_the_last_two_cases():
    cases = [
        {"ranks": n, **{key: [unit * 2.0 * n, unit * 3.0] for key, _, unit in report.COUNTED}}
        for n in (1, 2, 4)
    ]
    table = report._grow(cases, "rank", 512).splitlines()
    assert table[0] == "| ranks | 1 | 2 | 4 | each rank more | *512* |"
    rows = {row.split(" | ")[0].removeprefix("| "): row.split(" | ")[1:] for row in table[2:]}
    assert rows["descriptors"] == ["2 / 3", "4 / 3", "8 / 3", "2 / 0", "1,024 / 3 |"]
    assert rows["carried per epoch, kB"][3:] == ["2,000 / 0 B", "1,024 / 3 |"]
    assert rows["private memory, MB"][3:] == ["", " |"]


def test_newest_result_of_each_kind_is_used(tmp_path):
    for name, date in (("z", "2026-01-02"), ("a", "2026-03-04"), ("m", "2025-12-31")):
        numbers = {"machine": {"date": date}, "name": name}
        (tmp_path / f"bench_{name}.json").write_text(json.dumps(numbers))
    assert report.newest(tmp_path, "bench")["name"] == "a"
    assert report.newest(tmp_path, "gpu") is None


def test_performance_page_compares_long_records_with_devito(tmp_path):
    programs = ("ours", "devito", "deepwave")
    timing = {
        "size": {"points": [181, 721], "shots": 1, "steps": 3000, "order": 8},
        "updates": 4e8,
        "seconds": dict(zip(programs, (0.5, 0.6, 0.9), strict=True)),
        "ratios": dict(zip(programs, (1.0, 1.25, 1.75), strict=True)),
    }
    machine = {"cpu": "A CPU", "threads": 1, "date": "2026-11-27T14:00", "hpcfwi": "0.1.0"}
    versions = {"devito": "4.8", "deepwave": "0.1"}
    seconds = {"forward, 1": 0.5, "forward, 2": 0.25, "gradient, 1": 1.25, "gradient, 2": 1.0}
    numbers = {
        "machine": machine | versions,
        "copying": 2.5e10,
        "timings": [timing],
        "passes": [{"size": timing["size"], "seconds": seconds}],
    }
    (tmp_path / "long_machine.json").write_text(json.dumps(numbers))
    page = report.make_page(tmp_path)
    assert "A CPU, 1 thread; hpcfwi 0.1.0; 2026-11-27. Devito 4.8, Deepwave 0.1." in page
    assert "A copy moves 25 GB/s" in page
    assert "| 181 x 721 | 3000 | 8 | 0.50 | 0.60 | 0.90 | 800 | 1.25 | 1.75 |" in page
    assert "| 181 x 721 | 3000 | 8 | 0.50 | 1.50 | 2.00 | 1.25 |" in page


def test_performance_page_has_a_section_only_for_a_measured_gpu(tmp_path):
    assert "No card has been measured yet" in report.make_page(tmp_path)
    speed = {"shape": [141, 681], "order": 4, "updates": 9e4, "of_floor": 0.625}
    ours = {**speed, "what": "gradient, snapshots full", "seconds": 0.5}
    theirs = {**speed, "what": "gradient, Deepwave", "seconds": 0.75}
    numbers = {
        "card": "A card",
        "date": "2026-11-21",
        "torch": "2.6",
        "triton": "3.4",
        "deepwave": "0.1",
        "copy": 2.0e12,
        "speeds": [ours, theirs],
        "memory": {"snapshots": 50.0},
        "left_out": [],
    }
    file = tmp_path / "gpu_a_card.json"
    file.write_text(json.dumps({**numbers, "speeds": [], "memory": {}}))
    assert "2000 GB/s" in report.make_page(tmp_path), "the benchmark ended before its first case"
    file.write_text(json.dumps(numbers))
    page = report.make_page(tmp_path)
    assert "No card" not in page
    assert "A card" in page
    assert "2000 GB/s" in page
    assert "Deepwave is version 0.1" in page
    assert "| 141 x 681 | 4 | gradient, snapshots full | 0.5 | 90.0 | 62% | 0.75 | 1.5 |" in page
    assert "| snapshots | 50 |" in page
