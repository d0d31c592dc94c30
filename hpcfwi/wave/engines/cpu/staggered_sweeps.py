"""Compiled time loops of the `cpu` engine for first-order equations: one shot, one time direction.

A loop goes through the grid in slices, which are planes, or in 2-D blocks of rows;
`staggered_blocks` computes a stage in a block of rows, which stays in the cache. A thread that
works alone on a shot computes the second stage shortly behind the first one, before the fields
leave the cache, and in a large grid also the next few steps. Its buffers need few rows. Threads
that share a shot use buffers of the size of the grid, and barriers. Processes that share a shot
compute a layer of its grid each. After each stage they exchange the fields that the other stage
reads along z, or in a transposed stage, the buffers of the differences along z. Windows on the tape
are those of the whole grid, and all others those of the layer.

Parameters have the same meaning as in `staggered_blocks`; part is the `Box` of cells that this
thread computes; team is a `ThreadTeam`.
"""

import numpy as np

from hpcfwi.wave.engines.cpu.jit import fma, loop, within_loops
from hpcfwi.wave.engines.cpu.kernels import Cells, cells_of, zero_of
from hpcfwi.wave.engines.cpu.layout import BLOCK, MARGIN
from hpcfwi.wave.engines.cpu.staggered_blocks import (
    advance_block,
    clear,
    mask_of,
    radius_of,
    scatter_rows,
    weigh_block,
)
from hpcfwi.wave.engines.cpu.sweeps import in_plane, in_rows, window_at
from hpcfwi.wave.engines.cpu.teams import barrier, exchange_fields, unite_faces
from hpcfwi.wave.engines.cpu.windows import STEPS_PER_WINDOW, find_wave, in_layer, share, widen

# Steps of a pass through arrays with more bytes than CACHE; it divides STEPS_PER_WINDOW.
STEPS_PER_PASS, CACHE = 4, 10_000_000
# A row after all of an array
END = 2**60
# Blocks of rows have this number of cells, but LEAST_ROWS to MOST_ROWS rows: a call takes as long
# as dozens of cells, and the fields of a block should stay in the second cache.
ENOUGH_CELLS, LEAST_ROWS, MOST_ROWS = 8192, BLOCK // 2, 4 * BLOCK


@within_loops
def lag_of(tables):
    """Return the number of slices by which a stage follows the one before it."""
    return radius_of(tables) + 1 if tables.grid.planes > 1 else 1


@within_loops
def height_of(part):
    """Return the number of rows that are computed together: more of them if they are short."""
    rows = LEAST_ROWS
    while rows < MOST_ROWS and rows * (part.right - part.left) < ENOUGH_CELLS:
        rows *= 2
    return rows


