"""The input file as a whole, which `load_config` reads, with the sections [wave] and [output]."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from math import inf
from pathlib import Path
from typing import Annotated, Any, Self, get_args

import tomli_w
from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationError, model_validator

from hpcfwi.config.inversion import (
    InversionSection,
    MigrationSection,
    StageSection,
    invert_linearly,
)
from hpcfwi.config.survey import DataSection, ModelSection, SurveySection
from hpcfwi.config.values import (
    AutoOr,
    Count,
    FileName,
    Length,
    OneOf,
    Pair,
    Section,
    Spacing,
    Unit,
    check_size,
    explain,
    find_choices,
    find_plugin,
)
from hpcfwi.errors import LONGEST_QUOTE, InputError, quote, say_bytes
from hpcfwi.registry import (
    DENOISERS,
    ENGINES,
    EQUATIONS,
    HistoryFormat,
    HistoryKind,
    HistoryName,
    Order,
)
from hpcfwi.system import check_regular


class HistorySection(Section):
    """A complete description of a history.

    The history is chosen when an inversion starts, for the largest window of the survey, and is the
    same on all ranks. A reproducible inversion keeps it when it continues. The log has a line such
    as `History: snapshots, every 14 steps, float16, 84.7 MB per shot; 1 shot at a time`.
    docs/decisions/014-memory.md describes the rules, and what happens when memory runs out.
    """

    kind: HistoryKind = "snapshots"
    """How the sampled steps are obtained in the backward simulation.

    `"snapshots"` stores them, `"boundary"` reconstructs them from the stored perimeter of the
    model, and `"recompute"` simulates them again.
    """
    interval: Count | None = None
    """Number of steps between samples; 1 gives the exact gradient of the discrete scheme.

    By default the Nyquist rate of the wavelet determines it, which changes the gradient by a few
    tenths of a per cent.
    """
    format: HistoryFormat | None = None
    """Format of the stored numbers; by default full precision. Not for `"recompute"`."""
    states: Count | None = None
    """Number of stored states from which steps are simulated again; by default 8.

    Only for `"recompute"`.
    """

    @model_validator(mode="after")
    def _keys_of_its_own(self) -> Self:
        foreign = "format" if self.kind == "recompute" else "states"
        if getattr(self, foreign) is not None:
            raise ValueError(f"{self.kind} has no {foreign}")
        return self


# Standard linear solids have no constant quality factor in wider bands.
WIDEST = 1000


class AttenuationSection(Section):
    """The dependence of quality factors and velocities on frequency, see docs/equations.md."""

    frequency: Annotated[float, Field(gt=0.0, le=1e6), Unit("Hz")] = 10.0
    """Frequency at which waves have the velocities of the model; others are slower or faster."""
    band: Pair[Annotated[float, Field(gt=0.0, le=1e6)]] = (2.0, 30.0)
    """Lowest and highest frequency (Hz) between which quality factors are constant."""
    mechanisms: Annotated[int, Field(ge=1, le=3)] = 1
    """Number of relaxation mechanisms.

    In a band of 3 to 30 Hz, losses 1/Q up to 1/20 are within 36 % of the asked ones with 1,
    and within 8 % with 2; 3 suit wider bands. Each adds a field for every stress.
    """

    @model_validator(mode="after")
    def _band_in_order(self) -> Self:
        if self.band[0] >= self.band[1]:
            raise ValueError(f"band is {list(self.band)}; expected the smaller frequency first")
        if self.band[1] > WIDEST * self.band[0]:
            raise ValueError(f"band is {list(self.band)}; expected a ratio of at most {WIDEST}")
        return self


class WaveSection(Section):
    """The wave equation and how it is solved."""

    equation: Annotated[str, OneOf(EQUATIONS)] = "acoustic"
    """The wave equation, which determines the parameters of the model (docs/equations.md).

    `"acoustic"` is the one with constant density. The others are solved by the engines `"cpu"`,
    `"gpu"` and `"eager"`, with the histories `"snapshots"` and, on the first two, `"recompute"`.
    """
    attenuation: AttenuationSection | None = None
    """Attenuation of the equations `"viscoacoustic"` and `"viscoelastic"`, if not the default."""
    order: Order = 8
    """Order of the differences in space."""
    spacing: Spacing | None = None
    """Spacing of a coarser grid on which the inversion simulates waves.

    `"auto"` is the coarsest spacing that the highest frequency of the wavelet, after `data.band`,
    allows. The inversion still updates, writes and draws the model on the grid of the model, on
    which observed data are simulated as well.
    """
    boundary: Annotated[int, Field(ge=0, le=1000), Unit("cells")] = 20
    """Width of the absorbing boundary (CPML) outside the model."""
    aperture: Length | None = None
    """Simulate each shot only in a window of the model around its source and receivers.

    The window includes all depths. Along each horizontal axis it extends beyond source and
    receivers by this distance on both sides, rounded to cells, at least by eight cells, up to the
    ends of the model. It has its own absorbing boundary. By default every shot is simulated in the
    whole model; observed data always are. docs/physics.md describes the error.
    """
    free_surface: bool = False
    """If true, the top of the model is a free surface, in place of an absorbing boundary.

    The pressure is 0 there or, in elastic media, the stresses on the surface are.
    """
    engine: Annotated[str, OneOf(("auto", *ENGINES))] = "auto"
    """The engine that computes the waves.

    `"cpu"` is compiled code for CPUs, `"gpu"` uses Triton kernels for GPUs, `"eager"` is the
    reference for any device, and `"deepwave"` needs the package Deepwave. `"auto"` is `"cpu"` on
    CPUs, and `"gpu"` on GPUs or, if Triton is not installed, `"eager"`.
    """
    ranks_per_shot: AutoOr[Count] = 1
    """Number of ranks that simulate each shot together, each a layer of the grid along z.

    The engine is `"cpu"`, or `"gpu"` with the equation `"acoustic"` and ranks on the same host. The
    results have the same bits with any number. It pays for a batch of fewer shots than ranks, or
    where memory does not suffice for a shot of each rank, in 3-D also between hosts
    (docs/splitting.md). `"auto"` is the largest number on a host that leaves no ranks without a
    shot and has an expected efficiency of at least 60 %, and 1 with the engine `"gpu"`. A run can
    be continued with another number.
    """
    history: Annotated[
        Annotated[HistoryName, Tag("a name")] | Annotated[HistorySection, Tag("a table")],
        Discriminator(lambda v: "a table" if isinstance(v, Mapping | HistorySection) else "a name"),
    ] = "auto"
    """The data of the forward simulation that are stored for the backward simulation.

    `"auto"` is the fastest history of the engine that fits into the memory. With enough memory it
    stores snapshots in float16, which change the gradient by 0.02 % in addition to the sampling.
    `"snapshots"`, `"boundary"` and `"recompute"` are the fastest history of that kind. A table
    describes one history exactly.
    """
    memory: Annotated[str, BeforeValidator(check_size)] | None = None
    """Approximate limit of the memory for the simulations of one rank, with its unit.

    Examples are `"12 GB"` (1 GB is 10^9 bytes) and `"12 GiB"` (1 GiB is 2^30 bytes). It determines
    the `history` and the number of shots that are simulated together. The default is the free
    memory that is not needed otherwise.
    """


class OutputSection(Section):
    """The run directory."""

    directory: FileName
    """The run directory; a relative path starts from the current directory."""
    every: Count = 10
    """Number of epochs between sets of figures."""
    checkpoint: Count = 5
    """Number of epochs between checkpoints."""


class Config(Section):
    """A whole input file."""

    model: ModelSection
    survey: SurveySection
    data: DataSection = DataSection()
    wave: WaveSection = WaveSection()
    # The section from which [inversion] may be made comes first, so that its errors are reported.
    migration: MigrationSection | None = None
    inversion: InversionSection
    stage: Annotated[tuple[StageSection, ...], Field(strict=False)] = ()
    output: OutputSection

    @model_validator(mode="before")
    @classmethod
    def _migrate_only(cls, tables: Any) -> Any:
        """Add a section [inversion] to an input that has only [migration]."""
        if not isinstance(tables, Mapping) or "inversion" in tables:
            return tables
        migration = tables.get("migration")
        if not isinstance(migration, Mapping):
            return tables
        return {**tables, "inversion": invert_linearly(migration, {})}

    @model_validator(mode="after")
    def _one_truth(self) -> Self:
        """Raise ValueError if the input gives the true model twice."""
        if self.model.true is not None:
            if self.model.dataset is not None:
                raise ValueError(
                    "model.dataset and model.true exclude each other: the dataset is the true model"
                )
            if self.survey.file is None:
                raise ValueError(
                    "model.true is only for recorded data (survey.file): with simulated data "
                    "model.file is the true model; leave model.true out"
                )
        return self

    @model_validator(mode="after")
    def _network_steps_weights(self) -> Self:
        """Raise ValueError if there are a network and keys that act on the cells of a model."""
        network, inversion = self.model.network, self.inversion
        if network is None:
            return self
        for key in ("prior", "precondition"):
            if getattr(inversion, key) is not None:
                raise ValueError(
                    f"model.network and inversion.{key} exclude each other: the updates change "
                    "the network's weights"
                )
        if inversion.linear:
            raise ValueError(
                "model.network and a linear inversion, such as a migration, exclude each other: "
                "the model is not a linear function of the network's weights"
            )
        return self

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        """Raise ValueError if two stages have the same name, which the metrics contain."""
        names = self._stage_names
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"two stages have the name {quote(name)}; expected different names, which are "
                    "by default the numbers of the stages"
                )
        return self

    def migrating(self) -> Config:
        """Return a config whose inversion is the migration that [migration] describes."""
        assert self.migration is not None
        tables = self.model_dump(mode="json", exclude_none=True)
        inversion = invert_linearly(tables["migration"], tables["inversion"])
        return Config.model_validate({**tables, "inversion": inversion, "stage": []})

    def stages(self) -> list[tuple[str, Config]]:
        """Return the name and the config of each stage; an inversion without stages has one."""
        if not self.stage:
            return [("0", self)]
        tables = self.model_dump(mode="json", exclude_none=True)
        configs = (Config.model_validate(stage.override(tables)) for stage in self.stage)
        return list(zip(self._stage_names, configs, strict=True))

    def prefixed_stages(self) -> list[tuple[str, Config]]:
        """Return the config of each stage, with the prefix of its keys in messages."""
        return [
            (f"stage.{number}." if self.stage else "", part)
            for number, (_, part) in enumerate(self.stages(), start=1)
        ]

    @property
    def _stage_names(self) -> list[str]:
        return [stage.name or str(number) for number, stage in enumerate(self.stage, start=1)]

    @property
    def changing(self) -> tuple[str, ...]:
        """The names of the parameters that the stages change, in the order of the stages."""
        parts = (part.inversion.changing for _, part in self.stages())
        return tuple(dict.fromkeys(chain(*parts)))

    def place_of(self, key: str) -> str:
        """Return the full name of a key of [inversion], which [migration] may have instead."""
        migrates = self.inversion.linear and getattr(self.migration, key, None) is not None
        return f"{'migration' if migrates else 'inversion'}.{key}"

    @property
    def epochs(self) -> int:
        """The number of epochs of all stages."""
        return sum(config.inversion.epochs for _, config in self.stages())

    @property
    def offset_limits(self) -> tuple[float | None, float]:
        """The largest offset that is used (None for no limit), and the smallest, in m."""
        nearest, furthest = self.data.offsets or (0.0, inf)
        furthest = min(furthest, self.inversion.max_offset or inf)
        return None if furthest == inf else furthest, nearest

    def to_toml(self) -> str:
        """Return the text of a file with this config."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


