"""Descriptions of keys, which are the strings under them and are read only on request."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated

from pydantic import Field, create_model

from hpcfwi.config.values import Section, meaning


class Base(Section):
    """A section."""

    width: float = 1.0
    """Width of the middle.

    And more of it.
    """
    plain: int = 0
    given: Annotated[int, Field(description="Given with the field.")] = 0


class Derived(Base):
    """A section with more keys, one of which is described again."""

    width: float = 2.0
    """Width of the edge."""
    height: float = 1.0
    """Upwards."""


def test_description_of_a_key_is_the_string_under_it_without_indentation():
    assert meaning(Base, "width") == "Width of the middle.\n\nAnd more of it."


def test_key_without_a_string_has_no_description():
    assert meaning(Base, "plain") is None


def test_description_given_with_a_field_is_used():
    assert meaning(Base, "given") == "Given with the field."


def test_derived_section_inherits_descriptions_it_does_not_replace():
    assert meaning(Derived, "height") == "Upwards."
    assert meaning(Derived, "width") == "Width of the edge."
    assert meaning(Derived, "given") == "Given with the field."


def test_created_section_inherits_descriptions_of_its_base():
    made = create_model("Made", __base__=Base, more=(int, 1))
    assert meaning(made, "width") == "Width of the middle.\n\nAnd more of it."
    assert meaning(made, "more") is None


def test_import_of_config_reads_no_source_code():
    read = "[name for name in linecache.cache if 'hpcfwi' in name]"
    program = f"import hpcfwi.config, linecache; print({read})"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
