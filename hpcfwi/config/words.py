"""What sections say of their keys, in the strings under them: read where somebody asks.

Pydantic would read them by itself (`use_attribute_docstrings`), on every rank that starts, from the
sources of all sections, for words that few runs need.
"""

from __future__ import annotations

import ast
import inspect
from functools import cache
from itertools import pairwise
from textwrap import dedent

from pydantic import BaseModel

from hpcfwi.config.values import Section


def meaning(section: type[BaseModel], key: str) -> str | None:
    """What a section says of one of its keys; None where it says nothing."""
    given = section.model_fields[key].description
    if given is not None:
        return given
    for kind in section.__mro__:
        if issubclass(kind, Section) and key in inspect.get_annotations(kind):
            return _strings(kind).get(key)
    return None


@cache
def _strings(kind: type[Section]) -> dict[str, str]:
    """The strings under the keys that a class has beside those of its bases."""
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):  # made of a method's parameters, or there is no source here
        return {}
    (tree,) = ast.parse(dedent(source)).body
    assert isinstance(tree, ast.ClassDef)
    return {
        key.target.id: inspect.cleandoc(below.value.value)
        for key, below in pairwise(tree.body)
        if isinstance(key, ast.AnnAssign)
        and isinstance(key.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }
