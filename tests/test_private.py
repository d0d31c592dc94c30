"""Compiled code is kept where nobody else can have put any, and nowhere else."""

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
    """The user's cache directory, in a place that everybody may enter."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(public_folder / "cache"))
    return public_folder / "cache"


def name_it(monkeypatch, path):
    monkeypatch.setenv(VARIABLE, str(path))
    find_place.cache_clear()
    return find_place(VARIABLE, "code")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_private_directory_is_made_in_the_user_s_cache_for_this_user_alone(cache, umask):
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


def test_private_directory_is_made_in_the_directory_that_is_named(public_folder, monkeypatch):
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
    "it is a link of somebody else": (
        lambda path: (path.rename(path.with_name("old")), path.symlink_to("old"), give_away(path)),
        r"{} is a link of .*uid 65534",
    ),
    "it belongs to somebody else": (give_away, r"{} belongs to .*uid 65534"),
}


@as_root
@pytest.mark.parametrize("which", ["the directory", "one above it"])
@pytest.mark.parametrize("how", EXPOSED)
def test_a_directory_in_which_others_may_put_something_is_not_used(how, which, cache, monkeypatch):
    expose, words = EXPOSED[how]
    cache.mkdir(mode=0o755)
    exposed = cache if which == "one above it" else cache / "hpcfwi"
    (cache / "hpcfwi").mkdir(mode=0o755)
    expose(exposed)
    words = words.format(exposed)
    path, problem = find_place(VARIABLE, "code")
    assert path is None
    assert re.match(words, problem)
    with pytest.raises(InputError, match=rf"^{VARIABLE}: .* no place for .* executed, as {words}"):
        name_it(monkeypatch, cache / "hpcfwi")
    for name in ("code", "hpcfwi"):
        assert not (cache / "hpcfwi" / name).exists()


@pytest.mark.parametrize("bits", [0o750, 0o705, 0o770])
def test_what_is_open_to_others_was_not_made_here(cache, bits):
    place = cache / "hpcfwi" / "code"
    make_private(place)
    place.chmod(bits)
    path, problem = find_place(VARIABLE, "code")
    assert path is None
    assert f"{place} " in problem
    assert f"(mode {bits:o})" in problem


@as_root
def test_what_a_stranger_has_made_is_not_used_though_it_is_closed(cache):
    place = cache / "hpcfwi" / "code"
    make_private(place)
    give_away(place)
    assert "belongs to" in find_place(VARIABLE, "code").problem


def test_a_group_may_write_where_it_cannot_get(cache):
    """Many a cluster gives users groups of their own, and umask 002."""
    (cache / "home" / ".cache").mkdir(parents=True)
    (cache / "home").chmod(0o700)
    (cache / "home" / ".cache").chmod(0o775)
    assert why_exposed(cache / "home" / ".cache" / "code") is None
    (cache / "home").chmod(0o710)
    assert "others may write" in why_exposed(cache / "home" / ".cache" / "code")


def test_a_link_out_of_a_closed_directory_leads_into_the_open(cache):
    (cache / "home").mkdir(parents=True, mode=0o700)
    (cache / "scratch").mkdir()
    (cache / "scratch").chmod(0o775)
    (cache / "home" / ".cache").symlink_to(cache / "scratch")
    assert "scratch (mode 775)" in why_exposed(cache / "home" / ".cache" / "code")
    (cache / "scratch").chmod(0o755)
    assert why_exposed(cache / "home" / ".cache" / "code") is None


def test_a_directory_like_tmp_is_good_enough_on_the_way(cache):
    cache.mkdir()
    cache.chmod(0o1777)
    assert find_place(VARIABLE, "code").path == cache / "hpcfwi" / "code"


IN_THE_WAY = {
    "a file": lambda path: path.write_text(""),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nowhere": lambda path: path.symlink_to("/proc/nowhere"),
}


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_where_there_is_no_place_that_is_said(what, cache):
    IN_THE_WAY[what](cache)
    path, problem = find_place(VARIABLE, "code")
    assert path is None
    assert "cannot be written (" in problem


def test_a_named_directory_that_cannot_be_written_is_done_without(monkeypatch):
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
def test_a_stranger_without_a_home_has_no_place(home, says, public_folder):
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


def test_a_user_whom_this_host_does_not_know_has_no_place(monkeypatch, public_folder):
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: Path("~/.cache") / name)
    monkeypatch.chdir(public_folder)
    assert find_place(VARIABLE, "code") == (None, "this user has no home directory")
    assert list(public_folder.iterdir()) == []


@as_root
@pytest.mark.parametrize("what_then", ["it stays", "it is moved away"])
def test_what_a_stranger_makes_in_between_is_not_used(what_then, cache, monkeypatch):
    """Where all may make directories, as in /tmp, somebody may be faster than this process."""
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
    assert "belongs to" in problem or "has taken" in problem
