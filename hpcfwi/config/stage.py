"""The tables [[stage]]: parts of an inversion, and what each has otherwise than the whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from hpcfwi.config.values import Section
from hpcfwi.config.wave import Spacing

# Sections of which a stage may have keys of its own
SECTIONS = ("data", "inversion", "wave")


class StageSection(Section):
    """A part of the inversion, which begins with the model of the one before it.

    Its tables `data`, `inversion` and `wave` have the keys of these sections that are others than
    in the whole: `inversion = { epochs = 20, batch = 16 }`. An optimiser begins anew, so does a
    sweep through the shots. Where there is no stage, the inversion is one.
    """

    name: str | None = None
    """What the metrics and figures call it; its number where not given."""
    spacing: Spacing | None = None
    """As `wave.spacing`."""
    data: dict[str, Any] = Field(default_factory=dict)
    """Keys of `[data]`."""
    inversion: dict[str, Any] = Field(default_factory=dict)
    """Keys of `[inversion]`."""
    wave: dict[str, Any] = Field(default_factory=dict)
    """Keys of `[wave]`."""

    def override(self, tables: Mapping[str, Any]) -> dict[str, Any]:
        """The tables of a whole input as this stage has them."""
        changes = {name: getattr(self, name) for name in SECTIONS}
        if self.spacing is not None:
            changes["wave"] = {"spacing": self.spacing, **changes["wave"]}
        return _merge({**tables, "stage": []}, changes)


def _merge(tables: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Tables with changed keys. A table that names another method takes the old one's place."""
    merged = dict(tables)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = value
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            name = old.get("name")
            if value.get("name", name) == name:
                merged[key] = _merge(old, value)
    return merged
