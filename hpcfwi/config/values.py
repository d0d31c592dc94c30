"""The values that keys of an input file may have, and the messages about those they may not have.

A table of keys is a `Section`. A message names the file, the key, what was found and what to do.

The description of a key is the string under it. It is read from the source where somebody asks:
Pydantic's `use_attribute_docstrings` would read all of them on every rank that starts.

A name of the user's own, "module:name", may stand beside the names of a registry; `find_own`
imports it before anything is computed with it, and for nothing else. A method is a function or a
class that `registry` names. Its keys are its keyword-only parameters: their annotations say which
values there may be and what they mean. So a method with its keys is one file.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.machinery import PathFinder, all_suffixes
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, ClassVar, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ByteSize,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from hpcfwi.errors import InputError, quote
from hpcfwi.registry import find
from hpcfwi.system import why_exposed


def explain(
    path: Path, error: ValidationError, table: type[BaseModel], keys: Sequence[str] = ()
) -> InputError:
    """Return the first error of a table, to which these keys lead, in one sentence."""
    first = error.errors()[0]
    # Where a value may have one of several types, pydantic appends the type that it tried.
    # Stages count from 1.
    *parents, last = (
        str(part + 1 if parent == "stage" and isinstance(part, int) else part)
        for parent, part in pairwise(("", *(first["loc"] or ("the file",))))
    )
    sections = [part for part in parents if part not in TAGS]
    kind, found = first["type"], first["input"]
    if kind == "extra_forbidden":
        name, section = quote(last)[1:-1], ".".join([*keys, *sections])
        known = ", ".join(sorted(_table(sections, table).model_fields))
        return InputError(
            f"{path}: {'.'.join([*keys, *sections, name])}",
            "unknown key",
            f"{section or 'The file'} has the keys {known}.",
        )
    key = ".".join([*keys, *sections, *([] if last in TAGS else [last])])
    if kind == "missing":
        return InputError(
            f"{path}: {key}", "missing", f"Add the key.{_meaning(sections, last, table)}"
        )
    message = first["msg"]
    for start in ("Value error, ", "Input should be ", "Tuple should have "):
        message = message.removeprefix(start)
    if kind == "value_error":
        return InputError(f"{path}: {key}", message, "Change the section.")
    return InputError(
        f"{path}: {key}", f"found {quote(found)}, expected {message}", "Change the value."
    )


def _meaning(sections: list[str], key: str, table: type[BaseModel]) -> str:
    """Return the first line of the description of a key, if it has one."""
    section = _table(sections, table)
    words = meaning(section, key) if key in section.model_fields else None
    return f" {key}: {words.splitlines()[0]}" if words else ""


def _table(sections: list[str], table: type[BaseModel]) -> type[BaseModel]:
    for key in sections:
        if key.isdigit():  # the place of a table in a list
            continue
        kinds = [table.model_fields[key].annotation]
        while kinds:
            kind = kinds.pop()
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                table = kind
                break
            kinds.extend(getattr(kind, "__args__", ()))
    return table


def meaning(section: type[BaseModel], key: str) -> str | None:
    """Return the description of a key of a section, None if it has none."""
    given = section.model_fields[key].description
    if given is not None:
        return given
    for kind in section.__mro__:
        if issubclass(kind, Section) and key in inspect.get_annotations(kind):
            return _strings(kind).get(key)
    return None


@cache
def _strings(kind: type[Section]) -> dict[str, str]:
    """Return the strings under the keys of a class, without those of its bases."""
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


_PLACE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def name_of(registry: Mapping[str, str], kind: str) -> Callable[[str], str]:
    """Return a check of names: in the registry or, as "module:name", outside of it."""
    known = ", ".join(f'"{name}"' for name in registry)

    def check(name: str) -> str:
        if name not in registry and not _PLACE.fullmatch(name):
            raise ValueError(f'expected {known} or "module:{kind}"')
        return name

    return check


def find_own(key: str, name: str, registry: Mapping[str, str], folder: str | None) -> Any:
    """Return the object of a checked name; "module:name" is imported, which executes the module.

    Only commands that compute with it may call this: an input may be somebody else's.

    Parameters
    ----------
    key
        Key of the input that holds the name, for messages.
    name
        Name in the registry, or "module:name".
    registry
        Known names and their places.
    folder
        Folder in which the module is looked for after the places that Python knows.

    Raises
    ------
    InputError
        The module is in the folder, but somebody else can write there; it cannot be imported; or
        what it holds cannot be called.
    """
    if name in registry:
        return find(registry[name])
    module, _, path = name.partition(":")
    if folder is not None and PathFinder.find_spec(module.split(".")[0], [folder]):
        _check_folder(key, name, Path(folder))
        if folder not in sys.path:
            sys.path.append(folder)
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:
        beside = f"Put the module into {folder}" if folder else "Name its folder beside the key"
        raise InputError(
            key,
            f'found "{name}", which cannot be imported ({type(error).__name__}: {error})',
            f"{beside}, or add the module's folder to PYTHONPATH.",
        ) from error
    if not callable(found):
        raise InputError(
            key,
            f'found "{name}", which is {found!r}',
            "Name something that can be called.",
        )
    return found


def _check_folder(key: str, name: str, folder: Path) -> None:
    """Raise `InputError` if somebody else can write a module that lies below a folder.

    All modules beside it count, in whatever form Python would execute them: it may import them.
    """
    steps, inside = [folder], folder
    for part in (*name.partition(":")[0].split("."), None):
        caches = inside / "__pycache__"
        found = sorted((*inside.glob("*"), *caches.glob("*")))
        steps += [caches, *(path for path in found if path.name.endswith(tuple(all_suffixes())))]
        if part is not None:
            inside /= part
            steps.append(inside)
    for step in steps:
        exposed = why_exposed(step, may_read=True)
        if exposed is not None:
            raise InputError(
                key,
                f'found "{name}", which is code that is not executed, as {exposed}',
                "Copy the input and the module into a folder of your own in which nobody else may "
                "write (chmod go-w), and give the command with that input.",
            )


_T = TypeVar("_T")


# In an error's path these stand among the keys, to say which of several types was tried.
TAGS = ("a name", "a table", "a number", "a pair")


def tag_pair(value: object) -> str:
    """Return the tag of a value that is one number or two."""
    return "a pair" if isinstance(value, list | tuple) else "a number"


OneOrPair = Annotated[
    Annotated[_T, Tag("a number")] | Annotated[tuple[_T, _T], Field(strict=False), Tag("a pair")],
    Discriminator(tag_pair),
]
"""One number or two: along x, or along y and x; for all epochs, or for the first and the last."""


def _check_name(name: str) -> str:
    try:
        possible = bool(name) and b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise PydanticCustomError("name", "the name of a file or directory")
    return name


@dataclass(frozen=True)
class Unit:
    """The unit of a number."""

    name: str


# Larger numbers are slips of the pen, and what is computed from them would overflow.
Count = Annotated[int, Field(gt=0, le=10**9)]
Position = Annotated[float, Field(ge=-1e9, le=1e9), Unit("m")]
Length = Annotated[float, Field(gt=0.0, le=1e9), Unit("m")]
Time = Annotated[float, Field(ge=-1e9, le=1e9), Unit("s")]
Seconds = Annotated[float, Field(gt=0.0, le=1e9), Unit("s")]
Hertz = Annotated[float, Field(gt=0.0, le=1e12), Unit("Hz")]
FileName = Annotated[str, AfterValidator(_check_name)]


class Section(BaseModel):
    """A table of the file; unknown keys, strings for numbers, and nan are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def count_bytes(size: str) -> int:
    """Return the bytes of a size with its unit: "12 GB" (1e9 bytes each) or "12 GiB" (2^30).

    Raises ValueError for any other text.
    """
    if size.strip()[-1:].upper() != "B":
        raise ValueError(f"{size!r} has no unit")
    return int(TypeAdapter(ByteSize).validate_python(size))


