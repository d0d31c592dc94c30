"""Tests of the private directories for compiled code."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hpcfwi.errors import InputError
from hpcfwi.system import find_place, make_private, why_exposed
from tests.ranks import make_env
from tests.strangers import as_root, as_stranger, give_away

VARIABLE = "SOME_CACHE_DIR"


@pytest.fixture(autouse=True)
def look_again(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    find_place.cache_clear()
    yield
    find_place.cache_clear()


@pytest.fixture
def cache(public_folder, monkeypatch):
    """The cache directory of the user, in a folder that others may enter."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(public_folder / "cache"))
    return public_folder / "cache"


def name_it(monkeypatch, path):
    monkeypatch.setenv(VARIABLE, str(path))
    find_place.cache_clear()
    return find_place(VARIABLE, "code")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_private_directory_is_made_in_the_user_cache_with_mode_700(cache, umask):
    old = os.umask(umask)
    try:
        assert find_place(VARIABLE, "code") == (cache / "hpcfwi" / "code", "")
    finally:
        os.umask(old)
    for folder in (cache, cache / "hpcfwi", cache / "hpcfwi" / "code"):
        assert mode(folder) == 0o700
    assert list((cache / "hpcfwi" / "code").iterdir()) == []
    find_place.cache_clear()
    assert find_place(VARIABLE, "code").path


def test_private_directory_is_made_in_the_directory_of_the_variable(public_folder, monkeypatch):
    named = public_folder / "to" / "be made"
    assert name_it(monkeypatch, named) == (named / "hpcfwi", "")
    assert mode(named) == mode(named / "hpcfwi") == 0o700
    named.chmod(0o755)
    find_place.cache_clear()
    assert find_place(VARIABLE, "code").path == named / "hpcfwi"


EXPOSED = {
    "a group may write in it": (
        lambda path: path.chmod(0o770),
        r"others may write in {} \(mode 770\)",
    ),
    "all may write in it": (
        lambda path: path.chmod(0o707),
        r"others may write in {} \(mode 707\)",
    ),
    "it is a link of another user": (
        lambda path: (path.rename(path.with_name("old")), path.symlink_to("old"), give_away(path)),
        r"{} is a link of .*uid 65534",
    ),
    "it belongs to another user": (give_away, r"{} belongs to .*uid 65534"),
}


@as_root
@pytest.mark.parametrize("which", ["the directory", "one above it"])
@pytest.mark.parametrize("how", EXPOSED)
def test_directory_in_which_others_may_write_is_not_used(how, which, cache, monkeypatch):
    expose, words = EXPOSED[how]
    cache.mkdir(mode=0o755)
    exposed = cache if which == "one above it" else cache / "hpcfwi"
    (cache / "hpcfwi").mkdir(mode=0o755)
    expose(exposed)
    words = words.format(exposed)
    path, problem = find_place(VARIABLE, "code")
    assert path is None
    assert re.match(words, problem)
    with pytest.raises(InputError, match=rf"^{VARIABLE}: .* not safe for .* executed: {words}"):
        name_it(monkeypatch, cache / "hpcfwi")
    for name in ("code", "hpcfwi"):
        assert not (cache / "hpcfwi" / name).exists()


@pytest.mark.parametrize("bits", [0o750, 0o705, 0o770])
def test_existing_directory_open_to_others_is_not_used(cache, bits):
    place = cache / "hpcfwi" / "code"
    make_private(place)
    place.chmod(bits)
    path, problem = find_place(VARIABLE, "code")
    assert path is None
    assert f"{place} " in problem
    assert f"(mode {bits:o})" in problem


@as_root
def test_directory_of_another_user_is_not_used(cache):
    place = cache / "hpcfwi" / "code"
    make_private(place)
    give_away(place)
    assert "belongs to" in find_place(VARIABLE, "code").problem


def test_group_writable_directory_below_a_private_one_is_accepted(cache):
    """Many clusters use a group for each user and the umask 002."""
    (cache / "home" / ".cache").mkdir(parents=True)
    (cache / "home").chmod(0o700)
    (cache / "home" / ".cache").chmod(0o775)
    assert why_exposed(cache / "home" / ".cache" / "code") is None
    (cache / "home").chmod(0o710)
    assert "others may write" in why_exposed(cache / "home" / ".cache" / "code")


def test_link_from_a_private_directory_to_an_open_one_is_refused(cache):
    (cache / "home").mkdir(parents=True, mode=0o700)
    (cache / "scratch").mkdir()
    (cache / "scratch").chmod(0o775)
    (cache / "home" / ".cache").symlink_to(cache / "scratch")
    assert "scratch (mode 775)" in why_exposed(cache / "home" / ".cache" / "code")
    (cache / "scratch").chmod(0o755)
    assert why_exposed(cache / "home" / ".cache" / "code") is None


def test_sticky_parent_directory_is_accepted(cache):
    cache.mkdir()
    cache.chmod(0o1777)
    assert find_place(VARIABLE, "code").path == cache / "hpcfwi" / "code"


IN_THE_WAY = {
    "a file": lambda path: path.write_text(""),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nowhere": lambda path: path.symlink_to("/proc/nowhere"),
}


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_unusable_cache_directory_is_reported(what, cache):
    IN_THE_WAY[what](cache)
    path, problem = find_place(VARIABLE, "code")
    assert path is None
    assert "cannot be written (" in problem


def test_unwritable_directory_of_the_variable_is_not_used(monkeypatch):
    path, problem = name_it(monkeypatch, Path("/proc/self"))
    assert path is None
    assert problem.startswith("/proc/self/hpcfwi cannot be written (")


HOMELESS = """
from hpcfwi.system import find_place
print(find_place("SOME_CACHE_DIR", "code").problem)
"""


@as_root
@pytest.mark.parametrize(
    ("home", "says"),
    [
        ({"HOME": "/nonexistent"}, "/nonexistent/.cache/hpcfwi/code cannot be written"),
        ({}, "(Permission denied)"),
        ({"XDG_CACHE_HOME": "/usr/share"}, "/usr/share/hpcfwi/code cannot be written"),
    ],
)
def test_user_without_a_home_has_no_private_directory(home, says, public_folder):
    environment = {k: v for k, v in make_env().items() if k not in ("HOME", "XDG_CACHE_HOME")}
    done = subprocess.run(
        as_stranger(sys.executable, "-c", HOMELESS),
        env=environment | home,
        cwd=public_folder,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert says in done.stdout
    assert list(public_folder.iterdir()) == []


def test_unknown_user_has_no_private_directory(monkeypatch, public_folder):
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: Path("~/.cache") / name)
    monkeypatch.chdir(public_folder)
    assert find_place(VARIABLE, "code") == (None, "this user has no home directory")
    assert list(public_folder.iterdir()) == []


@as_root
@pytest.mark.parametrize("what_then", ["it stays", "it is moved away"])
def test_directory_made_meanwhile_by_another_user_is_not_used(what_then, cache, monkeypatch):
    """If all users may make directories, as in /tmp, another user can be faster."""
    cache.mkdir()
    cache.chmod(0o1777)

    def be_faster(directory):
        (cache / "hpcfwi").mkdir()
        (cache / "hpcfwi").chmod(0o777)
        give_away(cache / "hpcfwi")
        make_private(directory)
        if what_then == "it is moved away":
            (cache / "hpcfwi").rename(cache / "to come back")

    monkeypatch.setattr("hpcfwi.system.make_private", be_faster)
    path, problem = find_place(VARIABLE, "code")
    assert path is None
    assert "belongs to" in problem or "has been removed" in problem
