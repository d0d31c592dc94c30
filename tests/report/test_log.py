"""Tests of the log and of the progress of a run."""

import fcntl
import io
import logging
import os
import pty
import re
import struct
import sys
import termios

import pytest

from hpcfwi.errors import InputError
from hpcfwi.report import text as module
from hpcfwi.report.text import Progress, start_log, terminal_width

logger = logging.getLogger("hpcfwi.somewhere")


def test_rank_0_shows_plain_messages_and_marks_warnings(capsys):
    with start_log(None, rank=0):
        logger.info("reading %s", "a model")
        logger.warning("shot 3 is set aside")
    assert capsys.readouterr().out == "reading a model\nWARNING: shot 3 is set aside\n"


def test_other_ranks_show_only_warnings_on_stderr_with_their_number(capsys, tmp_path):
    with start_log(tmp_path / "log.txt", rank=3):
        logger.info("reading")
        logger.warning("shot 3 is set aside")
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "rank 3: WARNING: shot 3 is set aside\n")
    assert not (tmp_path / "log.txt").exists()


def test_warnings_of_the_wave_package_are_shown_by_rank_0_only(capsys):
    for rank in (0, 1):
        with start_log(None, rank):
            logging.getLogger("hpcfwi.wave.engines").warning("compiled anew")
    output = capsys.readouterr()
    assert (output.out, output.err) == ("WARNING: compiled anew\n", "")


def test_log_file_gets_every_message_with_its_time_appended(tmp_path):
    path = tmp_path / "läuft gut" / "log.txt"
    path.parent.mkdir()
    for message in ("first run", "second rün"):
        with start_log(path, rank=0, quiet=True):
            logger.info(message)
    lines = path.read_text(encoding="utf-8").splitlines()
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
    assert re.fullmatch(f"{time} INFO +first run", lines[0])
    assert re.fullmatch(f"{time} INFO +second rün", lines[1])
    assert len(lines) == 2


def test_quiet_log_shows_only_warnings(capsys):
    with start_log(None, rank=0, quiet=True):
        logger.info("reading")
        logger.warning("careful")
    assert capsys.readouterr().out == "WARNING: careful\n"


def test_nested_start_of_the_log_does_not_duplicate_messages(capsys, tmp_path):
    path = tmp_path / "log.txt"
    with start_log(path, rank=0):
        with start_log(path, rank=0):
            logger.info("once")
        logger.info("afterwards")
    assert capsys.readouterr().out == "once\nafterwards\n"
    assert path.read_text().count("once") == 1


def test_handler_of_the_root_logger_does_not_duplicate_messages(capsys):
    handler = logging.StreamHandler(sys.stdout)
    logging.getLogger().addHandler(handler)
    try:
        with start_log(None, rank=0):
            logger.info("once")
    finally:
        logging.getLogger().removeHandler(handler)
    assert capsys.readouterr().out == "once\n"


def test_message_after_the_end_of_the_log_is_not_shown(capsys):
    with start_log(None, rank=0):
        pass
    logger.info("too late")
    assert capsys.readouterr().out == ""
    assert logging.getLogger("hpcfwi").propagate


def test_letters_missing_in_the_encoding_of_the_screen_are_escaped(monkeypatch):
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", screen)
    with start_log(None, rank=0):
        logger.info("reading größe.h5")
    screen.seek(0)
    assert screen.read() == "reading gr\\xf6\\xdfe.h5\n"


def test_link_in_place_of_the_log_file_is_refused(tmp_path):
    path, precious = tmp_path / "log.txt", tmp_path / "precious"
    precious.write_text("precious")
    path.symlink_to(precious)
    with (
        pytest.raises(InputError, match=r"log\.txt: this is a symbolic link"),
        start_log(path, rank=0),
    ):
        pass
    with start_log(path, rank=1):
        pass
    assert precious.read_text() == "precious"


