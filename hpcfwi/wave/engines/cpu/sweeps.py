"""Compiled time loops of the `cpu` engine: one shot, forwards or backwards in time.

A step goes through the planes of a window, and through each plane in blocks of rows, which stay in
the cache. It updates the memory variables of the slabs across the rows a few planes ahead. Of a
block, it computes the second differences, the absorbing terms and the sides. In 3-D, a second step
follows a few planes behind, before the planes leave the cache. The backward step is the transpose
of the forward one. It is written for q, which is v^2 dt^2 times the adjoint of p, so that it has
the same Laplacian; only the order of the absorbing terms differs. `problem.Problem` states the
equation, and docs/physics.md derives it.

Parameters have the same meaning in all functions here: tables is a `Tables`; fields a `Fields`; p,
q and u are fields (row, column); n is the number of a step; part is the `Box` of cells that this
thread computes; prev is the field of step n - 1, which is replaced by that of step n + 1; team is a
`ThreadTeam`.

All time loops have the same parts: step, inject, record, and store samples or use stored ones. The
backward loop is the transpose of the forward one. The source of the loop for the scattered field is
the change of the model times the samples of the forward loop. Several threads may run the same loop
of the same shot, each on its rows of every plane; barriers separate writes by one thread from reads
by another. Several processes may run the same loop, each on its layer of the grid, and exchange
halos where a field is complete. Windows are those of the whole grid; parts are those of the layer.

The arithmetic along a row is in `kernels`, and the choice of the cells that are computed and stored
is in `windows`. `engine` calls the loops.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfwi.wave.engines.cpu.jit import loop, within_loops
from hpcfwi.wave.engines.cpu.kernels import (
    Cells,
    Lines,
    SlabPlace,
    absorb,
    absorb_back,
    absorb_side,
    absorb_side_back,
    add_product,
    add_square,
    advance,
    advance_absorbing,
    advance_columns,
    cells_of,
    drive,
    inject,
    make_lines,
    record,
    relax,
    relax_slope,
    relax_slope_back,
)
from hpcfwi.wave.engines.cpu.layout import (
    BLOCK,
    MARGIN,
    Box,
    Tables,
    make_interior,
    make_zeros,
)
from hpcfwi.wave.engines.cpu.teams import (
    Neighbours,
    barrier,
    exchange,
    make_neighbours,
    unite_faces,
)
from hpcfwi.wave.engines.cpu.windows import (
    NO_STORE,
    STEPS_PER_WINDOW,
    FieldStore,
    clamp,
    find_wave,
    in_layer,
    pack_frame,
    share,
    unpack_frame,
    whole_of,
    widen,
)
from hpcfwi.wave.layers import HALO, Crew, Layer, find_layers
from hpcfwi.wave.problem import Problem


class Fields(NamedTuple):
    """The state of a simulation between two steps.

    waves: (2, row, column); waves[n % 2] is the field of step n, and the other is that of step
    n - 1, or n + 1 in the backward sweep; slabs: two memory variables of all slabs, (row, column)
    each; sides: two memory variables of the sides, (row of the grid, entry) each; lines: (thread,
    column), a row to work in.
    """

    waves: NDArray
    slabs: tuple[NDArray, NDArray]
    sides: tuple[NDArray, NDArray]
    lines: NDArray


def make_fields(tables: Tables, threads: int) -> Fields:
    """Return the state at rest, with room for so many threads."""
    dtype, grid = tables.v2dt2.dtype, tables.grid
    slabs = (tables.slabs.rows, tables.v2dt2.shape[1])
    sides = (grid.planes * grid.rows, tables.sides.a.size)
    return Fields(
        make_zeros((2, *tables.v2dt2.shape), dtype),
        (make_zeros(slabs, dtype), make_zeros(slabs, dtype)),
        (make_zeros(sides, dtype), make_zeros(sides, dtype)),
        make_zeros((threads, tables.v2dt2.shape[1] + MARGIN), dtype),
    )


@within_loops
def within(slab, part):
    """Return the cells of a part of the grid that lie in a slab: no rows at its end if none do."""
    front, back = max(slab.front, part.front), min(slab.back, part.back)
    top, bottom = max(slab.top, part.top), min(slab.bottom, part.bottom)
    if front >= back or top >= bottom:
        top = bottom = part.bottom
    return Box(front, back, top, bottom, part.left, part.right)


@within_loops
def in_plane(part, plane):
    """Return the cells of a part of the grid in a plane: no planes if the part lacks this one."""
    front, back = max(part.front, plane), min(part.back, plane + 1)
    return Box(front, back, part.top, part.bottom, part.left, part.right)


@within_loops
def in_rows(part, top, bottom):
    """Return the cells of a part of the grid in some of its rows."""
    return Box(part.front, part.back, top, bottom, part.left, part.right)


@within_loops
def place_of(slabs, slab, plane, row):
    """Return the memory variables and profiles of some rows in a slab, from a row on."""
    profile = slab.profile + (row if slab.axis == 0 else plane)
    memory = slab.memory + plane * slab.per_plane + row
    return SlabPlace(memory, slab.step, slabs.a, slabs.b, profile, 1 - slab.axis)


@within_loops
def relax_slabs(tables, fields, p, part):
    """Update the first memory variable of the slabs in a part of the grid."""
    for slab in tables.slabs.absorbing:
        axis, box = tables.axes[slab.axis], within(slab, part)
        for plane in range(box.front, box.back):
            place = place_of(tables.slabs, slab, plane, box.top)
            relax_slope(fields.slabs[0], p, cells_of(tables.grid, box, plane), place, axis)


@within_loops
def relax_slabs_back(tables, fields, q, part):
    """Update the memory variable zeta of the slabs in a part of the grid, for the transpose."""
    for slab in tables.slabs.absorbing:
        box = within(slab, part)
        for plane in range(box.front, box.back):
            place = place_of(tables.slabs, slab, plane, box.top)
            relax(fields.slabs[1], q, cells_of(tables.grid, box, plane), place)


@within_loops
def relax_slopes_back(tables, fields, q, part):
    """Update the memory variable phi of the slabs in a part of the grid, for the transpose."""
    for slab in tables.slabs.absorbing:
        axis, box = tables.axes[slab.axis], within(slab, part)
        for plane in range(box.front, box.back):
            place = place_of(tables.slabs, slab, plane, box.top)
            relax_slope_back(fields.slabs, q, cells_of(tables.grid, box, plane), place, axis)


@within_loops
def sides_of(tables, block):
    """Return the cells of both sides of the rows of a block, and the columns of their memory.

    A side that is not in the window has no cells.
    """
    grid, width = tables.grid, tables.sides.width
    row, rows = grid.base + block.front * grid.stride + block.top, block.bottom - block.top
    left = width if block.left == 0 else 0
    right = width if block.right == grid.n else 0
    return (
        (Cells(row, rows, MARGIN, left), HALO),
        (Cells(row, rows, MARGIN + grid.nx - width, right), 2 * HALO + width),
    )


@within_loops
def advance_part(tables, fields, n, part, u):
    """Compute the field of step n + 1 in a part of the grid, without sources.

    The first memory variable of the slabs is that of step n already. u: set to the second
    derivatives of the field of step n, unless it is None.
    """
    p, prev, v2dt2 = fields.waves[n % 2], fields.waves[(n + 1) % 2], tables.v2dt2
    grid, laplacian, memory = tables.grid, tables.laplacian, fields.slabs
    slabs, (near, far) = tables.slabs, tables.axes
    for plane in range(part.front, part.back):
        # Slabs 0 and 1 are the first and the last rows of all planes; the others consist of planes.
        across = -1
        for number in range(2, len(slabs.table)):
            if slabs.table[number].front <= plane < slabs.table[number].back:
                across = number
        for start in range(part.top, part.bottom, BLOCK):
            end = min(start + BLOCK, part.bottom)
            top = min(max(slabs.table[0].bottom, start), end)
            bottom = max(min(slabs.table[1].top, end), top)
            for number, first, last in ((0, start, top), (-1, top, bottom), (1, bottom, end)):
                if first == last:
                    continue
                cells = cells_of(grid, in_rows(part, first, last), plane)
                if number >= 0:
                    place = place_of(slabs, slabs.table[number], plane, first)
                    advance_absorbing(
                        prev,
                        p,
                        v2dt2,
                        u,
                        memory,
                        cells,
                        laplacian,
                        laplacian.far,
                        laplacian.stride,
                        place,
                        near,
                    )
                    if across >= 0:
                        place = place_of(slabs, slabs.table[across], plane, first)
                        absorb(prev, p, v2dt2, u, memory, cells, place, far)
                elif across >= 0:
                    place = place_of(slabs, slabs.table[across], plane, first)
                    advance_absorbing(
                        prev, p, v2dt2, u, memory, cells, laplacian, laplacian.near, 1, place, far
                    )
                else:
                    advance(prev, p, v2dt2, u, cells, laplacian, laplacian.far)
            row = plane * grid.rows + start
            for cells, column in sides_of(tables, in_rows(in_plane(part, plane), start, end)):
                if cells.n > 0:
                    absorb_side(prev, p, v2dt2, u, fields.sides, cells, row, column, tables.sides)


@within_loops
def advance_part_back(tables, fields, n, part):
    """Compute the field of step n - 1 in a part of the grid, by the transpose of `advance_part`.

    The memory variables of the slabs are those of step n - 1 already.
    """
    q, prev, v2dt2 = fields.waves[n % 2], fields.waves[(n + 1) % 2], tables.v2dt2
    grid, laplacian = tables.grid, tables.laplacian
    for plane in range(part.front, part.back):
        for start in range(part.top, part.bottom, BLOCK):
            block = in_rows(in_plane(part, plane), start, min(start + BLOCK, part.bottom))
            cells = cells_of(grid, block, plane)
            advance(prev, q, v2dt2, None, cells, laplacian, laplacian.far)
            for slab in tables.slabs.table:
                inside = within(slab, block)
                cells = cells_of(grid, inside, plane)
                place = place_of(tables.slabs, slab, plane, inside.top)
                absorb_back(prev, v2dt2, fields.slabs, cells, place, tables.axes[slab.axis])
            row = plane * grid.rows + start
            for cells, column in sides_of(tables, block):
                if cells.n > 0:
                    absorb_side_back(prev, q, v2dt2, fields.sides, cells, row, column, tables.sides)


@within_loops
def rebuild(tables, waves, n, part, u):
    """Compute p of step n - 1 from steps n and n + 1 in a part of the interior, without sources.

    u: set to the second derivatives of p of step n, unless it is None.
    """
    p, later = waves[n % 2], waves[(n + 1) % 2]
    if part.left < part.right:
        for plane in range(part.front, part.back):
            cells = cells_of(tables.grid, part, plane)
            advance_columns(
                later, p, tables.v2dt2, u, cells, tables.laplacian, tables.laplacian.far
            )


class Shot(NamedTuple):
    """The tables, points and wavelets of one shot.

    wavelet: (time, source), at the simulation's step; scale: 1 / cell volume; interior: the part of
    the layer that no absorbing term reaches.
    """

    tables: Tables
    neighbours: Neighbours
    sources: Lines
    receivers: Lines
    wavelet: NDArray
    scale: np.floating
    interior: Box

    @property
    def steps(self) -> int:
        return int(self.wavelet.shape[0])

    @property
    def dtype(self) -> np.dtype:
        return self.tables.v2dt2.dtype


class Rebuilding(NamedTuple):
    """The data from which the interior of p is rebuilt, backwards in time.

    active: False if it is not rebuilt; rim: for each step, the cells around the interior that its
    stencils reach; waves: as in `Fields`, at the last step.
    """

    active: bool
    rim: FieldStore
    waves: NDArray


class Tape(NamedTuple):
    """The samples that the forward sweep stores for the backward one.

    A sample is u = (p[n + 1] - 2 p[n] + p[n - 1]) / v2dt2 at step n; n is offset,
    offset + interval, and so on. interval: in steps; first: number of the sample in entry 0 of the
    store; u: a field to work in, or an array without rows if nothing is stored; samples: the store;
    windows: (time // STEPS_PER_WINDOW, 6), the windows of the steps, the first of which is given;
    explores: True if the forward sweep finds the others.
    """

    interval: int
    offset: int
    first: int
    u: NDArray
    samples: FieldStore
    windows: NDArray
    explores: bool
    rebuilding: Rebuilding


class Records(NamedTuple):
    """The results of the forward sweep.

    traces: (time, receiver), which are set, or an array without columns; energy: a field to which
    the squares of p at the sampled steps are added, or an array without rows.
    """

    traces: NDArray
    energy: NDArray


class WayBack(NamedTuple):
    """The input and the results of the backward sweep.

    adjoint_source: (time, receiver), the gradient with respect to the traces; wavelet_gradient:
    (time, source), set to the gradient with respect to the wavelet; image: a field to which
    q[n + 1] u[n] is added for the sampled n; energy: a field to which the squares of q[n + 1] are
    added for the same n, or an array without rows.
    """

    adjoint_source: NDArray
    wavelet_gradient: NDArray
    image: NDArray
    energy: NDArray


def make_shots(
    problem: Problem, tables: Tables, wavelets: Iterable[NDArray], layers: list[Layer], crew: Crew
) -> list[Shot]:
    """Return the shots of a problem, given the wavelets (time, source) of each."""
    dtype, interior = tables.v2dt2.dtype, make_interior(problem, layers[crew.number])
    sources, receivers = (
        make_lines(
            taps,
            find_layers(taps, layers) == crew.number,
            tables.grid,
            tables.cut,
            interior,
            dtype,
        )
        for taps in (problem.source_taps, problem.receiver_taps)
    )
    rows, columns = HALO * tables.cut.rows, tables.v2dt2.shape[1]
    neighbours = make_neighbours(crew, dtype, rows, columns)
    scale = dtype.type(problem.source_scale)
    return [
        Shot(tables, neighbours, source, heard, wavelet, scale, interior)
        for source, heard, wavelet in zip(sources, receivers, wavelets, strict=True)
    ]


def no_rebuilding(shot: Shot) -> Rebuilding:
    """Return the data of a sweep that rebuilds nothing."""
    return Rebuilding(False, NO_STORE, np.empty((2, 0, 0), shot.dtype))


def no_records(shot: Shot) -> Records:
    """Return the records of a sweep that records nothing."""
    return Records(np.empty((shot.steps, 0), shot.dtype), np.empty((0, 1), shot.dtype))


@within_loops
def window_at(tape, n):
    """Return the window of step n, which must have been found."""
    front, back, top, bottom, left, right = tape.windows[n // STEPS_PER_WINDOW]
    return Box(front, back, top, bottom, left, right)


@within_loops
def part_at(tables, tape, n):
    """Return the part of the layer that is in the window of step n."""
    return in_layer(tables.cut, tables.grid, window_at(tape, n))


@within_loops
def reflect(tables, p, team):
    """Set p above a free surface to the negative of the values below it."""
    stride, rows = tables.surface
    if stride > 0:
        barrier(team)
        if team.rank == 0:
            for k in range(1, HALO + 1):
                for r in range(tables.grid.base, tables.grid.base + rows):
                    for j in range(p.shape[1]):
                        p[r - k * stride, j] = -p[r + k * stride, j]


@within_loops
def rows_of(grid, part, plane):
    """Return the first row of the array in a plane of a part of the grid, and the last + 1."""
    first = grid.base + plane * grid.stride
    return first + part.top, first + part.bottom


@within_loops
def add_squares(grid, total, part, p):
    """Add p squared to total in a part of the grid."""
    for plane in range(part.front, part.back):
        add_square(total, p, cells_of(grid, part, plane))


@within_loops
def add_products(grid, total, part, p, u):
    """Add p times u to total in a part of the grid."""
    for plane in range(part.front, part.back):
        add_product(total, p, u, cells_of(grid, part, plane))


@within_loops
def stores_sample(tape, n):
    """Return True if step n is one of the sampled steps."""
    return tape.interval > 0 and n % tape.interval == tape.offset


@within_loops
def reach_of(tables):
    """Return the distance in planes between values and those that are computed from them."""
    return len(tables.laplacian.x) if tables.grid.planes > 1 else 1


@within_loops
def count_together(shot, n, left):
    """Return the number of steps that are computed in one pass through the planes, from step n on.

    Two steps that share a window take less time than one after the other where their planes do not
    fit into the second cache. left: number of steps that are left.
    """
    return 2 if shot.tables.grid.planes > 1 and n % 2 == 0 and left > 1 else 1


@within_loops
def count_passes(shot, steps):
    """Return the number of passes through the planes for so many steps.

    Planes of a second step that are next to a cut need values of the first step in other layers.
    They are computed in another pass, after an exchange.
    """
    return 2 if steps == 2 and shot.neighbours.size > 1 else 1


@within_loops
def is_in_pass(shot, number, k, part, plane):
    """Return True if step k of a plane is computed in a pass through the planes of a part."""
    if plane < part.front or plane >= part.back:
        return False
    planes, reach, neighbours = shot.tables.grid.planes, reach_of(shot.tables), shot.neighbours
    above = neighbours.number > 0 and plane < reach
    below = neighbours.number + 1 < neighbours.size and plane >= planes - reach
    return number == (1 if k == 1 and (above or below) else 0)


@within_loops
def step_forward(shot, fields, n, steps, window, tape, change, team):
    """Compute the fields of the steps n + 1 to n + `steps` in a window.

    The memory variables of a plane are updated `reach` planes ahead of its field, and the second
    step follows 2 * reach + 1 planes behind the first one. A thread then reads only values that it
    has computed itself, or that were computed before the last barrier. change: as in
    `step_plane_forward`.
    """
    tables, grid = shot.tables, shot.tables.grid
    part, passes = share(window, team.size, team.rank), count_passes(shot, steps)
    reach = reach_of(tables)
    behind = 2 * reach + 1
    for number in range(passes):
        for front in range(part.front - reach, part.back + (steps - 1) * behind):
            for k in range(steps):
                m, plane = n + k, front - k * behind
                if number == 0:
                    ahead = in_plane(part, plane + reach)
                    relax_slabs(tables, fields, fields.waves[m % 2], ahead)
                if is_in_pass(shot, number, k, part, plane):
                    here = in_plane(part, plane)
                    step_plane_forward(shot, fields, m, here, window, tape, change, team)
                    if plane == min(reach, part.back - 1):
                        reflect(tables, fields.waves[(m + 1) % 2], team)
            barrier(team)
        last = n + steps - passes + 1 + number
        exchange(shot.neighbours, grid, tables.cut, fields.waves[last % 2], team)


@within_loops
def step_plane_forward(shot, fields, n, part, window, tape, change, team):
    """Compute the field of step n + 1 in a part of a plane, and store the samples of step n.

    change: None for the wave of the shot's sources, whose samples are stored; the scattered field
    has `Scattering.change`, and reads the samples.
    """
    tables, grid, sources, u = shot.tables, shot.tables.grid, shot.sources, tape.u
    prev, line = fields.waves[(n + 1) % 2], fields.lines[team.rank]
    rows, sampled = rows_of(grid, part, part.front), stores_sample(tape, n)
    # Each case is compiled separately, so that a step that stores nothing has fewer arrays in its
    # loops.
    if change is None:
        if sampled and u.shape[0] > 0:
            advance_part(tables, fields, n, part, u)
            drive(u, sources, shot.wavelet[n], shot.scale, rows, line, False)
            entry = n // tape.interval - tape.first
            pack_frame(tape.samples, entry, window, grid, part, u)
        else:
            advance_part(tables, fields, n, part, None)
        inject(prev, tables.v2dt2, sources, shot.wavelet[n], shot.scale, rows, line)
    else:
        advance_part(tables, fields, n, part, None)
        if sampled:
            entry = n // tape.interval - tape.first
            unpack_frame(tape.samples, entry, window, grid, part, u)
            add_products(grid, prev, part, change, u)


@within_loops
def step_backward(shot, fields, n, steps, part, adjoint_source, team):
    """Compute the adjoint fields of the steps n - 1 to n - `steps` in a part of the grid.

    It is the transpose of `step_forward`, with zeta updated `reach` planes ahead of phi, and phi
    `reach` planes ahead of the field. A thread injects the adjoint source only into cells of its
    own part, because other threads may not have stepped theirs yet.
    """
    tables, line = shot.tables, fields.lines[team.rank]
    grid, reach, passes = tables.grid, reach_of(tables), count_passes(shot, steps)
    behind = 3 * reach + 1
    for number in range(passes):
        for front in range(part.front - 2 * reach, part.back + (steps - 1) * behind):
            for k in range(steps):
                m, plane = n - k, front - k * behind
                q, prev = fields.waves[m % 2], fields.waves[(m + 1) % 2]
                if number == 0:
                    relax_slabs_back(tables, fields, q, in_plane(part, plane + 2 * reach))
                    relax_slopes_back(tables, fields, q, in_plane(part, plane + reach))
                if is_in_pass(shot, number, k, part, plane):
                    here = in_plane(part, plane)
                    advance_part_back(tables, fields, m, here)
                    arriving, rows = adjoint_source[m - 1], rows_of(grid, here, plane)
                    inject(prev, tables.v2dt2, shot.receivers, arriving, None, rows, line)
                    if plane == min(reach, part.back - 1):
                        reflect(tables, prev, team)
            barrier(team)
        last = n - steps + passes - 1 - number
        exchange(shot.neighbours, grid, tables.cut, fields.waves[last % 2], team)


@within_loops
def keep_records(shot, fields, n, window, tape, records, team):
    """Record the traces and the energy of step n, and store the cells from which p is rebuilt."""
    grid, p, rebuilding = shot.tables.grid, fields.waves[n % 2], tape.rebuilding
    one, line = shot.tables.v2dt2.dtype.type(1), fields.lines[team.rank]
    record(records.traces[n], p, shot.receivers, one, team, line)
    if rebuilding.active:
        whole = whole_of(grid)
        pack_frame(rebuilding.rim, n, whole, grid, share(whole, team.size, team.rank), p)
    if stores_sample(tape, n) and records.energy.shape[0] > 0:
        add_squares(grid, records.energy, share(window, team.size, team.rank), p)


@loop
def sweep_forward(shot, fields, span, tape, records, team):
    """Simulate one shot from step span[0] to step span[1], and fill the tape and the records."""
    tables, (begin, end) = shot.tables, span
    grid, cut, radius = tables.grid, tables.cut, len(tables.laplacian.x)
    window = window_at(tape, max(0, begin - 1))
    n = begin
    while n < end:
        if n % STEPS_PER_WINDOW == 0 and n > 0:
            if tape.explores:
                faces = find_wave(cut, grid, radius, window, fields.waves[n % 2])
                faces = unite_faces(shot.neighbours, faces, team)
                window = widen(cut.whole, tables.sides.width, window, faces)
                if team.rank == 0:
                    # A slice would make Numba compile the error message for unequal shapes.
                    for k in range(len(window)):
                        tape.windows[n // STEPS_PER_WINDOW, k] = window[k]
            else:
                window = window_at(tape, n)
        steps, part = count_together(shot, n, end - n), in_layer(cut, grid, window)
        keep_records(shot, fields, n, part, tape, records, team)
        step_forward(shot, fields, n, steps, part, tape, None, team)
        if steps == 2:
            keep_records(shot, fields, n + 1, part, tape, records, team)
            barrier(team)
        n += steps
    last = shot.wavelet.shape[0] - 1
    if end == last:
        one, line = tables.v2dt2.dtype.type(1), fields.lines[team.rank]
        record(records.traces[last], fields.waves[last % 2], shot.receivers, one, team, line)


@within_loops
def add_gradients(shot, fields, n, tape, way_back, team):
    """Add the terms of step n to the gradients, and rebuild p of step n - 1 if it is needed."""
    tables, rebuilding, u = shot.tables, tape.rebuilding, tape.u
    grid, v2dt2, line = tables.grid, tables.v2dt2, fields.lines[team.rank]
    q = fields.waves[(n + 1) % 2]
    whole, window = whole_of(grid), part_at(tables, tape, n)
    mine, part = share(whole, team.size, team.rank), share(window, team.size, team.rank)
    record(way_back.wavelet_gradient[n], q, shot.sources, shot.scale, team, line)
    sampled = stores_sample(tape, n)
    if sampled:
        k = n // tape.interval - tape.first
        unpack_frame(tape.samples, k, window, grid, part, u)
    if rebuilding.active:
        now, earlier = rebuilding.waves[n % 2], rebuilding.waves[(n + 1) % 2]
        unpack_frame(rebuilding.rim, n, whole, grid, mine, now)
        barrier(team)
        exchange(shot.neighbours, grid, tables.cut, now, team)
        inner, emitted = clamp(shot.interior, part), shot.wavelet[n]
        if not sampled:
            rebuild(tables, rebuilding.waves, n, inner, None)
        else:
            rebuild(tables, rebuilding.waves, n, inner, u)
        for plane in range(part.front, part.back):
            rows = rows_of(grid, part, plane)
            if sampled:
                drive(u, shot.sources, emitted, shot.scale, rows, line, True)
            inject(earlier, v2dt2, shot.sources, emitted, shot.scale, rows, line)
        reflect(tables, earlier, team)
    if sampled:
        add_products(grid, way_back.image, part, q, u)
        if way_back.energy.shape[0] > 0:
            add_squares(grid, way_back.energy, mine, q)


@loop
def sweep_backward(shot, fields, span, tape, way_back, team):
    """Apply the transpose of `sweep_forward` to the gradient with respect to the traces.

    If no energy is wanted, q is computed only in the window of p, and has leftover values
    elsewhere. The errors that they cause have no weight, because p does not depend on cells in
    which it is zero. If p is rebuilt, it is not exactly zero there, and q is computed everywhere.
    """
    tables, adjoint_source = shot.tables, way_back.adjoint_source
    everywhere = way_back.energy.shape[0] > 0 or tape.rebuilding.active
    whole, line = whole_of(tables.grid), fields.lines[team.rank]
    last = adjoint_source.shape[0] - 1
    begin, end = span
    if end == last:
        q, arriving = fields.waves[last % 2], adjoint_source[last]
        mine = share(whole, team.size, team.rank)
        for plane in range(mine.front, mine.back):
            rows = rows_of(tables.grid, mine, plane)
            inject(q, tables.v2dt2, shot.receivers, arriving, None, rows, line)
        reflect(tables, q, team)
        barrier(team)
        exchange(shot.neighbours, tables.grid, tables.cut, q, team)
    n = end - 1
    while n >= begin:
        wide = share(whole if everywhere else part_at(tables, tape, n), team.size, team.rank)
        steps = count_together(shot, n + 1, n + 1 - begin)
        add_gradients(shot, fields, n, tape, way_back, team)
        step_backward(shot, fields, n + 1, steps, wide, adjoint_source, team)
        if steps == 2:
            add_gradients(shot, fields, n - 1, tape, way_back, team)
            barrier(team)
        n -= steps


class Scattering(NamedTuple):
    """The input and the result of the scattering sweep.

    change: field, the change of v2dt2 times the interval of the samples; traces: (time, receiver),
    which are set.
    """

    change: NDArray
    traces: NDArray


@loop
def sweep_scattered(shot, fields, span, tape, scattering, team):
    """Simulate the scattered field from step span[0] to step span[1].

    The tape has all samples of these steps. The scattered field is zero where the wave is zero, so
    that only the windows that the forward sweep has found are computed.
    """
    tables, traces, change = shot.tables, scattering.traces, scattering.change
    one, line, (begin, end) = tables.v2dt2.dtype.type(1), fields.lines[team.rank], span
    n = begin
    while n < end:
        steps = count_together(shot, n, end - n)
        record(traces[n], fields.waves[n % 2], shot.receivers, one, team, line)
        step_forward(shot, fields, n, steps, part_at(tables, tape, n), tape, change, team)
        if steps == 2:
            record(traces[n + 1], fields.waves[(n + 1) % 2], shot.receivers, one, team, line)
            barrier(team)
        n += steps
    last = traces.shape[0] - 1
    if end == last:
        record(traces[last], fields.waves[last % 2], shot.receivers, one, team, line)
