"""Tests of the choice of tiles, which are timed once for a GPU and stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from hpcfwi.system import find_place
from hpcfwi.wave.engines.gpu.device import CANDIDATES, LARGE, Tile, find_tile


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "compiled"))
    find_place.cache_clear()
    yield tmp_path / "compiled" / "hpcfwi"
    find_place.cache_clear()


def never(_: Tile) -> float:
    pytest.fail("a tile was timed")


def test_small_problem_uses_the_first_tile_without_timing() -> None:
    assert find_tile("card", 2, LARGE - 1, never) == CANDIDATES[2][0]


def test_fastest_tile_is_used_and_timed_once() -> None:
    best = CANDIDATES[3][-1]
    assert find_tile("card", 3, LARGE, lambda tile: float(tile != best)) == best
    assert find_tile("card", 3, 1, never) == best
    assert find_tile("another card", 3, 1, never) != best


def test_tile_of_one_card_is_kept_when_another_is_timed() -> None:
    best = CANDIDATES[2][-1]
    find_tile("card", 2, LARGE, lambda tile: float(tile != best))
    find_tile("another card", 2, LARGE, lambda _: 1.0)
    assert find_tile("card", 2, 1, never) == best


def test_stored_tile_that_is_not_a_candidate_is_replaced(cache: Path) -> None:
    best = CANDIDATES[3][-1]
    find_tile("card", 3, LARGE, lambda _: 1.0)
    file = cache / "tiles.json"
    file.write_text(json.dumps({"card": {"z": 1, "y": 2, "x": 3, "warps": 4}}))
    assert find_tile("card", 3, LARGE, lambda tile: float(tile != best)) == best
    assert json.loads(file.read_text())["card"] == asdict(best)


def test_damaged_tile_file_is_replaced(cache: Path) -> None:
    best = CANDIDATES[2][-1]
    find_tile("card", 2, LARGE, lambda _: 1.0)
    (cache / "tiles.json").write_text("{")
    assert find_tile("card", 2, LARGE, lambda tile: float(tile != best)) == best
    assert find_tile("card", 2, 1, never) == best
    assert [path.name for path in cache.iterdir()] == ["tiles.json"]


def test_tiles_are_timed_each_time_without_a_cache(cache: Path) -> None:
    cache.parent.write_text("a file in the place of the cache")
    for best in CANDIDATES[2][-2:]:
        assert find_tile("card", 2, LARGE, lambda tile, best=best: float(tile != best)) == best
