"""One step of the `cpu` engine in time, compiled: forwards, its transpose, and its inverse.

A step relaxes the memory variables of the slabs across the rows, then goes through the rows in
blocks: second differences, absorbing terms, sides. The step backwards is the transpose of the one
forwards, written for q = v^2 dt^2 times the adjoint of p, so that it has the forward Laplacian;
only the order of the absorbing terms differs. Sources, traces and kept fields are in `sweeps`, row
arithmetic in `rows`. The scheme is derived in docs/physics.md, and its numbers are in `scheme`.
"""

from typing import NamedTuple

from numba import njit
from numpy.typing import NDArray

from hpcfwi.wave.engines.cpu.rows import (
    BLOCK,
    MARGIN,
    absorb,
    absorb_back,
    absorb_sides,
    absorb_sides_back,
    add_sides,
    advance,
    gather_sides,
    relax,
    relax_slope,
    relax_slope_back,
)
from hpcfwi.wave.engines.cpu.team import meet

step_function = njit(nogil=True, fastmath={"contract"})


class Fields(NamedTuple):
    """A simulation between two steps.

    waves: (2, row, column), the field of step n is waves[n % 2], that of the step before (or
    behind, on the way back) the other; slabs: two memory variables of all slabs, (row, column)
    each; sides: two memory variables, (block, entry) each; work: (thread, entry), the sides of one
    block.
    """

    waves: NDArray
    slabs: tuple[NDArray, NDArray]
    sides: tuple[NDArray, NDArray]
    work: NDArray


@step_function
def in_slab(s, e, part):
    """The planes and rows of a part of the grid that lie in slab e: from and to before."""
    place = s.slabs.places[e]
    return (
        max(place[0], part.front),
        min(place[1], part.back),
        max(place[2], part.top),
        min(place[3], part.bottom),
    )


@step_function
def cell_of(s, e, plane, row):
    """A row in slab e: its profile a and b, its row in the memory variables, their step."""
    place = s.slabs.places[e]
    k = place[5] + (plane - place[0] if place[4] else row - place[2])
    m = place[6] + plane * place[7] + row * place[8]
    return s.slabs.a[k], s.slabs.b[k], m, place[9]