def test_log_file_that_cannot_be_written_is_an_input_error(tmp_path):
    with (
        pytest.raises(InputError, match=r"log\.txt"),
        start_log(tmp_path / "missing" / "log.txt", rank=0),
    ):
        pass


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that changes only when its `now` is set."""

    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setenv("TERM", "xterm")
    return clock


def test_batch_log_gets_one_plain_line_per_epoch(clock):
    out = io.StringIO()
    with Progress(12, stream=out) as progress:
        clock.now = 5.0
        progress.advance(misfit=1.5e-4, errors="352.1 m/s")
        clock.now = 10.0
        progress.advance(misfit=1.2e-4)
    assert out.getvalue().splitlines() == [
        "epoch  1/12  misfit 1.5000e-04  error 352.1 m/s  5 s/epoch  left 55 s",
        "epoch  2/12  misfit 1.2000e-04  5 s/epoch  left 50 s",
    ]


def test_progress_of_a_continued_run_starts_at_its_epoch(clock):
    out = io.StringIO()
    with Progress(1001, done=1, stream=out) as progress:
        clock.now = 10.0
        progress.advance()
    assert out.getvalue() == "epoch    2/1001  10 s/epoch  left 2 h 46 min\n"


def test_remaining_time_is_not_affected_by_a_slow_first_epoch(clock):
    out = io.StringIO()
    with Progress(103, stream=out) as progress:
        for seconds in (60.0, 1.0, 1.0):
            clock.now += seconds
            progress.advance()
    assert out.getvalue().endswith("1 s/epoch  left 1 min 40 s\n")


def test_shots_are_logged_at_every_tenth_of_them(clock):
    out = io.StringIO()
    with Progress(341, unit="shot", every=0.1, stream=out) as progress:
        for _ in range(341):
            clock.now += 2.0
            progress.advance()
    lines = out.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("shot  35/341  2 s/shot")
    assert lines[-1].startswith("shot 341/341")


def test_time_per_unit_is_shared_by_units_completed_together(clock):
    out = io.StringIO()
    with Progress(16, unit="shot", stream=out) as progress:
        clock.now = 4.0
        progress.advance(8)
        progress.advance(0)
    assert out.getvalue() == "shot  8/16  0.5 s/shot  left 4 s\n"


def test_terminal_gets_a_live_bar(clock):
    out = Terminal()
    with Progress(20, stream=out) as progress:
        clock.now = 5.0
        progress.advance(misfit=1.5e-4, errors="352.1 m/s")
    text = out.getvalue()
    assert "\x1b[" in text
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    assert "epoch  1/20  misfit 1.5000e-04  error 352.1 m/s  5 s/epoch" in plain


@pytest.mark.usefixtures("clock")
def test_exception_removes_the_live_bar():
    out = Terminal()
    progress = Progress(20, stream=out)
    with pytest.raises(KeyError), progress:
        raise KeyError
    assert out.getvalue().endswith("\x1b[?25h")  # the cursor is shown again


@pytest.mark.usefixtures("clock")
def test_messages_appear_above_the_live_bar(monkeypatch):
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    with start_log(None, rank=0), Progress(20):
        logging.getLogger("hpcfwi.x").warning("shot [3] is set aside")
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue()).splitlines()
    assert "WARNING: shot [3] is set aside" in [line.strip() for line in lines]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_progress_shows_nothing_when_quiet_or_on_other_ranks(stream):
    out = stream()
    for options in ({"quiet": True}, {"enabled": False}):
        with Progress(3, stream=out, **options) as progress:
            progress.advance(misfit=1.0)
    assert out.getvalue() == ""


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("stream", "options"), [(io.StringIO, {}), (Terminal, {}), (Terminal, {"quiet": True})]
)
def test_progress_lines_go_to_the_log_file_and_not_twice_to_the_screen(
    tmp_path, capsys, stream, options
):
    with (
        start_log(tmp_path / "log.txt", rank=0),
        Progress(2, stream=stream(), **options) as progress,
    ):
        progress.advance(misfit=1.0)
    assert (tmp_path / "log.txt").read_text().count("epoch 1/2  misfit 1.0000e+00") == 1
    assert capsys.readouterr().out == ""


def test_file_and_dumb_terminal_have_no_terminal_width(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert terminal_width(io.StringIO()) is None
    assert terminal_width(Terminal()) == 80
    monkeypatch.setenv("TERM", "dumb")
    assert terminal_width(Terminal()) is None


def test_pseudo_terminal_without_a_size_has_no_terminal_width(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    ours, its = pty.openpty()
    with os.fdopen(its, "w") as out:
        assert terminal_width(out) is None
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 97, 0, 0))
        assert terminal_width(out) == 97
    os.close(ours)