def changed_keys(old: Config, new: Config) -> dict[str, Any]:
    """Return the keys (section.key) whose values differ between two configs, with the old values.

    An old value is None if the old config does not have the key.
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


def _find_files(kind: Any) -> Iterator[tuple[str, ...]]:
    """Yield the keys of names of files in a section, or in another type of value."""
    if kind == FileName:
        yield ()
    elif isinstance(kind, type) and issubclass(kind, Section):
        for key, field in kind.model_fields.items():
            yield from ((key, *keys) for keys in _find_files(field.annotation))
    else:
        for part in get_args(kind):
            yield from _find_files(part)


# Keys of files, which stages may have, too. The run directory is no such file.
FILES = tuple(keys for keys in _find_files(Config) if keys[0] != "output")
# Keys of folders of the user's own modules, and the key beside each that names the module.
OWN = {"inversion.prior.folder": "denoiser", "model.network.folder": "kind"}
# An input has a few pages; the parser would take very long for a much larger or deeper file.
_LARGEST = 2**20  # bytes
_DEEPEST = 50  # levels of nested brackets, and parts of a key
# Strings and comments, whose brackets do not count.
_QUOTED = re.compile(
    r'"""(?s:.*?)(?<!\\)"""|"(?:\\.|[^"\\\n])*"'
    r"|'''(?s:.*?)'''|'[^'\n]*'|#[^\n]*"
)
# Besides TOMLDecodeError (a ValueError), tomllib raises Python's own errors for integers of
# thousands of digits and for thousands of nested brackets.
_NO_TOML = (ValueError, RecursionError)


def load_config(path: Path, settings: Sequence[str] = (), migrates: bool = False) -> Config:
    """Read a config, without an import of the modules that it names, see `import_plugins`.

    path: an input file, or a run directory, which contains one and is then `output.directory`;
    files that the input names are relative to it; settings: changes "section.key=value", where the
    value is TOML; files that they name are relative to the current directory; migrates: if True,
    the inversion is the one that [migration] describes. Raises `InputError` if the file cannot be
    read, or a key or value is not allowed.
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
        size = path.stat().st_size
        if size > _LARGEST:
            most = say_bytes(_LARGEST)
            problem = f"it has {say_bytes(size)}, expected an input file of at most {most}"
            raise InputError(str(path), problem, "Name an input file in TOML.")
        # Some editors write a byte order mark at the beginning of a file.
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
        remedy = "Correct this line."
        if "('stage',)" in str(error):
            remedy = "Several tables of one name, such as stages, have two brackets: [[stage]]."
        elif "twice" in str(error):
            remedy = "Write the keys of both under one of them."
        raise InputError(str(path), f"not valid TOML ({error})", remedy) from error
    for setting in settings:
        _change(tables, setting)
    config = _validate(path, tables)
    whole = config.model_dump(mode="json", exclude_none=True)
    for number, stage in enumerate(config.stage, start=1):
        _validate(path, stage.override(whole), "stage", str(number))
    _check_methods(path, config, are_own=False)
    stages = tables.get("stage", [])
    if not is_run:
        for part in (tables, *stages):
            for key, name in OWN.items():
                _add_folder(part, key.split("."), name)
    typed = {setting.partition("=")[0].strip() for setting in settings}
    if is_run and not typed & {"output", "output.directory"}:
        # The run may have been moved, or be named from another working directory.
        tables["output"]["directory"] = str(path.parent)
    for keys in FILES:
        # Paths in settings are relative to the current directory; settings do not change stages.
        is_typed = any(name in typed for name in accumulate(keys, "{}.{}".format))
        _locate(tables, keys, Path() if is_typed else path.parent)
        _locate(stages, keys, path.parent)
    return _validate(path, tables)


