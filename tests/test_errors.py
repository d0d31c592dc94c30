"""Tests of the length of error messages."""

from __future__ import annotations

from hpcfwi.errors import InputError, first_line


def test_message_contains_the_whole_of_a_long_path():
    path = "/".join(["folder"] * 585)
    assert len(path) == 4094
    assert str(InputError(path, "there is no such file", "Check.")).startswith(f"{path}: there")


def test_message_leaves_out_the_middle_of_a_long_quotation():
    message = str(InputError("input.toml", f"no file '{'[' * 10**6}' is there", "Give another."))
    assert message.startswith("input.toml: no file '[[[")
    assert message.endswith("[[[' is there. Give another.")
    assert len(message) < 5100


def test_first_line_of_an_error_without_message_is_its_type():
    assert first_line(EOFError()) == "EOFError"
    assert first_line(RuntimeError("one\ntwo")) == "one"
