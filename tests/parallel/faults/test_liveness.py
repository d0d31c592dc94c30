"""Tests of the monitor, which finds missing ranks from reports, without threads."""

from __future__ import annotations

import pytest

from hpcfwi.parallel.context import Heartbeat
from hpcfwi.parallel.watch import LENIENCE, MissingRank, Monitor, Report, Reporter

WAIT, SILENCE = 100.0, 15.0


def make_monitor() -> Monitor:
    return Monitor(range(3), WAIT, SILENCE, now=0.0)


def waits(since: float, number: int = 1) -> Report:
    return Report(number, work="epoch 4", waiting=True, since=since, longest=1.0)


def works(since: float, number: int = 1, longest: float | None = 1.0) -> Report:
    return Report(number, work="epoch 4", waiting=False, since=since, longest=longest)


def test_report_has_the_time_since_the_last_sign_of_life():
    heartbeat = Heartbeat()
    reporter = Reporter(heartbeat)
    heartbeat.begin("epoch 4")
    assert reporter.look(10.0) == Report(1, work="epoch 4", waiting=False, since=0.0, longest=None)
    assert reporter.look(13.0) == Report(2, work="epoch 4", waiting=False, since=3.0, longest=None)
    heartbeat.beat()
    assert reporter.look(15.0) == Report(3, work="epoch 4", waiting=False, since=0.0, longest=5.0)
    heartbeat.beat()
    assert reporter.look(16.0).longest == 5.0
    with heartbeat.waiting():
        with heartbeat.waiting():
            pass
        reporter.look(20.0)
        assert reporter.look(27.0) == Report(
            6, work="epoch 4", waiting=True, since=7.0, longest=5.0
        )
    report = reporter.look(28.0)
    assert (report.waiting, report.since) == (False, 0.0)


def test_longest_work_does_not_include_waiting():
    heartbeat = Heartbeat()
    reporter = Reporter(heartbeat)
    reporter.look(0.0)
    with heartbeat.waiting():
        reporter.look(1.0)
    reporter.look(60.0)
    heartbeat.beat()
    assert reporter.look(62.0).longest == 2.0


def test_rank_that_works_too_long_while_another_waits_is_missing():
    monitor = make_monitor()
    monitor.note(0, waits(110.0), 200.0)
    monitor.note(1, works(120.0), 200.0)
    monitor.note(2, waits(90.0), 200.0)
    assert monitor.find_missing(200.0) == MissingRank(1, 120.0, "epoch 4")


def test_no_rank_is_missing_while_all_work_or_all_wait():
    for report in (works(500.0), waits(500.0)):
        monitor = make_monitor()
        for rank in range(3):
            monitor.note(rank, report, 500.0)
        assert monitor.find_missing(500.0) is None


def test_no_rank_is_missing_if_the_others_began_to_wait_recently():
    monitor = make_monitor()
    for rank, report in enumerate((waits(90.0), works(120.0), works(80.0))):
        monitor.note(rank, report, 200.0)
    assert monitor.find_missing(200.0) is None


def test_allowed_wait_grows_with_the_longest_work_of_any_rank():
    monitor = make_monitor()
    monitor.note(0, waits(1000.0), 2000.0)
    monitor.note(1, works(1000.0), 2000.0)
    monitor.note(2, works(0.0, longest=101.0), 2000.0)
    assert LENIENCE * 101.0 > 1000.0
    assert monitor.find_missing(2000.0) is None
    monitor.note(0, waits(1020.0, number=2), 2020.0)
    monitor.note(1, works(1020.0, number=2), 2020.0)
    monitor.note(2, works(0.0, number=2, longest=101.0), 2020.0)
    assert monitor.find_missing(2020.0) == MissingRank(1, 1020.0, "epoch 4")


def test_no_rank_is_missing_before_the_first_work_is_complete():
    monitor = make_monitor()
    monitor.note(0, Report(1, "epoch 1", True, 900.0, None), 1000.0)
    monitor.note(1, works(900.0, longest=None), 1000.0)
    monitor.note(2, works(900.0, longest=None), 1000.0)
    assert monitor.find_missing(1000.0) is None


@pytest.mark.parametrize("last", [waits(5.0), works(5.0, longest=None)])
def test_rank_that_stops_reporting_is_missing(last):
    monitor = make_monitor()
    monitor.note(1, last, 10.0)
    for now in (10.0, 60.0, 111.0):
        monitor.note(0, Report(int(now), "epoch 4", True, now, None), now)
        monitor.note(2, Report(int(now), "epoch 4", True, now, None), now)
        missing = monitor.find_missing(now)
        assert (missing is not None) == (now > 110.0)
    assert missing is not None
    assert missing.rank == 1


def test_repeated_report_is_not_a_sign_of_life():
    monitor = make_monitor()
    for now in (0.0, 50.0, 120.0):
        monitor.note(0, waits(now, number=int(now) + 1), now)
        monitor.note(1, works(0.0, number=7), now)
        monitor.note(2, waits(now, number=int(now) + 1), now)
    assert monitor.find_missing(120.0) == MissingRank(1, 120.0, "epoch 4")


def test_rank_is_silent_when_its_last_report_is_too_old():
    monitor = make_monitor()
    monitor.note(1, works(5.0), 100.0)
    last = 100.0 + SILENCE
    assert [monitor.is_silent(1, now) for now in (100.0, last, last + 1.0)] == [False, False, True]
