"""docs/input.md says what the schema says, of every key."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from hpcfwi.config import Config
from hpcfwi.config.values import Choice, keys_of, meaning

ROOT = Path(__file__).resolve().parents[2]


def load_keys():
    """docs/keys.py, which is a script and not in a package."""
    spec = importlib.util.spec_from_file_location("keys", ROOT / "docs" / "keys.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


keys = load_keys()


def tables(section):
    if issubclass(section, Choice):
        yield from map(keys_of, section.registry.values())
        return
    yield section
    for field in section.model_fields.values():
        for table in keys.sections(field):
            yield from tables(table)


SECTIONS = list(dict.fromkeys(tables(Config)))[1:]


def test_the_committed_page_is_what_the_schema_makes():
    assert keys.PAGE.read_text(encoding="utf-8") == keys.make_page(), "run `make docs`"


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_key_has_a_meaning_that_begins_with_a_sentence(section):
    for key in section.model_fields:
        words = meaning(section, key)
        assert words, f"{key} has no string under it"
        assert words.splitlines()[0].endswith("."), key


def test_a_key_has_its_values_unit_and_default_in_the_page():
    page = keys.make_page()
    assert "| `frequency` | number > 0 | Hz | required | Peak frequency. |" in page
    assert "| `order` | `2`, `4`, `6`, `8` |  | `8` | Order of the differences in space. |" in page
    assert (
        "| `bounds` | [number > 0, \u2264 100000, number > 0, \u2264 100000] or a table of" in page
    )
