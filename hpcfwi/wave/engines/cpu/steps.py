"""One step of the `cpu` engine in time, compiled: forwards, its transpose, and its inverse.

A step relaxes the memory variables of the slabs across the rows, then goes through the rows in
blocks: second differences, absorbing terms, sides. The step backwards is the transpose of the one
forwards, written for q = v^2 dt^2 times the adjoint of p, so that it has the forward Laplacian;
only the order of the absorbing terms differs. Sources, traces and kept fields are in `sweeps`, row
arithmetic in `rows`. The scheme is derived in docs/physics.md, and its numbers are in `layout`.
"""

from typing import NamedTuple

from numpy.typing import NDArray

from hpcfwi.wave.engines.cpu.layout import BLOCK, HALO, Tables, make_zeros
from hpcfwi.wave.engines.cpu.rows import (
    Ends,
    Place,
    absorb,
    absorb_back,
    absorb_sides,
    absorb_sides_back,
    add_sides,
    advance,
    cells_of,
    gather_sides,
    relax,
    relax_slope,
    relax_slope_back,
    within_loops,
)
from hpcfwi.wave.engines.cpu.threads import barrier


class Fields(NamedTuple):
    """A simulation between two steps.

    waves: (2, row, column), the field of step n is waves[n % 2], that of the step before (or
    behind, on the way back) the other; slabs: two memory variables of all slabs, (row, column)
    each; sides: two memory variables, (block, entry) each; work: (thread, entry), the sides of one
    block; lines: (thread, column), a row to work in.
    """

    waves: NDArray
    slabs: tuple[NDArray, NDArray]
    sides: tuple[NDArray, NDArray]
    work: NDArray
    lines: NDArray


def make_fields(tables: Tables, threads: int) -> Fields:
    """A simulation at rest, for so many threads."""
    dtype, stretch = tables.v2dt2.dtype, tables.sides.a.size + HALO
    slabs = (tables.slabs.rows, tables.v2dt2.shape[1])
    sides = (tables.grid.planes * tables.sides.blocks, stretch)
    return Fields(
        make_zeros((2, *tables.v2dt2.shape), dtype),
        (make_zeros(slabs, dtype), make_zeros(slabs, dtype)),
        (make_zeros(sides, dtype), make_zeros(sides, dtype)),
        make_zeros((threads, stretch), dtype),
        make_zeros((threads, tables.v2dt2.shape[1]), dtype),
    )


@within_loops
def holds(slab, plane, row):
    """Whether a row of cells lies in a slab."""
    return slab.front <= plane < slab.back and slab.top <= row < slab.bottom


@within_loops
def within(slab, part):
    """The planes and rows of a part of the grid that lie in a slab."""
    planes = range(max(slab.front, part.front), min(slab.back, part.back))
    return planes, range(max(slab.top, part.top), min(slab.bottom, part.bottom))


@within_loops
def place_of(slabs, slab, plane, row):
    """What belongs to a row of cells in a slab."""
    k = slab.profile + (row if slab.axis == 0 else plane)
    memory = slab.memory + plane * slab.per_plane + row
    return Place(memory, slab.step, slabs.a[k], slabs.b[k])


@within_loops
def ends_of(tables, part, plane, start, rows):
    """The sides of some rows of a plane, from row `start` on."""
    grid = tables.grid
    r = grid.base + plane * grid.stride + start
    return Ends(r, rows, grid.nx, tables.sides.width, part.left == 0, part.right == grid.n)


@within_loops
def relax_slabs(tables, fields, p, part):
    """The first memory variable of the slabs, in some rows, from the slope of p."""
    for slab in tables.slabs.table:
        axis = tables.axes[slab.axis]
        planes, rows = within(slab, part)
        for plane in planes:
            for row in rows:
                cells = cells_of(tables.grid, part, plane, row)
                place = place_of(tables.slabs, slab, plane, row)
                relax_slope(fields.slabs[0], p, cells, place, axis)


