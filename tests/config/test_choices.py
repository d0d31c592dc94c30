"""Choices of methods in the input, whose keys are keyword-only parameters."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Annotated, ClassVar

import pytest
from pydantic import Field, ValidationError

from hpcfwi.config.values import Choice, Section, find_choices, keys_of
from hpcfwi.registry import MISFITS, NETWORKS, OPTIMIZERS, REGULARIZERS

Width = Annotated[float, Field(gt=0.0, description="Width of the middle.")]


def plain(a, b):
    """Return the sum."""
    return a + b


def wide(a, b, *, width: Width, times: int = 2):
    """Return a multiple of the sum."""
    return times * (a + b) / width


@pytest.fixture
def choose(monkeypatch):
    """Return a parser of a choice of the two functions above, in a module that can be imported."""
    module = ModuleType("methods")
    vars(module).update(plain=plain, wide=wide)
    monkeypatch.setitem(sys.modules, "methods", module)

    class Chosen(Choice):
        registry: ClassVar = {"plain": "methods:plain", "wide": "methods:wide"}
        name: str

    return Chosen.model_validate


def test_name_alone_is_a_method_without_keys(choose):
    assert choose("plain").bind()(1, 2) == 3
    assert choose("plain") == choose({"name": "plain"})


@pytest.mark.usefixtures("choose")
def test_choice_may_have_another_key_for_the_name():
    class Other(Choice):
        registry: ClassVar = {"plain": "methods:plain"}
        naming: ClassVar = "kind"
        kind: str

    assert Other.model_validate("plain") == Other.model_validate({"kind": "plain"})
    assert Other.model_validate("plain").bind()(1, 2) == 3
    assert Other.own_keys() == {}


def test_given_keys_and_defaults_reach_the_method(choose):
    assert choose({"name": "wide", "width": 0.5}).bind()(1, 2) == 12
    assert choose({"name": "wide", "width": 0.5, "times": 1}).bind()(1, 2) == 6


@pytest.mark.parametrize(
    "keys", [{}, {"width": 0.0}, {"width": "1"}, {"width": 1.0, "depth": 2.0}, {"times": 3}]
)
def test_invalid_keys_are_refused(choose, keys):
    with pytest.raises(ValidationError):
        choose({"name": "wide", **keys}).check()


def test_keys_common_to_all_methods_do_not_reach_the_method(choose):
    class Both(type(choose("plain"))):
        beside: int = 0

    both = Both.model_validate({"name": "wide", "width": 0.5, "beside": 3})
    assert both.bind()(1, 2) == 12
    assert both.beside == 3
    assert sorted(both.table.model_fields) == ["beside", "times", "width"]


def test_choices_are_found_in_nested_sections(choose):
    class Inner(Section):
        how: Choice

    class Outer(Section):
        first: Choice
        inner: Inner
        other: int = 3

    found = dict(find_choices(Outer(first=choose("plain"), inner=Inner(how=choose("plain")))))
    assert list(found) == ["first", "inner.how"]


PLACES = [*MISFITS.values(), *OPTIMIZERS.values(), *REGULARIZERS.values(), *NETWORKS.values()]


@pytest.mark.parametrize("place", PLACES)
def test_registered_method_and_its_keys_have_descriptions(place):
    section = keys_of(place)
    assert section.__doc__.splitlines()[0].endswith(".")
    for key, field in section.model_fields.items():
        assert field.description, key