@within_loops
def count_slices(grid, part):
    """Return the number of slices of a part of the grid: of planes, or of blocks of rows in 2-D."""
    if grid.planes > 1:
        return part.back - part.front
    return -(-(part.bottom - part.top) // height_of(part))


@within_loops
def slice_of(grid, part, s):
    """Return slice s of a part of the grid."""
    if grid.planes > 1:
        return in_plane(part, part.front + s)
    top = part.top + s * height_of(part)
    return in_rows(part, top, min(top + height_of(part), part.bottom))


@within_loops
def advance_slice(shot, state, k, n, part, s, window, tape, change):
    """Update the fields of stage k in a slice of a part of the grid."""
    here = slice_of(shot.tables.grid, part, s)
    rows = height_of(part)
    for top in range(here.top, here.bottom, rows):
        block = in_rows(here, top, min(top + rows, here.bottom))
        advance_block(shot, state, k, n, block, here.front, window, tape, change)


@within_loops
def reflect(tables, fields, k, part):
    """Set the fields of stage k above a free surface to the images of those below it.

    Where the depths are planes, a thread does so in its rows; otherwise the first one does.
    """
    stage, grid, deep = tables.stages[k], tables.grid, tables.surface
    for i in range(stage.n_images):
        it = stage.images[i]
        f = fields[it.field]
        for away in range(1, radius_of(tables) + 1):
            image, depth = -away * deep, (away - it.shift) * deep
            for r in range(first_of(grid, part), end_of(grid, part)):
                for j in range(f.shape[1]):
                    f[r + image, j] = it.sign * f[r + depth, j]


@within_loops
def first_of(grid, part):
    """Return the first array row at the free surface that a thread reflects."""
    return grid.base + (part.top if grid.planes > 1 else 0)


@within_loops
def end_of(grid, part):
    """Return the last of these rows + 1."""
    if grid.planes > 1:
        return grid.base + part.bottom
    return grid.base + (1 if part.top == 0 else 0)


@within_loops
def most_steps(shot, state, team):
    """Return the number of steps of a pass through the grid.

    It is one if arrays stay in the cache from step to step, if threads or processes share the shot,
    or if a trace reads so many rows that a later step would change the first before it has them.
    """
    tables = shot.tables
    large = state.fields.nbytes + tables.rates.nbytes > CACHE
    rows = 2 * lag_of(tables) * (tables.grid.stride if tables.grid.planes > 1 else LEAST_ROWS)
    alone = team.size == 1 and shot.neighbours.size == 1
    return STEPS_PER_PASS if large and alone and shot.recorders.span <= rows else 1


@within_loops
def pass_forward(shot, state, n, steps, window, tape, traces, change, team):
    """Simulate steps n to n + steps - 1 in a window, and record the traces.

    Each stage of each step follows the one before it by a few slices.
    """
    tables, grid, fields = shot.tables, shot.tables.grid, state.fields
    neighbours = shot.neighbours
    part = share(window, team.size, team.rank)
    count, lag = count_slices(grid, part), lag_of(tables)
    if team.size > 1 or neighbours.size > 1:
        lag = max(count, lag)
    # Numba would compile the functions again for each literal number
    early, late = np.int64(0), np.int64(1)
    record(shot.recorders, early, fields, traces[n], team)
    last = 2 * steps - 1
    for s in range(max(count, 1) + last * lag):
        for stage in range(2 * steps):
            k, place = stage % 2, s - stage * lag
            if place == 0 and stage > 0:
                # The rows below the surface may be those of several threads
                join_stage(tables, neighbours, 1 - k, fields, part, team)
            if 0 <= place < count:
                step = n + stage // 2
                advance_slice(shot, state, k, step, part, place, window, tape, change)
                if stage + 1 < last:
                    begin, end = rows_of(grid, part, place, count)
                    step += k
                    record_rows(shot.recorders, 1 - k, fields, traces[step], begin, end)
    barrier(team)
    record(shot.recorders, late, fields, traces[n + steps - 1], team)
    join_stage(tables, neighbours, late, fields, part, team)


@within_loops
def join_stage(tables, neighbours, k, fields, part, team):
    """Set the fields of stage k above a free surface and around the layer."""
    barrier(team)
    numbers = tables.seams.fields[k]
    exchange_fields(neighbours, tables.grid, tables.cut, fields, numbers, team)
    reflect(tables, fields, k, part)
    barrier(team)


@within_loops
def rows_of(grid, part, s, count):
    """Return the array rows of slice s, with all rows before the first slice or after the last."""
    here = slice_of(grid, part, s)
    begin, end = here.top, here.bottom
    if grid.planes > 1:
        begin, end = here.front * grid.stride, here.back * grid.stride
    begin = grid.base + begin if s > 0 else -END
    end = grid.base + end if s + 1 < count else END
    return begin, end


@within_loops
def record_rows(recorders, k, fields, traces, begin, end):
    """Set the traces that are read before stage k and end in array rows from begin to end - 1."""
    first = find_trace(recorders, k, begin)
    record_traces(recorders, fields, traces, first, find_trace(recorders, k, end))


@within_loops
def find_trace(recorders, k, row):
    """Return the first trace of those read before stage k that ends in this row or later."""
    low, high = recorders.stages[k], recorders.stages[k + 1]
    while low < high:
        middle = (low + high) // 2
        if recorders.rows[middle] < row:
            low = middle + 1
        else:
            high = middle
    return low


@within_loops
def record(recorders, k, fields, traces, team):
    """Set this thread's share of the traces that are read before stage k."""
    first = recorders.stages[k]
    n = recorders.stages[k + 1] - first
    begin, end = n * team.rank // team.size, n * (team.rank + 1) // team.size
    record_traces(recorders, fields, traces, first + begin, first + end)


@within_loops
def record_traces(recorders, fields, traces, begin, end):
    """Set some traces."""
    for r in range(begin, end):
        total = zero_of(fields)
        for e in range(recorders.ends[r], recorders.ends[r + 1]):
            it = recorders.cells[e]
            total = fma(recorders.weights[e], fields[it.field, it.row, it.column], total)
        traces[recorders.traces[r]] = total


@loop
def add_values(total, weight, values):
    """Add values at all times, multiplied by a weight, to a trace, as `record` does."""
    for n in range(len(total)):
        total[n] = fma(weight, values[n], total[n])


@within_loops
def widen_all(shot, window, fields, team):
    """Return a window of the whole grid that no field can leave within STEPS_PER_WINDOW steps."""
    cut, grid, faces = shot.tables.cut, shot.tables.grid, 0
    for f in range(len(fields)):
        faces |= find_wave(cut, grid, radius_of(shot.tables), window, fields[f])
    return widen(cut.whole, 0, window, unite_faces(shot.neighbours, faces, team))


@loop
def sweep_staggered(shot, state, span, tape, traces, change, team):
    """Simulate one shot from step span[0] to step span[1], and fill the tape and the traces.

    traces: (time, trace); change: see `advance_block`.
    """
    tables, (n, end) = shot.tables, span
    window = window_at(tape, max(0, n - 1))
    while n < end:
        if n % STEPS_PER_WINDOW == 0 and n > 0:
            if tape.explores:
                window = widen_all(shot, window, state.fields, team)
                barrier(team)
                if team.rank == 0:
                    for k in range(len(window)):
                        tape.windows[n // STEPS_PER_WINDOW, k] = window[k]
            else:
                window = window_at(tape, n)
        part = in_layer(tables.cut, tables.grid, window)
        most = min(STEPS_PER_WINDOW - n % STEPS_PER_WINDOW, end - n)
        steps = min(most_steps(shot, state, team), most)
        pass_forward(shot, state, n, steps, part, tape, traces, change, team)
        n += steps


@within_loops
def weigh_slice(shot, state, k, n, part, s, window, tape, rates, energies):
    """Do the work of `weigh_block` in a slice of a part of the grid."""
    grid = shot.tables.grid
    here = slice_of(grid, part, s)
    rows = height_of(part)
    for top in range(here.top, here.bottom, rows):
        block = in_rows(here, top, min(top + rows, here.bottom))
        weigh_block(shot, state, k, n, block, here.front, window, tape, rates, energies)


@within_loops
def clear_planes(shot, state, k, part, front, back):
    """Set the buffers of stage k to 0 in some planes."""
    mask = mask_of(state.buffers)
    for d in range(shot.tables.stages[k].n_differences):
        for plane in range(front, back):
            clear(state.buffers[d], part, shot.tables.grid, plane, mask)


@within_loops
def scatter_slice(shot, state, k, part, s):
    """Apply the transposed differences of stage k in a slice of a part of the grid."""
    grid = shot.tables.grid
    here = slice_of(grid, part, s)
    rows = height_of(part)
    for top in range(here.top, here.bottom, rows):
        block = in_rows(here, top, min(top + rows, here.bottom))
        scatter_rows(shot.tables, state, k, cells_of(grid, block, here.front), False)


@within_loops
def reflect_back(tables, state, k, part):
    """Apply the transpose of `reflect` to the fields that the transposed stage k changes."""
    grid, deep, stage = tables.grid, tables.surface, tables.stages[1 - k]
    if deep == 0 or (grid.planes > 1 and part.front > 0):
        return
    first, rows = first_of(grid, part), end_of(grid, part) - first_of(grid, part)
    for away in range(1, radius_of(tables) + 1):
        cells = Cells(first - away * deep, rows, part.left + MARGIN, part.right - part.left)
        scatter_rows(tables, state, k, cells, True)
    for i in range(stage.n_images):
        it = stage.images[i]
        f = state.fields[it.field]
        for away in range(1, radius_of(tables) + 1):
            image, depth = -away * deep, (away - it.shift) * deep
            for r in range(first, first + rows):
                for j in range(f.shape[1]):
                    f[r + depth, j] += it.sign * f[r + image, j]
                    f[r + image, j] = 0


@within_loops
def stage_backward(shot, state, k, n, window, tape, rates, energies, team):
    """Apply the transpose of stage k of step n in a window."""
    tables, grid = shot.tables, shot.tables.grid
    part, reach = share(window, team.size, team.rank), radius_of(tables)
    count, lag, divided = count_slices(grid, part), lag_of(tables), shot.neighbours.size > 1
    if team.size > 1 or divided:
        lag = max(count, lag)
    # Images above a free surface reach twice as far as the window.
    if grid.planes > 1:
        clear_planes(shot, state, k, part, window.front - 2 * reach, window.front)
    else:
        above = in_rows(window, window.top - 2 * reach, window.top)
        clear_planes(shot, state, k, above, above.front, above.back)
    if divided and grid.planes > 1:
        clear_planes(shot, state, k, part, window.back, window.back + reach)
    elif divided:
        # A layer that the window ends above has no block that does so.
        below = in_rows(window, window.bottom, window.bottom + reach)
        clear_planes(shot, state, k, below, below.front, below.back)
    for s in range(max(count, 1) + lag):
        if s < count:
            weigh_slice(shot, state, k, n, part, s, window, tape, rates, energies)
        elif grid.planes > 1 and s - count < reach and not divided:
            after = window.back + s - count
            clear_planes(shot, state, k, part, after, after + 1)
        if s == lag:
            barrier(team)
            numbers = tables.seams.differences[k]
            exchange_fields(shot.neighbours, grid, tables.cut, state.buffers, numbers, team)
            reflect_back(tables, state, k, part)
            barrier(team)
        if 0 <= s - lag < count:
            scatter_slice(shot, state, k, part, s - lag)
    barrier(team)


@within_loops
def inject(recorders, k, fields, arriving, window, grid, team):
    """Apply the transpose of `record` in the rows of this thread."""
    part = share(window, team.size, team.rank)
    for r in range(recorders.stages[k], recorders.stages[k + 1]):
        for e in range(recorders.ends[r], recorders.ends[r + 1]):
            it = recorders.cells[e]
            row = (it.row - grid.base) % grid.stride
            if part.top <= row < part.bottom:
                value = recorders.weights[e] * arriving[recorders.traces[r]]
                fields[it.field, it.row, it.column] += value


@within_loops
def differentiate_sources(emitters, k, fields, signal, by_signal, by_weights):
    """Add the terms of stage k of a step to the gradients with respect to the sources."""
    for e in range(emitters.ends[k], emitters.ends[k + 1]):
        it = emitters.cells[e]
        value = fields[it.field, it.row, it.column]
        by_signal[it.source] = fma(emitters.weights[e], value, by_signal[it.source])
        by_weights[e] = fma(value, signal[it.source], by_weights[e])


@loop
def sweep_staggered_back(shot, state, span, tape, arriving, gradients, team):
    """Apply the transpose of `sweep_staggered` for these steps, the last one first.

    Only the window of the forward wave is computed, see `sweeps.sweep_backward`. arriving: the
    gradient with respect to the traces, (time, trace).
    """
    tables = shot.tables
    for n in range(span[1] - 1, span[0] - 1, -1):
        window = in_layer(tables.cut, tables.grid, window_at(tape, n))
        for k in (1, 0):
            numbers = tables.seams.sources[k]
            exchange_fields(shot.neighbours, tables.grid, tables.cut, state.fields, numbers, team)
            if team.rank == 0:
                differentiate_sources(
                    shot.sources,
                    k,
                    state.fields,
                    shot.signal[n],
                    gradients.signal[n],
                    gradients.emitters,
                )
            # The sources near a free surface read memory variables, which the stage changes
            barrier(team)
            stage_backward(
                shot, state, k, n, window, tape, gradients.rates, gradients.energies, team
            )
            inject(shot.injectors, k, state.fields, arriving[n], window, tables.grid, team)
            barrier(team)