@within_loops
def relax_slabs_back(tables, fields, q, part, team):
    """Both memory variables of the slabs, in some rows, in the order of the transpose."""
    for slab in tables.slabs.table:
        planes, rows = within(slab, part)
        for plane in planes:
            for row in rows:
                cells = cells_of(tables.grid, part, plane, row)
                relax(fields.slabs[1], q, cells, place_of(tables.slabs, slab, plane, row))
    barrier(team)
    for slab in tables.slabs.table:
        axis = tables.axes[slab.axis]
        planes, rows = within(slab, part)
        for plane in planes:
            for row in rows:
                cells = cells_of(tables.grid, part, plane, row)
                place = place_of(tables.slabs, slab, plane, row)
                relax_slope_back(fields.slabs, q, cells, place, axis)


@within_loops
def step_forward(tables, fields, n, part, u, team):
    """The field after step n, without sources.

    u = the second derivatives of the one of step n, unless it is None.
    """
    p, prev, v2dt2 = fields.waves[n % 2], fields.waves[(n + 1) % 2], tables.v2dt2
    relax_slabs(tables, fields, p, part)
    barrier(team)
    for plane in range(part.front, part.back):
        for start in range(part.top, part.bottom, BLOCK):
            end = min(start + BLOCK, part.bottom)
            for row in range(start, end):
                cells = cells_of(tables.grid, part, plane, row)
                advance(prev, p, v2dt2, u, cells, tables.laplacian, tables.laplacian.far)
                for slab in tables.slabs.table:
                    if holds(slab, plane, row):
                        axis = tables.axes[slab.axis]
                        place = place_of(tables.slabs, slab, plane, row)
                        absorb(prev, p, v2dt2, u, fields.slabs, cells, place, axis)
            ends = ends_of(tables, part, plane, start, end - start)
            if ends.width > 0 and (ends.left or ends.right):
                work, k = fields.work[team.rank], plane * tables.sides.blocks + start // BLOCK
                gather_sides(work, p, ends)
                absorb_sides(work, fields.sides, k, tables.sides)
                add_sides(prev, v2dt2, u, work, ends)


@within_loops
def step_backward(tables, fields, n, part, team):
    """Transpose of `step_forward`: the field before step n."""
    q, prev, v2dt2 = fields.waves[n % 2], fields.waves[(n + 1) % 2], tables.v2dt2
    relax_slabs_back(tables, fields, q, part, team)
    barrier(team)
    for plane in range(part.front, part.back):
        for start in range(part.top, part.bottom, BLOCK):
            end = min(start + BLOCK, part.bottom)
            for row in range(start, end):
                cells = cells_of(tables.grid, part, plane, row)
                advance(prev, q, v2dt2, None, cells, tables.laplacian, tables.laplacian.far)
                for slab in tables.slabs.table:
                    if holds(slab, plane, row):
                        axis = tables.axes[slab.axis]
                        place = place_of(tables.slabs, slab, plane, row)
                        absorb_back(prev, v2dt2, fields.slabs, cells, place, axis)
            ends = ends_of(tables, part, plane, start, end - start)
            if ends.width > 0 and (ends.left or ends.right):
                work, k = fields.work[team.rank], plane * tables.sides.blocks + start // BLOCK
                gather_sides(work, q, ends)
                absorb_sides_back(work, fields.sides, k, tables.sides)
                add_sides(prev, v2dt2, None, work, ends)


@within_loops
def rebuild(tables, waves, n, part, u):
    """The field before step n from those of step n and after, in a part of the interior.

    Without sources; u = the second derivatives of the former, unless it is None.
    """
    p, later = waves[n % 2], waves[(n + 1) % 2]
    if part.left < part.right:
        for plane in range(part.front, part.back):
            for row in range(part.top, part.bottom):
                cells = cells_of(tables.grid, part, plane, row)
                advance(later, p, tables.v2dt2, u, cells, tables.laplacian, tables.laplacian.far)
