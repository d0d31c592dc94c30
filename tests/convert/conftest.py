"""Fixtures that call `hpcfwi convert`."""

from __future__ import annotations

import pytest


@pytest.fixture
def convert(hpcfwi, tmp_path):
    """A function that converts a file in `tmp_path` to another and returns its path."""

    def call(source, target, *options):
        assert hpcfwi("convert", tmp_path / source, tmp_path / target, *options) == 0
        return tmp_path / target

    return call


@pytest.fixture
def refuse(hpcfwi, tmp_path, capsys):
    """A function that returns the message, of one line, of a conversion that is refused."""

    def call(source, target, *options):
        capsys.readouterr()
        assert hpcfwi("convert", tmp_path / source, tmp_path / target, *options) == 2
        message = capsys.readouterr().err
        assert message.startswith("hpcfwi: ")
        assert message.count("\n") == 1
        return message

    return call