@step_function
def relax_slabs(s, fields, p, part):
    """The first memory variable of the slabs, in some rows, from the slope of p."""
    first, n = part.left + MARGIN, part.right - part.left
    for e in range(s.slabs.places.shape[0]):
        axis = s.axes[e // 2]
        front, back, top, bottom = in_slab(s, e, part)
        for plane in range(front, back):
            for row in range(top, bottom):
                a, b, m, _ = cell_of(s, e, plane, row)
                r = s.grid.base + plane * s.grid.stride + row
                relax_slope(fields.slabs[0], m, a, b, p, r, axis.stride, first, n, axis.d)


@step_function
def relax_slabs_back(s, fields, q, part, team):
    """Both memory variables of the slabs, in some rows, in the order of the transpose."""
    first, n = part.left + MARGIN, part.right - part.left
    phi, zeta = fields.slabs
    for e in range(s.slabs.places.shape[0]):
        front, back, top, bottom = in_slab(s, e, part)
        for plane in range(front, back):
            for row in range(top, bottom):
                a, b, m, _ = cell_of(s, e, plane, row)
                relax(zeta, m, a, b, q, s.grid.base + plane * s.grid.stride + row, first, n)
    meet(team)
    for e in range(s.slabs.places.shape[0]):
        axis = s.axes[e // 2]
        front, back, top, bottom = in_slab(s, e, part)
        for plane in range(front, back):
            for row in range(top, bottom):
                a, b, m, step = cell_of(s, e, plane, row)
                r = s.grid.base + plane * s.grid.stride + row
                relax_slope_back(phi, zeta, m, step, a, b, q, r, axis.stride, first, n, axis.d)


@step_function
def is_in_slab(s, e, plane, row):
    """Whether a row lies in slab e."""
    place = s.slabs.places[e]
    return place[0] <= plane < place[1] and place[2] <= row < place[3]


@step_function
def step_forward(s, fields, n, part, keeps, u, team):
    """The field after step n, without sources; u gains its derivatives if it keeps them."""
    p, prev = fields.waves[n % 2], fields.waves[(n + 1) % 2]
    grid, first, columns = s.grid, part.left + MARGIN, part.right - part.left
    inside = part.left == 0, part.right == grid.n
    psi, zeta = fields.slabs
    relax_slabs(s, fields, p, part)
    meet(team)
    for plane in range(part.front, part.back):
        for start in range(part.top, part.bottom, BLOCK):
            rows = min(BLOCK, part.bottom - start)
            block = grid.base + plane * grid.stride + start
            for r in range(block, block + rows):
                if keeps:
                    advance(
                        prev, s.v2dt2, p, r, grid.stride, first, columns, u,
                        s.c0, s.far, s.near, s.x,
                    )  # fmt: skip
                else:
                    advance(
                        prev, s.v2dt2, p, r, grid.stride, first, columns, None,
                        s.c0, s.far, s.near, s.x,
                    )  # fmt: skip
                row = start + r - block
                for e in range(s.slabs.places.shape[0]):
                    if is_in_slab(s, e, plane, row):
                        a, b, m, step = cell_of(s, e, plane, row)
                        axis = s.axes[e // 2]
                        absorb(
                            prev, s.v2dt2, p, r, axis.stride, first, columns, keeps, u, psi, zeta,
                            m, step, a, b, axis.c0, axis.c, axis.d,
                        )  # fmt: skip
            if s.sides.width > 0 and (inside[0] or inside[1]):
                around = (block, rows, grid.nx, s.sides.width, inside)
                work = fields.work[team.rank]
                gather_sides(work, p, *around)
                m = plane * s.sides.blocks + start // BLOCK
                absorb_sides(
                    work, fields.sides[0], fields.sides[1], m, s.sides.a, s.sides.b,
                    s.x0, s.x, s.sides.d,
                )  # fmt: skip
                add_sides(prev, s.v2dt2, *around, keeps, u, work)


@step_function
def step_backward(s, fields, n, part, team):
    """Transpose of `step_forward`: the field before step n."""
    q, prev = fields.waves[n % 2], fields.waves[(n + 1) % 2]
    grid, first, columns = s.grid, part.left + MARGIN, part.right - part.left
    inside = part.left == 0, part.right == grid.n
    phi, zeta = fields.slabs
    relax_slabs_back(s, fields, q, part, team)
    meet(team)
    for plane in range(part.front, part.back):
        for start in range(part.top, part.bottom, BLOCK):
            rows = min(BLOCK, part.bottom - start)
            block = grid.base + plane * grid.stride + start
            for r in range(block, block + rows):
                advance(
                    prev, s.v2dt2, q, r, grid.stride, first, columns, None,
                    s.c0, s.far, s.near, s.x,
                )  # fmt: skip
                row = start + r - block
                for e in range(s.slabs.places.shape[0]):
                    if is_in_slab(s, e, plane, row):
                        _, _, m, step = cell_of(s, e, plane, row)
                        axis = s.axes[e // 2]
                        absorb_back(
                            prev, s.v2dt2, r, first, columns, phi, zeta,
                            m, step, axis.c0, axis.c, axis.d,
                        )  # fmt: skip
            if s.sides.width > 0 and (inside[0] or inside[1]):
                around = (block, rows, grid.nx, s.sides.width, inside)
                work = fields.work[team.rank]
                gather_sides(work, q, *around)
                m = plane * s.sides.blocks + start // BLOCK
                absorb_sides_back(
                    work, fields.sides[0], fields.sides[1], m, s.sides.a, s.sides.b,
                    s.x0, s.x, s.sides.d,
                )  # fmt: skip
                add_sides(prev, s.v2dt2, *around, False, prev, work)


@step_function
def rebuild(s, waves, n, part, interior, keeps, u):
    """The field before step n from those of step n and after, in the interior, without sources.

    u gains the derivatives of the former if it keeps them.
    """
    p, later = waves[n % 2], waves[(n + 1) % 2]
    first = max(part.left, interior.left)
    columns = min(part.right, interior.right) - first
    if columns > 0:
        for plane in range(max(part.front, interior.front), min(part.back, interior.back)):
            start = s.grid.base + plane * s.grid.stride
            for r in range(
                start + max(part.top, interior.top), start + min(part.bottom, interior.bottom)
            ):
                if keeps:
                    advance(
                        later, s.v2dt2, p, r, s.grid.stride, first + MARGIN, columns, u,
                        s.c0, s.far, s.near, s.x,
                    )  # fmt: skip
                else:
                    advance(
                        later, s.v2dt2, p, r, s.grid.stride, first + MARGIN, columns, None,
                        s.c0, s.far, s.near, s.x,
                    )  # fmt: skip