def check_size(size: object) -> object:
    """Check that a text is a size with its unit."""
    try:
        possible = isinstance(size, str) and count_bytes(size) > 0
    except (ValueError, OverflowError):
        possible = False
    if not possible:
        raise PydanticCustomError("size", 'a size with its unit, such as "12 GB" or "500 MiB"')
    return size


def exactly_one(*keys: str) -> Any:
    """Return a check that a section has exactly one of these keys."""

    def check(section: Section) -> Section:
        if sum(getattr(section, key) is not None for key in keys) != 1:
            raise ValueError(f"expected exactly one of {', '.join(keys[:-1])} and {keys[-1]}")
        return section

    return model_validator(mode="after")(check)


class Choice(Section):
    """A method of a registry: its name alone, or a table with the name and the keys of its own.

    naming: the key of the name, which is a field of whatever choice this is.
    """

    model_config = ConfigDict(extra="allow")

    registry: ClassVar[Mapping[str, str]]
    naming: ClassVar[str] = "name"

    @model_validator(mode="before")
    @classmethod
    def _with_name(cls, value: object) -> object:
        return {cls.naming: value} if isinstance(value, str) else value

    @property
    def chosen(self) -> str:
        return cast(str, getattr(self, self.naming))

    @property
    def place(self) -> str:
        """The place of the method in the registry."""
        return self.registry[self.chosen]

    @property
    def method_keys(self) -> type[Section]:
        """The table of the keys that this method has."""
        return keys_of(self.place)

    @classmethod
    def own_keys(cls) -> dict[str, FieldInfo]:
        """Return the keys that all methods of the registry have, without the name."""
        return {key: field for key, field in cls.model_fields.items() if key != cls.naming}

    @property
    def table(self) -> type[Section]:
        """The table of all keys that may stand beside this name."""
        own = {key: (field.annotation, field) for key, field in self.own_keys().items()}
        keys = self.method_keys
        return create_model(keys.__name__, __base__=keys, **cast(Any, own))

    def check(self) -> Section:
        """Return the values of its keys, with defaults; raises `ValidationError` for others."""
        return self.method_keys.model_validate(self.model_extra)

    def takes(self, name: str) -> bool:
        """Return True if the method has a parameter of this name beside its keys."""
        return name in inspect.signature(find(self.place)).parameters

    def make(self) -> Callable[..., Any]:
        """Return the method with its keys, to be called with the rest of its arguments."""
        values = self.check()
        keys = {key: getattr(values, key) for key in type(values).model_fields}
        return partial(find(self.place), **keys)


@cache
def keys_of(place: str) -> type[Section]:
    """Return the table of the keys of the method at a place of a registry."""
    method = find(place)
    parameters = inspect.signature(method).parameters.values()
    fields: dict[str, Any] = {
        key.name: (
            Any if key.annotation is key.empty else key.annotation,
            ... if key.default is key.empty else key.default,
        )
        for key in parameters
        if key.kind is key.KEYWORD_ONLY
    }
    return create_model(
        method.__name__,
        __base__=Section,
        __module__=method.__module__,
        __doc__=inspect.getdoc(method),
        **fields,
    )


def find_choices(
    section: BaseModel, parents: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Choice]]:
    """Yield the choices in a section and in those within it, each with its keys from the top."""
    for key in type(section).model_fields:
        value, path = getattr(section, key), (*parents, key)
        if isinstance(value, Choice):
            yield path, value
        elif isinstance(value, BaseModel):
            yield from find_choices(value, path)
