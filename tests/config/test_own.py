"""Names of what is the user's own."""

from __future__ import annotations

import pytest

from hpcfwi.config.own import find_own, name_of
from hpcfwi.errors import InputError

KNOWN = {"plain": "builtins:abs"}


@pytest.mark.parametrize("name", ["plain", "a:b", "pack.age_1:Class.method", "größe:glätten"])
def test_a_name_is_a_known_one_or_a_module_and_what_it_holds(name):
    assert name_of(KNOWN, "function")(name) == name


@pytest.mark.parametrize("name", ["", "plane", "a.b", "a:", ":b", "a:b:c", "1a:b", "a.:b", "a :b"])
def test_nothing_else_is_a_name(name):
    with pytest.raises(ValueError, match='expected "plain" or "module:function"'):
        name_of(KNOWN, "function")(name)


def test_a_known_name_stands_for_what_the_registry_says():
    assert find_own("key", "plain", KNOWN) is abs


def test_a_module_is_looked_for_where_the_command_is_given(tmp_path, monkeypatch):
    (tmp_path / "beside_the_input.py").write_text("class Own:\n    make = staticmethod(len)\n")
    monkeypatch.setattr("sys.path", ["elsewhere"])
    monkeypatch.chdir(tmp_path)
    assert find_own("key", "beside_the_input:Own.make", KNOWN) is len


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such_module:f", "ModuleNotFoundError"),
        ("math:no_such_function", "AttributeError"),
        ("math:pi", "3.14"),
        ("tests.config.fails_at_import:f", "ModuleNotFoundError"),
    ],
)
def test_what_cannot_be_imported_or_called_is_bad_input_with_the_key(name, reason):
    with pytest.raises(InputError, match=r"inversion\.key") as caught:
        find_own("inversion.key", name, KNOWN)
    assert name in str(caught.value)
    assert reason in str(caught.value)
