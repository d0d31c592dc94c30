"""Strings under keys are what sections say of them; nobody reads them who does not ask."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated

from pydantic import Field, create_model

from hpcfwi.config.values import Section, meaning


class Base(Section):
    """A section."""

    width: float = 1.0
    """Of the middle.

    And more of it.
    """
    plain: int = 0
    given: Annotated[int, Field(description="Given with the field.")] = 0


class Derived(Base):
    """One with more keys, one of them said anew."""

    width: float = 2.0
    """Of the edge."""
    height: float = 1.0
    """Upwards."""


def test_description_of_a_key_is_the_string_under_it_without_indentation():
    assert meaning(Base, "width") == "Of the middle.\n\nAnd more of it."


def test_a_key_without_one_has_no_meaning():
    assert meaning(Base, "plain") is None


def test_what_a_field_brings_with_it_comes_first():
    assert meaning(Base, "given") == "Given with the field."


def test_keys_of_a_base_keep_theirs_unless_they_are_said_anew():
    assert meaning(Derived, "height") == "Upwards."
    assert meaning(Derived, "width") == "Of the edge."
    assert meaning(Derived, "given") == "Given with the field."


def test_sections_that_are_made_have_those_of_their_base():
    made = create_model("Made", __base__=Base, more=(int, 1))
    assert meaning(made, "width") == "Of the middle.\n\nAnd more of it."
    assert meaning(made, "more") is None


def test_sections_are_made_without_looking_at_any_source():
    read = "[name for name in linecache.cache if 'hpcfwi' in name]"
    program = f"import hpcfwi.config, linecache; print({read})"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
