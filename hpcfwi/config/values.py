"""Types of the values of an input file, and messages about values that are not allowed.

A table of keys is a `Section`. A message has the file, the key, the value found, and the remedy.

The description of a key is the string under it. It is read from the source only on request, because
Pydantic's `use_attribute_docstrings` would read all sources on every rank that starts.

A method is a function or a class in one of the tables of `registry`. Its keys are its keyword-only
parameters, whose annotations have the allowed values and the description, so that a method and its
keys are in one file. Some keys accept a user's own function or class, "module:name"; `find_plugin`
imports it, and only commands that compute with it call this function.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.machinery import PathFinder, all_suffixes
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ByteSize,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    Tag,
    TypeAdapter,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError

from hpcfwi.errors import InputError, quote
from hpcfwi.registry import find
from hpcfwi.system import why_exposed


def explain(
    path: Path, error: ValidationError, table: type[BaseModel], keys: Sequence[str] = ()
) -> InputError:
    """Return the first validation error of a table as an `InputError`.

    path: the input file; keys: the keys that lead to the table.
    """
    first, *others = error.errors()
    if first["type"] == "missing":
        # A key that seems to be missing may be misspelt.
        beside = (e for e in others if e["loc"][:-1] == first["loc"][:-1])
        first = next((e for e in beside if e["type"] == "extra_forbidden"), first)
    # If a value may have one of several types, pydantic appends the type that it tried. Stages are
    # counted from 1.
    *parents, last = (
        str(part + 1 if parent == "stage" and isinstance(part, int) else part)
        for parent, part in pairwise(("", *(first["loc"] or ("the file",))))
    )
    sections = [part for part in parents if part not in TAGS]
    place, kind, found = [*keys, *sections], first["type"], first["input"]
    key = ".".join(place if last in TAGS else [*place, last])
    message = first["msg"]
    for start in ("Value error, ", "Input should be ", "Tuple should have "):
        message = message.removeprefix(start)
    problem, remedy = f"found {quote(found)}, expected {message}", "Change the value."
    if kind == "extra_forbidden":
        key = ".".join([*place, quote(last)[1:-1]])
        known = ", ".join(sorted(_table(sections, table).model_fields))
        problem = "unknown key"
        remedy = f"{'.'.join(place) or 'The file'} has the keys {known}."
    elif kind == "missing" and last.isdigit():
        key, problem = ".".join(place), f"found {quote(found)}, expected more values"
    elif kind == "missing":
        section = _table(sections, table)
        words = meaning(section, last) if last in section.model_fields else None
        described = f" {last}: {words.splitlines()[0]}" if words else ""
        problem, remedy = "missing", f"Add the key.{described}"
    elif kind == "value_error":
        what = "section" if isinstance(found, dict) else "value"
        problem, remedy = message, f"Change the {what}."
    elif kind == "tuple_type" and isinstance(found, dict):
        problem = "found one table, expected a list of tables"
        remedy = f"Write two brackets around the name of each: [[{key}]]."
    return InputError(f"{path}: {key}", problem, remedy)


def _table(sections: list[str], table: type[BaseModel]) -> type[BaseModel]:
    for key in sections:
        if key.isdigit():  # the index of a table in a list
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
    """Return the description of a key of a section, or None if there is none."""
    given = section.model_fields[key].description
    if given is not None:
        return given
    for kind in section.__mro__:
        if issubclass(kind, Section) and key in inspect.get_annotations(kind):
            return _strings(kind).get(key)
    return None


@cache
def _strings(kind: type[Section]) -> dict[str, str]:
    """Return the strings under the keys of a class, without the keys of its bases."""
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):  # the class was created by `keys_of`, or the source is missing
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
    """Return a validator for names in a registry, or "module:name" for other objects.

    kind: what "name" stands for, for messages.
    """
    known = ", ".join(f'"{name}"' for name in registry)

    def check(name: str) -> str:
        if name not in registry and not _PLACE.fullmatch(name):
            raise ValueError(f'expected {known} or "module:{kind}"')
        return name

    return check


def find_plugin(key: str, name: str, registry: Mapping[str, str], folder: str | None) -> Any:
    """Return the object of a checked name; "module:name" is imported, which executes the module.

    Only commands that compute with the object may call this function, because an input may come
    from somebody else. key: that of the name, for messages; registry: known names and their places;
    folder: searched for the module after Python's own path.

    Raises `InputError` if the module is in the folder, but another user can write there, if it
    cannot be imported, and if the object cannot be called.
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
        problem = f'found "{name}", which is {found!r}'
        raise InputError(key, problem, "Name a class or a function.")
    return found


def module_files(name: str, folder: str | None) -> list[Path]:
    """Return the file of the module of "module:name" in a folder; empty for any other name."""
    if folder is None or ":" not in name:
        return []
    module = Path(folder, *name.partition(":")[0].split("."))
    return [path for path in (module.with_suffix(".py"), module / "__init__.py") if path.is_file()]


