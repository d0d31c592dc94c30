"""A whole input file, as one value of its sections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

import tomli_w

from hpcfwi.config.data import DataSection
from hpcfwi.config.inversion import InversionSection
from hpcfwi.config.model import ModelSection
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
    output: OutputSection

    @property
    def offset_limits(self) -> tuple[float | None, float]:
        """The furthest offset that counts, None where all do, and the nearest, m."""
        nearest, furthest = self.data.offsets or (0.0, inf)
        furthest = min(furthest, self.inversion.max_offset or inf)
        return None if furthest == inf else furthest, nearest

    def to_toml(self) -> str:
        """The file that gives this config."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


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
