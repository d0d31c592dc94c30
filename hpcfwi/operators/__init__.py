"""Operators from a model to traces, one for each shot, and stacks of them, distributed over ranks.

They are independent of inversions: `inversion` supplies the models and the data.
"""

from hpcfwi.operators.shots import Born, Shots
from hpcfwi.operators.stack import Fidelity, MemberStack, Stack, distribute
from hpcfwi.operators.tiles import Tile, Tiles, Tiling

__all__ = [
    "Born",
    "Fidelity",
    "MemberStack",
    "Shots",
    "Stack",
    "Tile",
    "Tiles",
    "Tiling",
    "distribute",
]