def _validate(path: Path, tables: Mapping[str, Any], *keys: str) -> Config:
    """Return a config; keys: those that lead to it, for messages."""
    try:
        return Config.model_validate(tables)
    except ValidationError as error:
        raise explain(path, error, Config, keys) from error


def import_plugins(path: Path, config: Config) -> None:
    """Import everything that a config names as "module:name", and check the keys of a network.

    path: path of the config, for messages. Raises `InputError` if an import or a key is wrong.
    """
    _check_methods(path, config, are_own=True)
    for prefix, stage in config.prefixed_stages():
        prior = stage.inversion.prior
        if prior is not None:
            key = f"{path}: {prefix}inversion.prior.denoiser"
            find_plugin(key, prior.denoiser, DENOISERS, prior.folder)


def _check_methods(path: Path, config: Config, are_own: bool) -> None:
    """Check the keys of the methods in the registries or, with `are_own`, of the user's methods."""
    for prefix, stage in config.prefixed_stages():
        for key, choice in find_choices(stage):
            if (choice.chosen not in choice.registry) is not are_own:
                continue
            try:
                choice.check()
            except ValidationError as error:
                raise explain(path, error, choice.table, (prefix + key).split(".")) from error


def _add_folder(table: dict[str, Any], keys: Sequence[str], name: str) -> None:
    """Add the default folder to the table with these keys if `name` is the user's own module."""
    for key in keys[:-1]:
        table = table.get(key, {})
    if isinstance(table, dict) and ":" in table.get(name, ""):
        table.setdefault(keys[-1], ".")


def _check_depth(content: str) -> None:
    """Raise ValueError if brackets or keys of TOML nest too deeply for an input.

    The time of the parser grows with the square of the depth, and recursive functions would use up
    the stack.
    """
    bare = _QUOTED.sub("s", content)
    if any(part.count(".") > _DEEPEST for part in re.split(r"[=,\[\]{}\n]", bare)):
        raise ValueError(f"a key has more than {_DEEPEST} parts")
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", bare):
        depth += 1 if bracket in "[{" else -1
        if depth > _DEEPEST:
            raise ValueError(f"more than {_DEEPEST} brackets are nested")


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
    """Replace the file that a key names, if any, by its absolute path, relative to a directory."""
    # A method that is given by its name alone has no keys, and some keys have a list of tables.
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
        # A link keeps its own name, because the user knows it by that name. Unlike Path.resolve,
        # realpath does not fail for links that lead in a circle; opening the file reports them.
        given = directory / file
        table[keys[0]] = str(Path(os.path.realpath(given.parent), given.name))
