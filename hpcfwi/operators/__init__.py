"""Shots as operators, and what is made of many: stacks that ranks share.

Which models and data are put in, and what is looked for, is `inversion`'s.
"""

from hpcfwi.operators.distribute import distribute
from hpcfwi.operators.fidelity import Fidelity
from hpcfwi.operators.shots import Born, Shots
from hpcfwi.operators.stack import MemberStack, Stack
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
