"""What is found of a linear operator by applying its normal operator again and again.

They are the same on every rank where the normal operator's results are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import sqrt

from hpcfwi.operators.vectors import Vector, combine, dot, go_along, length


def find_norm(
    normal: Callable[[Vector], Vector], start: Vector, tolerance: float, iterations: int
) -> float:
    """The largest singular value of A, from x -> A^T A x, by power iteration.

    start: not orthogonal to the singular vector; it ends where the value changes by less than
    `tolerance` of itself, or after so many iterations. It is never too large.
    Golub and Van Loan (2013), section 7.3.1.
    """
    x, found = start, 0.0
    size: float = length(start)
    for _ in range(iterations):
        if size == 0.0:
            return 0.0
        x = combine(lambda part, by=size: part / by, x)
        x = normal(x)
        before, size = size, length(x)
        # The first is the start's own length
        change, found = abs(sqrt(size) - found), sqrt(size)
        if before and change <= tolerance * found:
            break
    return found


def solve_normal(
    normal: Callable[[Vector], Vector], right: Vector, tolerance: float, iterations: int
) -> Vector:
    """The solution of A^T A x = right of least length, by conjugate gradients from x = 0.

    It ends where the residual is `tolerance` of the right side, or after so many iterations.
    Hestenes and Stiefel (1952), section 3.
    """
    x = combine(lambda part: part * 0, right)
    left = conjugate = right
    squares = dot(left, left)
    goal = tolerance**2 * squares
    for _ in range(iterations):
        if squares <= goal:
            break
        product = normal(conjugate)
        curvature = dot(conjugate, product)
        if not curvature > 0.0:
            break
        share = squares / curvature
        x = combine(partial(go_along, by=share), x, conjugate)
        left = combine(partial(go_along, by=-share), left, product)
        before, squares = squares, dot(left, left)
        conjugate = combine(partial(go_along, by=squares / before), left, conjugate)
    return x
