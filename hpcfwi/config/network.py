"""The table [model.network]: a network that the model is made by."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from hpcfwi.config.choices import Choice
from hpcfwi.config.own import find_own, name_of
from hpcfwi.config.values import Count, FileName
from hpcfwi.registry import NETWORKS


class NetworkSection(Choice):
    """A network in place of values on a grid: docs/networks.md.

    It is fitted to the initial model. Then the optimiser of `[inversion]` changes its weights, by
    the gradient of the misfit, and its `lr` or `step` is theirs. `kind` may be a class of your own,
    "module:Class", from `folder` or from where else Python finds it: a torch module as
    `hpcfwi/inversion/networks/__init__.py` says; its keyword-only parameters are keys here.
    """

    registry: ClassVar = NETWORKS
    naming: ClassVar[str] = "kind"

    kind: Annotated[str, AfterValidator(name_of(NETWORKS, "Class"))]
    fit: Count = 1000
    """Steps in which it is fitted to the initial model."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Of its first weights."""
    folder: FileName | None = None
    """Folder of the module of a class of your own; that of the input file where not given."""

    @property
    def place(self) -> str:
        """Where the network is; raises `InputError` where it cannot be imported."""
        find_own("model.network.kind", self.kind, NETWORKS, self.folder)
        return NETWORKS.get(self.kind, self.kind)
