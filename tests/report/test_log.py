"""Tests of the log of a run, on the screen and in its file."""

import io
import logging
import re
import sys

import pytest

from hpcfwi.errors import InputError
from hpcfwi.report.log import start_log

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
