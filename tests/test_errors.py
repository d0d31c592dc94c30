"""Messages: whole where names are as long as they may be, and short whatever they quote."""

from __future__ import annotations

from hpcfwi.errors import InputError, first_line


def test_a_message_shows_all_of_the_longest_path():
    path = "/".join(["folder"] * 585)
    assert len(path) == 4094
    assert str(InputError(path, "there is no such file", "Check.")).startswith(f"{path}: there")


def test_a_message_leaves_out_the_middle_of_what_is_no_path():
    message = str(InputError("input.toml", f"no file '{'[' * 10**6}' is there", "Give another."))
    assert message.startswith("input.toml: no file '[[[")
    assert message.endswith("[[[' is there. Give another.")
    assert len(message) < 5100


def test_an_error_without_a_message_is_told_by_its_type():
    assert first_line(EOFError()) == "EOFError"
    assert first_line(RuntimeError("one\ntwo")) == "one"
