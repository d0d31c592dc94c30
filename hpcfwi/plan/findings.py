"""What a user should know before a run, and how bad it is. What is looked for is in `checks`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """Something that the user should know before a run.

    severity: an "error" makes a run fail or its result worthless, a "warning" may, a "note" costs
    at most time; where: the key; found: what was found and what it does, without a full stop;
    remedy: what to do about it, as a whole sentence.
    """

    severity: Severity
    where: str
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.severity.upper()}: {self.where}: {self.found}. {self.remedy}"