def _check_folder(key: str, name: str, folder: Path) -> None:
    """Raise `InputError` if another user can write a module in a folder.

    All modules in the same folders are checked, in all forms that Python executes, because the
    module may import them.
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
                f'found "{name}", which is code that is not executed, because {exposed}',
                "Copy the input and the module into a folder to which nobody else can write "
                "(chmod go-w), and give the command with that input.",
            )


_T = TypeVar("_T")


# Tags of types, which pydantic puts between the keys of an error's location.
TAGS = ("a name", "a table", "a number", "a pair")


def tag_pair(value: object) -> str:
    """Return the tag of a value that is one number or two."""
    return "a pair" if isinstance(value, list | tuple) else "a number"


def each_once(values: tuple[_T, ...]) -> tuple[_T, ...]:
    """Return the same values; raise ValueError if one of them is given twice."""
    if len(set(values)) < len(values):
        raise ValueError(f"found {', '.join(map(str, values))}; expected each of them once")
    return values


# Lists of TOML, which become tuples
Pair = Annotated[tuple[_T, _T], Field(strict=False)]
Several = Annotated[tuple[_T, ...], Field(strict=False)]
Names = Annotated[Several[_T], Field(min_length=1), AfterValidator(each_once)]
"""One or more different names."""
OneOrPair = Annotated[
    Annotated[_T, Tag("a number")] | Annotated[Pair[_T], Tag("a pair")], Discriminator(tag_pair)
]
"""One number or two, such as along x, or along y and x; or for the first and the last epoch."""
AutoOr = Annotated[
    Annotated[Literal["auto"], Tag("a name")] | Annotated[_T, Tag("a number")],
    Discriminator(lambda value: "a name" if isinstance(value, str) else "a number"),
]


def _check_name(name: str) -> str:
    try:
        possible = bool(name) and b"\0" not in name.encode()
    except UnicodeEncodeError:  # the config of the run could not have this name
        possible = False
    if not possible:
        raise PydanticCustomError("name", "the name of a file or directory, in UTF-8")
    return name


@dataclass(frozen=True)
class Unit:
    """The unit of a number."""

    name: str


@dataclass(frozen=True, eq=False)  # a registry has no hash
class OneOf:
    """The names that a text may be, such as those of a registry."""

    names: Collection[str]

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler(Literal[*self.names])


# Larger numbers are typing errors, and would overflow in later computations.
Count = Annotated[int, Field(gt=0, le=10**9)]
Position = Annotated[float, Field(ge=-1e9, le=1e9), Unit("m")]
Length = Annotated[float, Field(gt=0.0, le=1e9), Unit("m")]
Spacing = AutoOr[Length]
Time = Annotated[float, Field(ge=-1e9, le=1e9), Unit("s")]
Seconds = Annotated[float, Field(gt=0.0, le=1e9), Unit("s")]
Hertz = Annotated[float, Field(gt=0.0, le=1e12), Unit("Hz")]
FileName = Annotated[str, AfterValidator(_check_name)]


class Section(BaseModel):
    """A table of the input file; unknown keys, numbers in quotes, and nan are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def count_bytes(size: str) -> int:
    """Return the bytes of a size with a unit, such as "12 GB" (10^9 bytes) or "12 GiB" (2^30).

    Raises ValueError for any other text.
    """
    if size.strip()[-1:].upper() != "B":
        raise ValueError(f"{size!r} has no unit")
    return int(TypeAdapter(ByteSize).validate_python(size))


def check_size(size: object) -> object:
    """Return a size if it is a text with a unit; raise `PydanticCustomError` otherwise."""
    try:
        possible = isinstance(size, str) and count_bytes(size) > 0
    except (ValueError, OverflowError):
        possible = False
    if not possible:
        raise PydanticCustomError("size", 'a size with its unit, such as "12 GB" or "500 MiB"')
    return size


def exactly_one(*keys: str) -> Any:
    """Return a validator which checks that a section has exactly one of these keys."""

    def check(section: Section) -> Section:
        if sum(getattr(section, key) is not None for key in keys) != 1:
            raise ValueError(f"expected exactly one of {', '.join(keys[:-1])} and {keys[-1]}")
        return section

    return model_validator(mode="after")(check)


class Choice(Section):
    """A method of a registry: its name, or a table with the name and the keys of the method.

    registry: the names and their places; naming: the key of the name, which subclasses define as a
    field.
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

    @classmethod
    def own_keys(cls) -> dict[str, FieldInfo]:
        """Return the keys that all methods of the registry share, without the name."""
        return {key: field for key, field in cls.model_fields.items() if key != cls.naming}

    @property
    def table(self) -> type[Section]:
        """The table of all keys that are allowed with this name."""
        own = {key: (field.annotation, field) for key, field in self.own_keys().items()}
        keys = keys_of(self.place)
        return create_model(keys.__name__, __base__=keys, **cast(Any, own))

    def check(self) -> Section:
        """Return the values of the method's keys; raises `ValidationError` for wrong keys."""
        return keys_of(self.place).model_validate(self.model_extra)

    def takes(self, name: str) -> bool:
        """Return True if the method has a parameter of this name."""
        return name in inspect.signature(find(self.place)).parameters

    def bind(self) -> Callable[..., Any]:
        """Return the method with its keys bound, to be called with the other arguments."""
        return partial(find(self.place), **dict(self.check()))


@cache
def keys_of(place: str) -> type[Section]:
    """Return the table of the keys of the method at a place, "module:name"."""
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


def find_choices(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, Choice]]:
    """Yield the choices in a section and its subsections, with their keys (section.key)."""
    for key, value in section:
        if isinstance(value, Choice):
            yield prefix + key, value
        elif isinstance(value, BaseModel):
            yield from find_choices(value, f"{prefix}{key}.")
