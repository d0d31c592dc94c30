"""The page of all keys, docs/input.md, and the pages on methods."""

from __future__ import annotations

import importlib.util

import pytest

from hpcfwi.config import Config
from hpcfwi.config.values import Choice, keys_of, meaning
from hpcfwi.registry import (
    DENOISERS,
    EQUATIONS,
    MISFITS,
    NETWORKS,
    OPTIMIZERS,
    PARAMETRIZATIONS,
    REGULARIZERS,
    WAVELETS,
)
from tests.ranks import ROOT


def load_keys():
    """Return the module of docs/keys.py, which is a script outside of packages."""
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


def test_committed_page_is_generated_from_the_schema():
    assert keys.PAGE.read_text(encoding="utf-8") == keys.make_page(), "run `make docs`"


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("equations", [*EQUATIONS, *PARAMETRIZATIONS]),
        ("misfits", MISFITS),
        ("networks", NETWORKS),
        ("optimizers", OPTIMIZERS),
        ("priors", DENOISERS),
        ("stages", [*REGULARIZERS, *WAVELETS]),
    ],
)
def test_page_on_methods_names_each_of_them(page, names):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert [name for name in names if f"`{name}`" not in text and f'"{name}"' not in text] == []


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_key_has_a_description_that_begins_with_a_sentence(section):
    for key in section.model_fields:
        words = meaning(section, key)
        assert words, f"{key} has no string under it"
        assert words.splitlines()[0].endswith("."), key


def test_page_has_values_unit_and_default_of_a_key():
    page = keys.make_page()
    assert "| `frequency` | number > 0 | Hz | required | Peak frequency. |" in page
    assert "| `order` | `2`, `4`, `6`, `8` |  | `8` | Order of the differences in space. |" in page
    assert "| `above_velocity` | number > 0, \u2264 100000 | m/s |" in page
    assert "| `bounds` | [number \u2264 100000, number \u2264 100000] or a table of" in page
