"""Tests of the painter, a thread that draws figures."""

import threading

import pytest

from hpcfwi.report import style
from hpcfwi.report.text import start_log
from hpcfwi.run.directory import RunDirectory
from hpcfwi.run.drawing import WAITING, Painter


class Easel:
    """A figure that records what is drawn and blocks the painter until `go` is set."""

    def __init__(self):
        self.drawn = []
        self.begun = threading.Event()
        self.go = threading.Event()

    def draw(self, content=None):
        self.begun.set()
        assert self.go.wait(10)
        self.drawn.append(content)
        return style.new_figure(1.0, 1.0)


def test_submitted_figures_are_drawn_in_order_before_close_returns(tmp_path):
    easel = Easel()
    easel.go.set()
    with Painter(RunDirectory(tmp_path)) as painter:
        for n in range(3):
            painter.submit(easel.draw, str(n), n)
    assert easel.drawn == [0, 1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.png", "1.png", "2.png"]


def test_submit_does_not_wait_for_the_drawing(tmp_path):
    easel = Easel()
    painter = Painter(RunDirectory(tmp_path))
    painter.submit(easel.draw, "a")
    assert easel.begun.wait(10)
    assert easel.drawn == []
    easel.go.set()
    painter.close()
    assert easel.drawn == [None]


def test_newer_figure_for_the_same_file_replaces_a_waiting_one(tmp_path):
    easel = Easel()
    with Painter(RunDirectory(tmp_path)) as painter:
        painter.submit(easel.draw, "first")
        assert easel.begun.wait(10)
        for n in range(20):
            painter.submit(easel.draw, "loss", n)
        easel.go.set()
    assert easel.drawn == [None, 19]


def test_full_queue_drops_the_oldest_figures_of_a_kind(tmp_path):
    easel, other = Easel(), Easel()
    other.go.set()
    with Painter(RunDirectory(tmp_path)) as painter:
        painter.submit(easel.draw, "first")
        assert easel.begun.wait(10)
        painter.submit(other.draw, "ricker")
        for n in range(20):
            painter.submit(easel.draw, str(n), n)
        easel.go.set()
    assert easel.drawn == [None, *range(20 - WAITING, 20)]
    assert other.drawn == [None]


def test_failed_figure_gives_a_warning_and_the_next_one_is_drawn(tmp_path, capsys):
    easel = Easel()
    easel.go.set()

    def fail():
        raise ValueError("no paint")

    with start_log(None, rank=0), Painter(RunDirectory(tmp_path)) as painter:
        painter.submit(fail, "epoch_0010")
        painter.submit(easel.draw, "next")
    assert capsys.readouterr().out.startswith("WARNING: ")
    assert easel.drawn == [None]


def test_closed_painter_refuses_figures_and_can_be_closed_again(tmp_path):
    painter = Painter(RunDirectory(tmp_path))
    painter.close()
    painter.close()
    with pytest.raises(RuntimeError):
        painter.submit(Easel().draw, "a")
    assert not [t for t in threading.enumerate() if t.name.startswith("painter")]
