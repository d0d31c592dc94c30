"""One inversion as the user wrote it: TOML in, frozen and validated objects out.

What can be checked without reading a model or a survey is checked here and in `schema`, which has
the keys; the rest is checked in `inversion.experiment`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ValidationError

from hpcfwi.errors import LONGEST_QUOTE, InputError, quote
from hpcfwi.host import check_regular
from hpcfwi.schema import (
    TAGS,
    InversionSection,
    ModelSection,
    OutputSection,
    Section,
    SurveySection,
    WaveSection,
)

# What keys stood for before their time. Run directories of today have all keys.
_BEFORE = {"inversion": {"sampling": "random"}}
# tomllib leaves it to Python to refuse integers of thousands of digits and thousands of brackets
_NO_TOML = (ValueError, RecursionError)


class Config(Section):
    """A whole input file."""

    model: ModelSection
    survey: SurveySection
    wave: WaveSection = WaveSection()
    inversion: InversionSection
    output: OutputSection

    def to_toml(self) -> str:
        """The file that gives this config."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


def load_config(path: Path, settings: Sequence[str] = ()) -> Config:
    """Read a config, changed by settings "section.key=value" whose values are TOML.

    path: a file, or a run directory, which has its own: where that is older than a key, the key has
    the value that the run began with. Files that it names are relative to it, those that settings
    name to where one stands.
    Raises `InputError` for anything that is not as the sections say.
    """
    try:
        is_run = path.is_dir()
        if is_run:
            path = path / "config.toml"
        check_regular(path)
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(
            str(path), f"the config cannot be read ({reason})", "Check its name and permissions."
        ) from error
    try:
        tables = tomllib.loads(content)
    except _NO_TOML as error:
        raise InputError(
            str(path), f"not valid TOML ({error})", "Mend the line it names."
        ) from error
    if is_run:
        _fill_in(tables)
    for setting in settings:
        _change(tables, setting)
    try:
        config = Config.model_validate(tables)
    except ValidationError as error:
        raise _explain(path, error) from error
    typed = {setting.partition("=")[0].strip() for setting in settings}
    return _with_files_of(config, path.parent, typed)


def changed_keys(old: Config, new: Config) -> dict[str, Any]:
    """The keys, as section.key, whose values differ between two configs, with those of the old one.

    None where it does not have the key.
    """
    before, after = dict(_leaves(old.model_dump())), dict(_leaves(new.model_dump()))
    keys = sorted(before.keys() | after.keys())
    return {key: before.get(key) for key in keys if before.get(key) != after.get(key)}


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value


def _fill_in(tables: dict[str, Any]) -> None:
    for name, values in _BEFORE.items():
        section = tables.get(name)
        if isinstance(section, dict):
            tables[name] = values | section


def _change(tables: dict[str, Any], setting: str) -> None:
    where = f"--set {setting if len(setting) <= LONGEST_QUOTE else quote(setting)}"
    name, equals, text = setting.partition("=")
    keys = name.strip().split(".")
    if not equals or len(keys) < 2 or not all(keys):
        raise InputError(where, "not a setting", "Write --set section.key=value.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except _NO_TOML:
        value = text.strip()
    table = tables
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise InputError(where, f"{key} is a value, not a table", "Name a key that exists.")
    table[keys[-1]] = value


def _explain(path: Path, error: ValidationError) -> InputError:
    """The first thing that is wrong, in one sentence."""
    first = error.errors()[0]
    # Where a value may have one of several types, pydantic appends the type that it tried.
    *parents, last = (str(part) for part in first["loc"] or ("the file",))
    sections = [part for part in parents if part not in TAGS]
    kind, found = first["type"], first["input"]
    if kind == "extra_forbidden":
        name, section = quote(last)[1:-1], ".".join(sections)
        known = ", ".join(sorted(_table(sections).model_fields))
        return InputError(
            f"{path}: {'.'.join([*sections, name])}",
            "unknown key",
            f"{section or 'The file'} has the keys {known}.",
        )
    key = ".".join([*sections, *([] if last in TAGS else [last])])
    if kind == "missing":
        return InputError(f"{path}: {key}", "missing", f"Add the key.{_meaning(sections, last)}")
    message = first["msg"]
    for start in ("Value error, ", "Input should be ", "Tuple should have "):
        message = message.removeprefix(start)
    if kind == "value_error":
        return InputError(f"{path}: {key}", message, "Change the section.")
    return InputError(
        f"{path}: {key}", f"found {quote(found)}, expected {message}", "Change the value."
    )


def _meaning(sections: list[str], key: str) -> str:
    """What the schema says of a key first, if it is one and has words of its own."""
    field = _table(sections).model_fields.get(key)
    words = field.description if field else None
    return f" {key}: {words.splitlines()[0]}" if words else ""


def _table(sections: list[str]) -> type[BaseModel]:
    table: type[BaseModel] = Config
    for key in sections:
        kinds = [table.model_fields[key].annotation]
        while kinds:
            kind = kinds.pop()
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                table = kind
                break
            kinds.extend(getattr(kind, "__args__", ()))
    return table


def _with_files_of(config: Config, directory: Path, typed: Collection[str]) -> Config:
    """The config with the files that it names as absolute paths; typed: keys that settings gave."""

    def absolute(key: str, file: str | None) -> str | None:
        if file is None:
            return None
        tables = accumulate(key.split("."), "{}.{}".format)
        # A link keeps its name, by which the user knows it. realpath, unlike Path.resolve, leaves
        # links that lead in a circle to whoever opens the file.
        given = (Path() if any(table in typed for table in tables) else directory) / file
        return str(Path(os.path.realpath(given.parent), given.name))

    initial = config.model.initial
    initial = initial.model_copy(update={"file": absolute("model.initial.file", initial.file)})
    model = config.model.model_copy(
        update={"file": absolute("model.file", config.model.file), "initial": initial}
    )
    survey = config.survey.model_copy(update={"file": absolute("survey.file", config.survey.file)})
    return config.model_copy(update={"model": model, "survey": survey})
