"""Write docs/input.md, the list of all keys, from `hpcfwi.config`: `python docs/keys.py`."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from hpcfwi.config import Config
from hpcfwi.config.values import Choice, OneOf, Section, Unit, keys_of, meaning

PAGE = Path(__file__).with_name("input.md")

HEAD = """# The input file

`docs/keys.py` makes this page from the sections in `hpcfwi/config/`: do not edit it here.

An input file is written in TOML. Unknown keys, numbers in quotes and nan are errors. Paths of files
are relative to the input file. `--set section.key=value` changes any key; a path in such a change
is relative to the current directory."""

# Larger limits only catch typing errors, and are not on the page.
FAR = 1e9

TYPES = {int: "whole number", float: "number", str: "text", bool: "`true`, `false`"}
SIGNS = {Gt: ("gt", ">"), Ge: ("ge", "≥"), Lt: ("lt", "<"), Le: ("le", "≤")}


def make_page() -> str:
    """Return the text of the page."""
    parts = [HEAD]
    for name, field in Config.model_fields.items():
        parts += _describe([name], sections(field)[0])
    return "\n\n".join(parts) + "\n"


def sections(field: FieldInfo) -> list[type[Section]]:
    """Return the kinds of tables that a key may have as its value."""
    return [kind for kind in _walk(field.annotation) if inspect.isclass(kind) and _is_table(kind)]


def _describe(names: list[str], section: type[Section]) -> Iterator[str]:
    """Yield the heading, description and keys of a section, and then its tables, once each."""
    level = 2 + names[0].count(".")
    yield f"{'#' * level} {', '.join(f'`{_bracket(name)}`' for name in names)}"
    yield _markdown(section.__doc__)
    if issubclass(section, Choice):
        yield from _describe_choice(level + 1, section)
        return
    yield _list_keys(section, section.model_fields)
    tables: dict[type[Section], list[str]] = {}
    for key, field in section.model_fields.items():
        for table in sections(field):
            tables.setdefault(table, []).append(f"{names[0]}.{key}")
    for table, paths in tables.items():
        yield from _describe(paths, table)


def _bracket(name: str) -> str:
    """Return the heading of a table, or of each of several, as in TOML."""
    field = Config.model_fields.get(name)
    several = field is not None and get_origin(field.annotation) is tuple
    return f"[[{name}]]" if several else f"[{name}]"


def _describe_choice(level: int, choice: type[Choice]) -> Iterator[str]:
    """Yield the keys that all methods have, and then the description and keys of each method."""
    own = choice.own_keys()
    if own:
        yield _list_keys(choice, own)
    for name, place in choice.registry.items():
        section = keys_of(place)
        yield f"{'#' * level} `{choice.naming} = {json.dumps(name)}`"
        yield _markdown(section.__doc__)
        if section.model_fields:
            yield _list_keys(section, section.model_fields)


def _list_keys(section: type[Section], fields: Mapping[str, FieldInfo]) -> str:
    rows = [_row(key, field, meaning(section, key)) for key, field in fields.items()]
    head = ["| key | value | unit | default | meaning |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


def _row(key: str, field: FieldInfo, words: str | None) -> str:
    units = dict.fromkeys(m.name for m in _metadata(field) if isinstance(m, Unit))
    if field.is_required():
        default = "required"
    else:
        given = field.get_default(call_default_factory=True)
        given = given.chosen if isinstance(given, Choice) else given
        default = "" if given is None or given == {} else f"`{json.dumps(given)}`"
    value = _value(field.annotation, field.metadata)
    cells = (f"`{key}`", value, ", ".join(units), default, _markdown(words))
    return "| " + " | ".join(" ".join(cell.split()) for cell in cells) + " |"


def _value(kind: Any, metadata: Any = ()) -> str:
    """Return a description of the values that a key may have."""
    arguments = get_args(kind)
    if get_origin(kind) is Annotated:
        return _value(arguments[0], arguments[1:])
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_value(part) for part in arguments if part is not NoneType)
    names = [name for each in metadata if isinstance(each, OneOf) for name in each.names]
    if names or get_origin(kind) is Literal:
        arguments = names or arguments
        return ", ".join(f"`{json.dumps(value)}`" for value in arguments)
    if get_origin(kind) is dict:
        name, value = arguments
        if value is Any:
            return "a table"
        return f"a table of {_value(name)} = {_value(value)}"
    if get_origin(kind) is tuple and arguments[-1] is ...:
        return f"[{_value(arguments[0])}, ...]"
    if get_origin(kind) is tuple:
        return f"[{', '.join(_value(part) for part in arguments)}]"
    if _is_table(kind) and issubclass(kind, Choice):
        names = ", ".join(f"`{json.dumps(name)}`" for name in kind.registry)
        return f"{names}, or a table with `{kind.naming}` and the keys of its own, see below"
    if _is_table(kind):
        return "a table, see below"
    limits = [
        f"{sign} {getattr(limit, name):g}"
        for limit in _flat(metadata)
        for name, sign in [SIGNS.get(type(limit), ("", ""))]
        if sign and abs(getattr(limit, name)) < FAR
    ]
    return f"{TYPES[kind]} {', '.join(limits)}".rstrip()


def _walk(kind: Any) -> Iterator[Any]:
    yield kind
    for argument in get_args(kind):
        yield from _walk(argument)


def _metadata(field: FieldInfo) -> list[Any]:
    return [*field.metadata, *_flat(_walk(field.annotation))]


def _flat(metadata: Any) -> Iterator[Any]:
    """Yield metadata, with those of each Field() in its place."""
    for item in metadata:
        yield from item.metadata if isinstance(item, FieldInfo) else (item,)


def _is_table(kind: Any) -> bool:
    return inspect.isclass(kind) and issubclass(kind, Section)


def _markdown(words: str | None) -> str:
    """Return a docstring in which the names of pages are links."""
    text = inspect.cleandoc(words or "")
    return re.sub(r"docs/([\w/-]+\.md)", r"[\1](\1)", text)


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
