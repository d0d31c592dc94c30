"""Names of methods, which may be in a module of the user."""

from __future__ import annotations

import math
import sys

import pytest

from hpcfwi.config.values import find_plugin, name_of
from hpcfwi.errors import InputError
from tests.strangers import as_root, give_away

KNOWN = {"plain": "builtins:abs"}


@pytest.mark.parametrize("name", ["plain", "a:b", "pack.age_1:Class.method", "größe:glätten"])
def test_known_name_or_module_path_is_accepted(name):
    assert name_of(KNOWN, "function")(name) == name


@pytest.mark.parametrize("name", ["", "plane", "a.b", "a:", ":b", "a:b:c", "1a:b", "a.:b", "a :b"])
def test_malformed_name_is_refused(name):
    with pytest.raises(ValueError, match='expected "plain" or "module:function"'):
        name_of(KNOWN, "function")(name)


def test_known_name_is_found_in_the_registry():
    assert find_plugin("key", "plain", KNOWN, None) is abs


@pytest.fixture
def plugin(public_folder, monkeypatch):
    """Return a module that no test has imported, in a folder that all users may read."""
    monkeypatch.setattr("sys.path", [*sys.path])
    name = f"own_{public_folder.name}"
    file = public_folder / f"{name}.py"
    file.write_text("class Own:\n    make = staticmethod(len)\n")
    file.chmod(0o644)
    yield file
    sys.modules.pop(name, None)


def test_module_is_found_in_the_folder_and_not_in_the_current_directory(plugin, monkeypatch):
    monkeypatch.chdir(plugin.parent)
    name = f"{plugin.stem}:Own.make"
    with pytest.raises(InputError, match="PYTHONPATH"):
        find_plugin("key", name, KNOWN, None)
    assert find_plugin("key", name, KNOWN, str(plugin.parent)) is len


@pytest.mark.parametrize(
    ("which", "mode"), [("folder", 0o777), ("folder", 0o1777), ("file", 0o666), ("cache", 0o775)]
)
def test_module_that_others_may_write_is_not_imported(which, mode, plugin):
    name, cache = f"{plugin.stem}:Own.make", plugin.parent / "__pycache__"
    cache.mkdir()
    {"folder": plugin.parent, "file": plugin, "cache": cache}[which].chmod(mode)
    with pytest.raises(InputError, match="others may write in") as caught:
        find_plugin("inversion.key", name, KNOWN, str(plugin.parent))
    assert "chmod go-w" in str(caught.value)
    assert plugin.stem not in sys.modules
    for path in (plugin.parent, plugin, cache):
        path.chmod(path.stat().st_mode & ~0o1022)
    assert find_plugin("inversion.key", name, KNOWN, str(plugin.parent)) is len


@as_root
@pytest.mark.parametrize("which", ["folder", "file"])
def test_module_of_another_user_is_not_imported(which, plugin):
    give_away(plugin.parent if which == "folder" else plugin)
    with pytest.raises(InputError, match="belongs to nobody"):
        find_plugin("inversion.key", f"{plugin.stem}:Own.make", KNOWN, str(plugin.parent))
    assert plugin.stem not in sys.modules


@as_root
@pytest.mark.parametrize(
    "stranger",
    ["{0}.so", "{0}.pyc", "__pycache__/{0}.cpython-311.pyc", "beside.py", "{0}/__init__.py"],
)
def test_folder_with_any_module_of_another_user_is_not_imported_from(stranger, plugin):
    path = plugin.parent / stranger.format(plugin.stem)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    give_away(path)
    with pytest.raises(InputError, match=f"{path.name} belongs to nobody"):
        find_plugin("inversion.key", f"{plugin.stem}:Own.make", KNOWN, str(plugin.parent))
    assert plugin.stem not in sys.modules


def test_module_on_python_path_is_imported_despite_unsafe_folder(public_folder):
    public_folder.chmod(0o777)
    assert find_plugin("key", "math:floor", KNOWN, str(public_folder)) is math.floor


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such_module:f", "ModuleNotFoundError"),
        ("math:no_such_function", "AttributeError"),
        ("math:pi", "3.14"),
        ("tests.config.fails_at_import:f", "ModuleNotFoundError"),
    ],
)
def test_name_that_cannot_be_imported_or_called_is_refused_with_key(name, reason):
    with pytest.raises(InputError, match=r"inversion\.key") as caught:
        find_plugin("inversion.key", name, KNOWN, None)
    assert name in str(caught.value)
    assert reason in str(caught.value)
