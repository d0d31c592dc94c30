"""From an input file, and settings that change it, to a `Config`."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpcfwi.config.choices import find_choices
from hpcfwi.config.faults import explain
from hpcfwi.config.file import Config, StageError
from hpcfwi.config.own import find_own
from hpcfwi.errors import LONGEST_QUOTE, InputError, quote, say_bytes
from hpcfwi.registry import DENOISERS
from hpcfwi.system import check_regular

# Keys of files, which stages may have as well
FILES = (
    "model.file",
    "model.true",
    "model.initial.file",
    "model.initial.run",
    "survey.file",
    "data.mute.picks",
    "inversion.fixed.file",
    "inversion.regularize.prior",
    "inversion.regularize.weights",
    "migration.fixed.file",
)
# Where a key may name what is the user's own, the table with the folder of its module
OWN = {"inversion.prior.folder": "denoiser", "model.network.folder": "kind"}
# What keys stood for before their time. Run directories of today have all keys.
_BEFORE = {"inversion": {"sampling": "random"}}
# An input has a few pages; what is larger or deeper would keep the parser busy for long
_LARGEST = 2**20  # bytes
_DEEPEST = 50  # brackets in one another, and parts of a key
# Strings of several lines and of one, and comments: what is in them does not nest
_QUOTED = re.compile(
    r'"""(?s:.*?)(?<!\\)"""|"(?:\\.|[^"\\\n])*"'
    r"|'''(?s:.*?)'''|'[^'\n]*'|#[^\n]*"
)
# tomllib leaves it to Python to refuse integers of thousands of digits and thousands of brackets
_NO_TOML = (ValueError, RecursionError)


def load_config(path: Path, settings: Sequence[str] = (), migrates: bool = False) -> Config:
    """Read a config, changed by settings "section.key=value" whose values are TOML.

    Nothing that it names is imported: for that there is `import_own`.

    path: a file, or a run directory, which has its own: where that is older than a key, the key has
    the value that the run began with. Files that it names are relative to it, those that settings
    name to where one stands. migrates: whether its inversion is to be what [migration] says.
    Raises `InputError` for anything that is not as the sections say.
    """
    config = _load(path, settings)
    if not migrates:
        return config
    if config.migration is None:
        raise InputError(
            f"{path}: migration",
            "missing, expected a section [migration]",
            "Write [migration] and below it iterations = 1.",
        )
    return config.migrating()


def _load(path: Path, settings: Sequence[str]) -> Config:
    try:
        is_run = path.is_dir()
        if is_run:
            path = path / "config.toml"
        check_regular(path)
        _check_size(path)
        # Some editors begin a file with a byte order mark
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(
            str(path), f"the config cannot be read ({reason})", "Check its name and permissions."
        ) from error
    try:
        _check_depth(content)
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
        raise explain(path, error, Config) from error
    try:
        config.stages()
    except StageError as wrong:
        raise explain(path, wrong.error, Config, ("stage", str(wrong.number))) from wrong.error
    _check_methods(path, config, are_own=False)
    if not is_run:
        for part in (tables, *tables.get("stage", ())):
            for key, name in OWN.items():
                _add_folder(part, key.split("."), name)
    typed = {setting.partition("=")[0].strip() for setting in settings}
    for key in (*FILES, *OWN):
        # What settings give is relative to where one stands; stages are not among it
        is_typed = any(name in typed for name in accumulate(key.split("."), "{}.{}".format))
        _locate(tables, key.split("."), Path() if is_typed else path.parent)
        for part in tables.get("stage", ()):
            _locate(part, key.split("."), path.parent)
    return Config.model_validate(tables)


def import_own(path: Path, config: Config) -> None:
    """Import what a config names as "module:name", and check the keys of a network among it.

    path: of the config, for messages. Raises `InputError`.
    """
    _check_methods(path, config, are_own=True)
    for parents, stage in _name_stages(config):
        prior = stage.inversion.prior
        if prior is not None:
            key = ".".join((*parents, "inversion.prior.denoiser"))
            find_own(f"{path}: {key}", prior.denoiser, DENOISERS, prior.folder)


def _check_methods(path: Path, config: Config, are_own: bool) -> None:
    """Check the keys of methods of the registries, or of those that are the user's own."""
    for parents, stage in _name_stages(config):
        for keys, choice in find_choices(stage):
            if (choice.chosen not in choice.registry) is not are_own:
                continue
            try:
                choice.check()
            except ValidationError as error:
                raise explain(path, error, choice.table, (*parents, *keys)) from error


def _name_stages(config: Config) -> Iterator[tuple[tuple[str, ...], Config]]:
    """The config of each stage, with the keys that lead to the stage."""
    for number, (_, stage) in enumerate(config.stages(), start=1):
        yield ("stage", str(number)) if config.stage else (), stage


def _add_folder(table: dict[str, Any], keys: Sequence[str], name: str) -> None:
    """Add the folder that the last key names to a table whose `name` is the user's own."""
    for key in keys[:-1]:
        table = table.get(key, {})
    if isinstance(table, dict) and ":" in table.get(name, ""):
        table.setdefault(keys[-1], ".")


def _check_size(path: Path) -> None:
    """Raise `InputError` for a file that is larger than any input."""
    size = path.stat().st_size
    if size > _LARGEST:
        raise InputError(
            str(path),
            f"it has {say_bytes(size)}, expected an input file of at most {say_bytes(_LARGEST)}",
            "Name an input file in TOML.",
        )


def _check_depth(content: str) -> None:
    """Raise ValueError for TOML whose brackets or keys nest more deeply than any input does.

    The parser takes time that grows with the square of the depth, and others use up the stack.
    """
    bare = _QUOTED.sub("s", content)
    if any(part.count(".") > _DEEPEST for part in re.split(r"[=,\[\]{}\n]", bare)):
        raise ValueError(f"a key has more than {_DEEPEST} parts")
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", bare):
        depth += 1 if bracket in "[{" else -1
        if depth > _DEEPEST:
            raise ValueError(f"more than {_DEEPEST} brackets are open at a time")


def _fill_in(tables: dict[str, Any]) -> None:
    for name, values in _BEFORE.items():
        section = tables.get(name)
        if isinstance(section, dict):
            tables[name] = values | section


def _change(tables: dict[str, Any], setting: str) -> None:
    where = f"--set {setting if len(setting) <= LONGEST_QUOTE else quote(setting)}"
    name, equals, text = setting.partition("=")
    keys = name.strip().split(".")
    if not equals or not 2 <= len(keys) <= _DEEPEST or not all(keys):
        raise InputError(where, "not a setting", "Write --set section.key=value.")
    try:
        _check_depth(text)
        value = tomllib.loads(f"value = {text}")["value"]
    except _NO_TOML:
        value = text.strip()
    table = tables
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise InputError(where, f"{key} is a value, not a table", "Name a key that exists.")
    table[keys[-1]] = value


def _locate(table: Any, keys: Sequence[str], directory: Path) -> None:
    """Make the file that a key names, where there is one, an absolute path from a directory."""
    # A method that is named without a table has no keys, and some tables are a list of them
    if isinstance(table, list):
        for one in table:
            _locate(one, keys, directory)
    if not isinstance(table, dict) or keys[0] not in table:
        return
    if len(keys) > 1:
        _locate(table[keys[0]], keys[1:], directory)
        return
    file = table[keys[0]]
    if file is not None:
        # A link keeps its name, by which the user knows it. realpath, unlike Path.resolve, leaves
        # links that lead in a circle to whoever opens the file.
        given = directory / file
        table[keys[0]] = str(Path(os.path.realpath(given.parent), given.name))
