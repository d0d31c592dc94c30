"""A whole input file, and the way from the file and settings that change it to a `Config`."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import Annotated, Any, Self

import tomli_w
from pydantic import Field, ValidationError, model_validator

from hpcfwi.config.inversion import (
    InversionSection,
    MigrationSection,
    StageSection,
    invert_linearly,
)
from hpcfwi.config.sections import DataSection, ModelSection, SurveySection, WaveSection
from hpcfwi.config.values import Count, FileName, Section, explain, find_choices, find_own
from hpcfwi.errors import LONGEST_QUOTE, InputError, quote, say_bytes
from hpcfwi.registry import DENOISERS
from hpcfwi.system import check_regular


class OutputSection(Section):
    """The run directory."""

    directory: FileName
    """The run directory, relative to where the command is given."""
    every: Count = 10
    """Number of epochs from one set of figures to the next."""
    checkpoint: Count = 5
    """Number of epochs from one checkpoint to the next."""


class Config(Section):
    """A whole input file."""

    model: ModelSection
    survey: SurveySection
    data: DataSection = DataSection()
    wave: WaveSection = WaveSection()
    inversion: InversionSection
    migration: MigrationSection | None = None
    stage: Annotated[tuple[StageSection, ...], Field(strict=False)] = ()
    output: OutputSection

    @model_validator(mode="before")
    @classmethod
    def _migrate_only(cls, tables: Any) -> Any:
        """Add the section [inversion] to an input for a migration alone."""
        if not isinstance(tables, Mapping) or "inversion" in tables:
            return tables
        migration = tables.get("migration")
        if not isinstance(migration, Mapping):
            return tables
        return {**tables, "inversion": invert_linearly(migration, {})}

    @model_validator(mode="after")
    def _one_truth(self) -> Self:
        """Refuse an input that gives the true model twice."""
        if self.model.true is not None:
            if self.model.dataset is not None:
                raise ValueError("model.dataset and model.true exclude each other: it is the truth")
            if self.survey.file is None:
                raise ValueError(
                    "model.true is for a survey.file; where data are simulated model.file is the "
                    "truth: leave model.true out"
                )
        return self

    @model_validator(mode="after")
    def _network_steps_weights(self) -> Self:
        """Refuse keys that act on cells of a model, beside a network."""
        network, inversion = self.model.network, self.inversion
        if network is None:
            return self
        for key in ("prior", "precondition"):
            if getattr(inversion, key) is not None:
                raise ValueError(
                    f"model.network and inversion.{key} exclude each other: updates are those of "
                    "the network's weights"
                )
        if inversion.linear:
            raise ValueError(
                "model.network and a linear inversion, as a migration is, exclude each other: the "
                "model depends on the network's weights in another way"
            )
        return self

    def migrating(self) -> Config:
        """Return the input whose inversion is the migration of its section [migration]."""
        assert self.migration is not None
        tables = self.model_dump(mode="json", exclude_none=True)
        inversion = invert_linearly(tables["migration"], tables["inversion"])
        return Config.model_validate({**tables, "inversion": inversion, "stage": []})

    def stages(self) -> list[tuple[str, Config]]:
        """Return the name of each stage and its input; an inversion without stages is one stage.

        Raises `StageError` if the changes of a stage do not fit.
        """
        if not self.stage:
            return [("0", self)]
        tables = self.model_dump(mode="json", exclude_none=True)
        found = []
        for number, stage in enumerate(self.stage, start=1):
            try:
                config = Config.model_validate(stage.override(tables))
            except ValidationError as error:
                raise StageError(number, error) from error
            found.append((stage.name or str(number), config))
        return found

    @property
    def epochs(self) -> int:
        """Return the files of picks of all stages."""
        return sum(config.inversion.epochs for _, config in self.stages())

    @property
    def offset_limits(self) -> tuple[float | None, float]:
        """The largest offset that counts, None if all do, and the smallest, in m."""
        nearest, furthest = self.data.offsets or (0.0, inf)
        furthest = min(furthest, self.inversion.max_offset or inf)
        return None if furthest == inf else furthest, nearest

    def to_toml(self) -> str:
        """Return the text of a file with this config."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


class StageError(Exception):
    """The changes of a stage, counted from 1, do not fit: `error` says why."""

    def __init__(self, number: int, error: ValidationError) -> None:
        super().__init__(f"stage {number}")
        self.number, self.error = number, error


def changed_keys(old: Config, new: Config) -> dict[str, Any]:
    """Yield the keys whose values differ between two configs, as section.key, and the old values.

    None where it does not have the key.
    """
    before, after = dict(_leaves(old.model_dump())), dict(_leaves(new.model_dump()))
    keys = sorted(before.keys() | after.keys())
    return {key: before.get(key) for key in keys if before.get(key) != after.get(key)}


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        elif value not in (None, ()):
            yield f"{prefix}{key}", value


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

    path: a file, or a run directory, which has its own. Files that it names are relative to it,
    those that settings name to the current directory. migrates: the inversion is the one that
    [migration] describes. Raises `InputError` for anything that is not as the sections say.
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
        # Settings are relative to the current directory; they do not reach stages
        is_typed = any(name in typed for name in accumulate(key.split("."), "{}.{}".format))
        _locate(tables, key.split("."), Path() if is_typed else path.parent)
        for part in tables.get("stage", ()):
            _locate(part, key.split("."), path.parent)
    return Config.model_validate(tables)


def import_own(path: Path, config: Config) -> None:
    """Import everything that a config names as "module:name", and check the keys of a network.

    path: of the config, for messages. Raises `InputError`.
    """
    _check_methods(path, config, are_own=True)
    for parents, stage in _name_stages(config):
        prior = stage.inversion.prior
        if prior is not None:
            key = ".".join((*parents, "inversion.prior.denoiser"))
            find_own(f"{path}: {key}", prior.denoiser, DENOISERS, prior.folder)


def _check_methods(path: Path, config: Config, are_own: bool) -> None:
    """Check the keys of methods of the registries, or of methods of the user's own."""
    for parents, stage in _name_stages(config):
        for keys, choice in find_choices(stage):
            if (choice.chosen not in choice.registry) is not are_own:
                continue
            try:
                choice.check()
            except ValidationError as error:
                raise explain(path, error, choice.table, (*parents, *keys)) from error


def _name_stages(config: Config) -> Iterator[tuple[tuple[str, ...], Config]]:
    """Yield the config of each stage, with the keys that lead to the stage."""
    for number, (_, stage) in enumerate(config.stages(), start=1):
        yield ("stage", str(number)) if config.stage else (), stage


def _add_folder(table: dict[str, Any], keys: Sequence[str], name: str) -> None:
    """Add the folder that the last key names to a table whose `name` is the user's own."""
    for key in keys[:-1]:
        table = table.get(key, {})
    if isinstance(table, dict) and ":" in table.get(name, ""):
        table.setdefault(keys[-1], ".")


def _check_size(path: Path) -> None:
    """Raise `InputError` if a file is larger than any input."""
    size = path.stat().st_size
    if size > _LARGEST:
        raise InputError(
            str(path),
            f"it has {say_bytes(size)}, expected an input file of at most {say_bytes(_LARGEST)}",
            "Name an input file in TOML.",
        )


def _check_depth(content: str) -> None:
    """Raise ValueError if brackets or keys of TOML nest more deeply than those of any input.

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
    """Make the file that a key names, if any, an absolute path from a directory."""
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
