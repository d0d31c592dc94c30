"""The section [migration]: an image of reflectors, in the model that an inversion begins with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from hpcfwi.config.inversion import Fixed
from hpcfwi.config.values import Count, Position, Section

DAMPING = 0.001
# Keys of [inversion] that a migration has as well, where it does not name them itself
SHARED = (
    "fixed_above",
    "fixed",
    "seed",
    "wavelet",
    "schedule",
    "reproducible",
    "max_failed_shots",
    "max_offset",
)


class MigrationSection(Section):
    """An image of reflectors in the initial model: `hpcfwi migrate`; docs/migration.md.

    It is a linear inversion by conjugate gradients, and has these keys of `[inversion]` too, where
    there is that section: those of the cells that are kept, `seed`, `wavelet`, `schedule`,
    `reproducible`, `max_failed_shots` and `max_offset`.
    """

    iterations: Annotated[int, Field(gt=0, le=999_999)] = 1
    """Steps of conjugate gradients. 1 is reverse-time migration, more are least squares."""
    batch: Count | None = None
    """Shots of an iteration, every shot once before any comes again; all where not given."""
    illumination: Annotated[float, Field(gt=0.0, le=1e3)] = DAMPING
    """Gradients are divided by the waves' energy and this share of its largest."""
    fixed_above: Position | None = None
    """As `inversion.fixed_above`: no reflectors are looked for at this depth or above it."""
    fixed: Fixed | None = None
    """As `inversion.fixed`."""


def invert_linearly(migration: Mapping[str, Any], inversion: Mapping[str, Any]) -> dict[str, Any]:
    """The table [inversion] that makes a migration, of that and of what an inversion would have."""
    own = {key: migration[key] for key in ("fixed_above", "fixed") if key in migration}
    shared = {key: inversion[key] for key in SHARED if key in inversion and not own.get(key)}
    if own:
        shared = {key: value for key, value in shared.items() if not key.startswith("fixed")}
    shots = {"sampling": "all"}
    if migration.get("batch") is not None:
        shots = {"batch": migration["batch"]}
    return {
        **shared,
        **own,
        **shots,
        "epochs": migration.get("iterations", 1),
        "linear": True,
        "optimizer": {"name": "cg", "balance": True},
        "precondition": {"illumination": migration.get("illumination", DAMPING)},
    }
