"""Tests of the cache of compiled loops, which must be private to the user."""

from __future__ import annotations

import ast
import errno
import fcntl
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numba
import pytest
from numba.core.caching import FunctionCache

from hpcfwi.system import find_place
from hpcfwi.wave.engines.cpu import compilation, sweeps
from tests.fuzz.commands import check_only, message_of
from tests.inversion.examples import write_input
from tests.ranks import make_env
from tests.strangers import as_root, as_stranger

LOOPS = (sweeps.sweep_forward, sweeps.sweep_backward)
NOT_KEPT = "The cpu engine is compiled for this process only, because "


@pytest.fixture(autouse=True)
def as_at_the_start(
    public_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    """Restore the state before the first simulation, with an empty user cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(public_folder / "cache"))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    caplog.set_level(logging.INFO, "hpcfwi")
    caches = [loop._cache for loop in LOOPS]
    functions = (find_place, compilation.keep_loops, compilation._say_not_kept)
    for function in functions:
        function.cache_clear()
    yield
    for loop, cache in zip(LOOPS, caches, strict=True):
        loop._cache = cache
    for function in functions:
        function.cache_clear()


def test_compiled_loops_are_cached_in_the_private_user_cache(
    public_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = numba.config.CACHE_DIR
    compilation.keep_loops()
    for loop in LOOPS:
        place = Path(loop.stats.cache_path)
        assert place.parent == public_folder / "cache" / "hpcfwi" / "numba"
        assert place.parent.stat().st_mode & 0o777 == 0o700
    assert before == numba.config.CACHE_DIR
    assert caplog.messages == []


def test_numba_cache_dir_selects_the_cache_directory(
    public_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(public_folder / "named"))
    compilation.keep_loops()
    for loop in LOOPS:
        assert Path(loop.stats.cache_path).parent == public_folder / "named" / "hpcfwi"


def test_cache_directory_writable_by_others_is_refused(
    tmp_path: Path, public_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = public_folder / "named"
    named.mkdir()
    named.chmod(0o775)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(named))
    path = write_input(tmp_path, {"wave.engine": "cpu"})
    message = message_of(check_only("run", path))
    assert message.startswith(f"NUMBA_CACHE_DIR: {named}: not safe for code that will be executed")
    assert f"others may write in {named} (mode 775)" in message
    assert "chmod 700" in message
    assert list(named.iterdir()) == []
    assert not (tmp_path / "run").exists()


def test_default_cache_that_is_not_private_gives_one_warning(
    public_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = public_folder / "cache" / "hpcfwi" / "numba"
    place.mkdir(parents=True)
    for loop in LOOPS:
        loop._cache = None
    for _ in range(2):
        compilation.find_disk()
        compilation.keep_loops()
    assert [loop._cache for loop in LOOPS] == [None, None]
    assert caplog.messages == [
        f"{NOT_KEPT}{place} is open to others (mode 755); "
        "NUMBA_CACHE_DIR may name a directory that only you can access"
    ]
    assert caplog.records[0].levelname == "WARNING"


def test_exceeded_quota_while_caching_gives_only_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compilation.keep_loops()

    def no_space(*_: object) -> None:
        raise OSError(122, os.strerror(122))

    monkeypatch.setattr(FunctionCache, "save_overload", no_space)
    for loop in LOOPS:
        loop._cache.save_overload(None, None)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(NOT_KEPT)
    assert "cannot be written (Disk quota exceeded)" in caplog.messages[0]


class Gone:
    """A type of an earlier edition."""


def test_cache_of_an_earlier_edition_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(compilation, "edition", lambda: "earlier")
        earlier.setattr(compilation, "Gone", Gone, raising=False)
        earlier.setattr(Gone, "__module__", compilation.__name__)
        compilation.keep_loops()
        index = LOOPS[0]._cache._cache_file
        index._save_index({Gone: "sweep_forward.1.nbc"})
        assert index._load_index() == {Gone: "sweep_forward.1.nbc"}
    compilation.keep_loops.cache_clear()
    compilation.keep_loops()
    assert LOOPS[0]._cache._cache_file._load_index() == {}


def test_loop_compiled_by_another_process_is_waited_for_and_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[str] = []
    caches = []
    for _ in range(2):
        compilation.keep_loops.cache_clear()
        compilation.keep_loops()
        caches.append(LOOPS[0]._cache)
    cache, other = caches
    monkeypatch.setattr(FunctionCache, "load_overload", lambda *_: kept[0] if kept else None)
    monkeypatch.setattr(FunctionCache, "save_overload", lambda _, __, loop: kept.append(loop))
    assert cache.load_overload("signature", None) is None, "the first process compiles the loop"
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(other.load_overload, "signature", None)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=5 * compilation.POLL)
        cache.save_overload("signature", "compiled")
        assert waiting.result() == "compiled"


@pytest.mark.parametrize("trouble", ["the holder hangs", "no locks"])
def test_compile_lock_is_ignored_after_its_timeout_or_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    monkeypatch.setattr(compilation, "LOCK_WAIT", 3 * compilation.POLL)
    with compilation.taking_turns(tmp_path / "lock") as waited:
        assert not waited
        if trouble == "no locks":

            def refuse(*_: object) -> None:
                raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

            monkeypatch.setattr(fcntl, "flock", refuse)
        with compilation.taking_turns(tmp_path / "lock") as waited:
            assert waited == (trouble == "the holder hangs")


def imported(path: Path) -> set[str]:
    """Return the modules from which a source file imports what compiled loops may contain.

    These are the modules of the engine, and others of which constants are imported.
    """
    package = sweeps.__name__.rpartition(".")[0]
    return {
        str(node.module)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("hpcfwi.")
        if str(node.module).startswith(package) or any(each.name.isupper() for each in node.names)
    }


def test_edition_covers_every_module_that_the_loops_import() -> None:
    sources = {module.__name__: Path(str(module.__file__)) for module in compilation.SOURCES}
    assert sweeps.__name__ in sources
    for path in sources.values():
        assert imported(path) <= set(sources)


def test_changed_source_gives_another_edition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editions = set()
    for content in ("HALO = 4", "HALO = 5"):
        (tmp_path / "layout.py").write_text(content)
        source = SimpleNamespace(__file__=str(tmp_path / "layout.py"))
        monkeypatch.setattr(compilation, "SOURCES", (sweeps, source))
        editions.add(compilation.edition())
    assert len(editions) == 2


def test_loops_of_another_edition_are_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    compilation.keep_loops()
    sweeps.sweep_forward._cache._cache_file.save("signature", "compiled")
    loaded = []
    for edition in (compilation.edition(), "another"):
        monkeypatch.setattr(compilation, "edition", lambda edition=edition: edition)
        compilation.keep_loops.cache_clear()
        compilation.keep_loops()
        loaded.append(sweeps.sweep_forward._cache._cache_file.load("signature"))
    assert loaded == ["compiled", None]


# A stand-in for the loops, which compiles fast and is cached in the same way
STANDING_STILL = """
from types import SimpleNamespace
from hpcfwi.cli import main
from hpcfwi.wave.engines.cpu import engine, sweeps
from hpcfwi.wave.engines.cpu.jit import loop

@loop
def stand_still(shot, fields, span, tape, kept, team):
    pass

for module in (engine, sweeps):
    module.sweep_forward = module.sweep_backward = stand_still
# Traces are not computed, but must be finite
engine.np = SimpleNamespace(**{**vars(engine.np), "empty": engine.np.zeros})
main()
"""


@as_root
def test_user_without_a_home_can_simulate_with_one_warning(
    public_folder: Path,
) -> None:
    path = write_input(public_folder, {"wave.engine": "cpu"})
    for entry in (public_folder, *public_folder.rglob("*")):
        entry.chmod(0o777 if entry.is_dir() else 0o666)
    run = public_folder / "run"
    outside = ("XDG_CACHE_HOME", "PYTEST_CURRENT_TEST")
    environment = {k: v for k, v in make_env().items() if k not in outside}
    done = subprocess.run(
        as_stranger(sys.executable, "-c", STANDING_STILL, "forward", path),
        env=environment | {"HOME": "/nonexistent", "MPLCONFIGDIR": str(public_folder)},
        cwd=public_folder,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (run / "observed.h5").exists()
    for text in (done.stdout, (run / "log.txt").read_text()):
        assert text.count(NOT_KEPT) == 1
        assert text.count(f"{NOT_KEPT}/nonexistent/.cache/hpcfwi/numba cannot be written") == 1
