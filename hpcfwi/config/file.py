"""A whole input file, as one value of its sections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Annotated, Any, Self

import tomli_w
from pydantic import Field, ValidationError, model_validator

from hpcfwi.config.data import DataSection
from hpcfwi.config.inversion import InversionSection
from hpcfwi.config.migration import MigrationSection, invert_linearly
from hpcfwi.config.model import ModelSection
from hpcfwi.config.stage import StageSection
from hpcfwi.config.survey import SurveySection
from hpcfwi.config.values import Count, FileName, Section
from hpcfwi.config.wave import WaveSection


class OutputSection(Section):
    """The run directory."""

    directory: FileName
    """The run directory, relative to where the command is given."""
    every: Count = 10
    """Epochs from one set of figures to the next."""
    checkpoint: Count = 5
    """Epochs from one checkpoint to the next."""


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
        """An input for a migration alone need not say how to invert."""
        if not isinstance(tables, Mapping) or "inversion" in tables:
            return tables
        migration = tables.get("migration")
        if not isinstance(migration, Mapping):
            return tables
        return {**tables, "inversion": invert_linearly(migration, {})}

    @model_validator(mode="after")
    def _one_truth(self) -> Self:
        """The true model is not given twice."""
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
        """What acts on a model's cells has no hold on a network's weights."""
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
        """The same with an inversion that is its migration; of a section [migration]."""
        assert self.migration is not None
        tables = self.model_dump(mode="json", exclude_none=True)
        inversion = invert_linearly(tables["migration"], tables["inversion"])
        return Config.model_validate({**tables, "inversion": inversion, "stage": []})

    def stages(self) -> list[tuple[str, Config]]:
        """The name of each stage, and the input as that stage has it; one where there are none.

        Raises `StageError` where what a stage has otherwise does not fit.
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
        """Of all stages."""
        return sum(config.inversion.epochs for _, config in self.stages())

    @property
    def offset_limits(self) -> tuple[float | None, float]:
        """The furthest offset that counts, None where all do, and the nearest, m."""
        nearest, furthest = self.data.offsets or (0.0, inf)
        furthest = min(furthest, self.inversion.max_offset or inf)
        return None if furthest == inf else furthest, nearest

    def to_toml(self) -> str:
        """The file that gives this config."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


class StageError(Exception):
    """What a stage, counted from 1, has otherwise does not fit: `error` says why."""

    def __init__(self, number: int, error: ValidationError) -> None:
        super().__init__(f"stage {number}")
        self.number, self.error = number, error


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
        elif value not in (None, ()):
            yield f"{prefix}{key}", value
