"""Compiled time loops of the `cpu` engine for first-order equations: one shot, one time direction.

The loops do not depend on the equation. `StaggeredTables` lists its differences, absorbing layers
and terms, and a loop goes through these lists for a block of rows at a time, which stays in the
cache. A stage first computes every difference in a buffer and absorbs there, then adds the
differences, multiplied by their rates, to the fields that the stage updates. The transposed stage
first multiplies the adjoint fields by the rates, absorbs, and then applies the transposed
differences. Both apply the same functions to rows, because the transpose of a forward difference is
a backward difference with the opposite sign.

The buffers have one array for each difference of a stage, whose row is a row of the grid modulo the
number of rows of the buffer, a power of two. A thread that works alone on a shot needs few rows,
and computes the second stage shortly behind the first one, before the fields leave the cache, and
in a large grid also the next few steps.
Threads that share a shot use buffers of the size of the grid, and barriers. Processes that share a
shot compute a layer of its grid each. After each stage they exchange the fields that the other
stage reads along z, or in a transposed stage, the buffers of the differences along z. Windows on
the tape are those of the whole grid, and all others those of the layer.

Parameters have the same meaning in all functions here: tables is a `StaggeredTables`; fields
(field, row, column); buffers (difference, row, column); n is the number of a step; part is the
`Box` of cells that this thread computes; team is a `ThreadTeam`.
"""

from typing import Any

import numpy as np
from numba import njit

from hpcfwi.wave.engines.cpu.kernels import (
    LOOPS_ALONE,
    Cells,
    U,
    add_square,
    cells_of,
    fma,
    loop,
    zero_of,
)
from hpcfwi.wave.engines.cpu.layout import BLOCK, MARGIN, Box
from hpcfwi.wave.engines.cpu.staggered_rows import (
    absorb_across,
    absorb_along,
    add_one,
    add_rows,
    add_share,
    add_square_of_buffer,
    add_three,
    add_two,
    decay_and_add,
    difference_across,
    difference_along,
    update,
    update_pair,
    weigh_first,
    weigh_next,
)
from hpcfwi.wave.engines.cpu.staggered_tables import (
    PAIR_OF_DIFFERENCES,
    SUM_OF_DIFFERENCES,
)
from hpcfwi.wave.engines.cpu.sweeps import in_plane, in_rows, stores_sample, window_at
from hpcfwi.wave.engines.cpu.teams import barrier, exchange_fields, unite_faces
from hpcfwi.wave.engines.cpu.windows import (
    STEPS_PER_WINDOW,
    cells_before,
    find_wave,
    in_layer,
    pack,
    share,
    unpack,
    widen,
)

# Numba counts the references to each array that is passed, which takes as long as a hundred cells
# for each call. These functions do not, because no array is created or deleted in them.
_LEAN: dict[str, Any] = {"nogil": True, "_nrt": False}
lean_loop: Any = njit(**_LEAN)
within_lean_loops: Any = njit(**_LEAN, **LOOPS_ALONE)
# The code of a function is optimized again in each function that calls it. Those with one caller
# become part of it instead, which halves the time of compilation.
inlined: Any = njit(**_LEAN, **LOOPS_ALONE, inline="always")

# Steps of a pass through arrays with more bytes than CACHE; it divides STEPS_PER_WINDOW.
STEPS_PER_PASS, CACHE = 4, 10_000_000
# A row after all of an array
END = 2**60
# Blocks of rows have this number of cells, but LEAST_ROWS to MOST_ROWS rows: a call takes as long
# as dozens of cells, and the fields of a block should stay in the second cache.
ENOUGH_CELLS, LEAST_ROWS, MOST_ROWS = 8192, BLOCK // 2, 4 * BLOCK


@within_lean_loops
def mask_of(buffers):
    """Return the bits of a row of the grid that count in a buffer."""
    return U(buffers.shape[1] - 2)


@within_lean_loops
def overlap(box, layer):
    """Return the cells of a box that lie in a layer: no rows if none do."""
    front, back = max(box.front, layer.front), min(box.back, layer.back)
    top, bottom = max(box.top, layer.top), min(box.bottom, layer.bottom)
    left, right = max(box.left, layer.left), min(box.right, layer.right)
    if front >= back or left >= right:
        bottom = top
    return Box(front, back, top, max(top, bottom), left, right)


@within_lean_loops
def relax(tables, difference, buffer, memory, block, plane, mask):
    """Absorb the difference in a buffer in the layers that a block of rows of a plane meets."""
    for number in range(difference.first_layer, difference.end_layer):
        layer = tables.layers[number]
        box = overlap(block, layer)
        if box.top < box.bottom:
            cells = cells_of(tables.grid, box, plane)
            relax_cells(tables, layer, buffer, memory, box, plane, cells, mask, True)


@within_lean_loops
def relax_cells(tables, layer, buffer, memory, box, plane, cells, mask, add):
    """Update the memory variables of a difference in a buffer, see `absorb_across`."""
    width, rows = layer.right - layer.left, layer.bottom - layer.top
    row = (plane - layer.front) * rows + box.top - layer.top
    at = layer.memory + row * width + box.left - layer.left
    a, b = tables.a[layer.profile], tables.b[layer.profile]
    if layer.along == 2:
        absorb_along(buffer, memory, cells, mask, at, width, a, b, box.left, add)
    elif layer.along == 1:
        absorb_across(buffer, memory, cells, mask, at, width, a, b, box.top, 1, add)
    else:
        absorb_across(buffer, memory, cells, mask, at, width, a, b, plane, 0, add)


@within_lean_loops
def differ(tables, difference, fields, out, cells, mask):
    """Set a buffer to a difference."""
    f, weights, whole = fields[difference.field], tables.weights[difference.axis], ~U(0)
    stride, between = difference.stride, difference.between
    if stride > 0:
        difference_across(out, f, cells, mask, whole, stride, between, weights, None)
    else:
        difference_along(out, f, cells, mask, whole, between, weights, None)


@inlined
def update_sum(tables, stage, group, fields, cells):
    """Update the field of a group whose terms have the same rate, without the layers."""
    target, d = stage.targets[group.first_target], group.first_difference
    out, rate = fields[target.field], tables.rates[stage.terms[target.first_term].rate]
    count = group.end_difference - d
    one, two = stage.differences[d], stage.differences[min(d + 1, group.end_difference - 1)]
    last = stage.differences[group.end_difference - 1]
    f, g, h = fields[one.field], fields[two.field], fields[last.field]
    strides, places = (one.stride, two.stride), (one.between, two.between, last.between)
    u, v, w = tables.weights[one.axis], tables.weights[two.axis], tables.weights[last.axis]
    if count == 3:
        update(out, rate, f, g, h, cells, strides, places, u, v, w)
    elif count == 2 and last.stride > 0:
        update(out, rate, f, g, None, cells, strides, places, u, v, w)
    elif count == 2:
        update(out, rate, f, None, h, cells, strides, places, u, v, w)
    elif last.stride > 0:
        update(out, rate, f, None, None, cells, strides, places, u, v, w)
    else:
        update(out, rate, None, None, h, cells, strides, places, u, v, w)


@inlined
def update_both(tables, stage, group, fields, cells):
    """Update the two fields of a group with two differences, without the layers."""
    t, d = group.first_target, group.first_difference
    one, two = stage.targets[t], stage.targets[t + 1]
    across, along = stage.differences[d], stage.differences[d + 1]
    a, b = stage.terms[one.first_term].rate, stage.terms[one.first_term + 1].rate
    c, e = stage.terms[two.first_term].rate, stage.terms[two.first_term + 1].rate
    update_pair(
        fields[one.field],
        fields[two.field],
        tables.rates[a],
        tables.rates[b],
        tables.rates[c],
        tables.rates[e],
        fields[across.field],
        fields[along.field],
        cells,
        across.stride,
        (across.between, along.between),
        tables.weights[across.axis],
        tables.weights[along.axis],
    )


@inlined
def update_by_buffers(tables, stage, group, fields, buffers, cells, mask):
    """Do the work of the two functions above with a buffer for each difference, which remains."""
    for d in range(group.first_difference, group.end_difference):
        differ(tables, stage.differences[d], fields, buffers[d], cells, mask)
        if group.kind == SUM_OF_DIFFERENCES and d > group.first_difference:
            add_rows(buffers[group.first_difference], buffers[d], cells, mask)
    for t in range(group.first_target, group.end_target):
        target = stage.targets[t]
        out, first = fields[target.field], target.first_term
        count, one = target.end_term - first, stage.terms[first]
        a, x = tables.rates[one.rate], buffers[one.buffer]
        if count == 1 or group.kind == SUM_OF_DIFFERENCES:
            add_one(out, a, x, cells, mask)
        else:
            two = stage.terms[first + 1]
            b, y = tables.rates[two.rate], buffers[two.buffer]
            if count == 2:
                add_two(out, a, x, b, y, cells, mask)
            else:
                three = stage.terms[first + 2]
                c, z = tables.rates[three.rate], buffers[three.buffer]
                add_three(out, a, x, b, y, c, z, cells, mask)


@inlined
def absorb_block(tables, stage, state, block, plane, mask, sampled):
    """Add the memory variables of a block of rows to the fields that a stage updates.

    sampled: True if they are also added to the buffers of the differences.
    """
    fields, buffers = state.fields, state.buffers
    work = buffers[-1]
    for d in range(stage.n_differences):
        it = stage.differences[d]
        for number in range(it.first_layer, it.end_layer):
            layer = tables.layers[number]
            box = overlap(block, layer)
            if box.top < box.bottom:
                cells = cells_of(tables.grid, box, plane)
                differ(tables, it, fields, work, cells, mask)
                relax_cells(tables, layer, work, state.memory, box, plane, cells, mask, None)
                for w in range(stage.ends[d], stage.ends[d + 1]):
                    term = stage.weights[w]
                    add_one(fields[term.field], tables.rates[term.rate], work, cells, mask)
                if sampled:
                    add_rows(buffers[it.buffer], work, cells, mask)


@inlined
def advance_block(shot, state, k, n, block, plane, window, tape, change):
    """Update the fields of stage k in a block of rows of a plane.

    change: None for the wave of the sources, whose samples are stored. The scattered field has the
    changes of the rates, (rate, row, column), and reads the samples.
    """
    tables, fields, buffers = shot.tables, state.fields, state.buffers
    stage, mask = tables.stages[k], mask_of(buffers)
    cells = cells_of(tables.grid, block, plane)
    sampled = stores_sample(tape, n) and stage.n_samples > 0
    for m in range(stage.n_relaxations):
        it = stage.relaxations[m]
        decay = tables.decays[it.number]
        add_share(fields[it.field], fields[it.memory], tables.share, decay, cells)
    for g in range(stage.n_groups):
        group = stage.groups[g]
        if group.kind == SUM_OF_DIFFERENCES and not sampled:
            update_sum(tables, stage, group, fields, cells)
        elif group.kind == PAIR_OF_DIFFERENCES and not sampled:
            update_both(tables, stage, group, fields, cells)
        else:
            update_by_buffers(tables, stage, group, fields, buffers, cells, mask)
    absorb_block(tables, stage, state, block, plane, mask, sampled and change is None)
    if sampled:
        entry = n // tape.interval
        for s in range(stage.n_samples):
            if change is None:
                buffer = buffers[stage.samples[s]]
                store_block(tables, tape, entry, k, s, block, plane, window, buffer, mask)
            else:
                load_block(tables, tape, entry, k, s, block, plane, window, buffers[-1], mask)
                for p in range(stage.n_products):
                    it = stage.products[p]
                    if it.sample == s:
                        out, rate = fields[it.field], change[it.gradient]
                        add_one(out, rate, buffers[-1], cells, mask)
    for m in range(stage.n_relaxations):
        it = stage.relaxations[m]
        add_share(fields[it.field], fields[it.memory], tables.share, None, cells)
    emit(shot.emitters, k, fields, shot.signal[n], cells)


@within_lean_loops
def emit(emitters, k, fields, signal, cells):
    """Add the signals of the sources to the fields of stage k, in the rows of some cells."""
    begin, end = emitters.ends[k], emitters.ends[k + 1]
    if begin < end and emitters.cells[begin].row < cells.row + cells.rows:
        low, high = begin, end
        while low < high:
            middle = (low + high) // 2
            if emitters.cells[middle].row < cells.row:
                low = middle + 1
            else:
                high = middle
        for e in range(low, end):
            it = emitters.cells[e]
            if it.row >= cells.row + cells.rows:
                break
            fields[it.field, it.row, it.column] += emitters.weights[e] * signal[it.source]


@within_lean_loops
def entry_of(tables, entry, k, s):
    """Return the entry of the store for sample s of stage k of a step."""
    first = tables.stages[0].n_samples
    return entry * (first + tables.stages[1].n_samples) + k * first + s


@inlined
def store_block(tables, tape, entry, k, s, block, plane, window, buffer, mask):
    """Store a sample of a step in a block of rows."""
    grid, at = tables.grid, entry_of(tables, entry, k, s)
    for row in range(block.top, block.bottom):
        r = grid.base + plane * grid.stride + row
        cells = Cells(int(U(r) & mask), 1, block.left + MARGIN, block.right - block.left)
        pack(tape.samples, at, cells_before(window, plane, row), 2 * r, buffer, cells)


@within_lean_loops
def load_block(tables, tape, entry, k, s, block, plane, window, buffer, mask):
    """Load a sample that `store_block` has stored."""
    grid, at = tables.grid, entry_of(tables, entry, k, s)
    for row in range(block.top, block.bottom):
        r = grid.base + plane * grid.stride + row
        cells = Cells(int(U(r) & mask), 1, block.left + MARGIN, block.right - block.left)
        unpack(tape.samples, at, cells_before(window, plane, row), 2 * r, buffer, cells)


@within_lean_loops
def radius_of(tables):
    """Return the number of cells that a difference reaches."""
    return len(tables.weights[0])


@within_lean_loops
def lag_of(tables):
    """Return the number of slices by which a stage follows the one before it."""
    return radius_of(tables) + 1 if tables.grid.planes > 1 else 1


@within_lean_loops
def height_of(part):
    """Return the number of rows that are computed together: more of them if they are short."""
    rows = LEAST_ROWS
    while rows < MOST_ROWS and rows * (part.right - part.left) < ENOUGH_CELLS:
        rows *= 2
    return rows


@within_lean_loops
def count_slices(grid, part):
    """Return the number of slices of a part of the grid: of planes, or of blocks of rows in 2-D."""
    if grid.planes > 1:
        return part.back - part.front
    return -(-(part.bottom - part.top) // height_of(part))


@within_lean_loops
def slice_of(grid, part, s):
    """Return slice s of a part of the grid."""
    if grid.planes > 1:
        return in_plane(part, part.front + s)
    top = part.top + s * height_of(part)
    return in_rows(part, top, min(top + height_of(part), part.bottom))


@inlined
def advance_slice(shot, state, k, n, part, s, window, tape, change):
    """Update the fields of stage k in a slice of a part of the grid."""
    here = slice_of(shot.tables.grid, part, s)
    rows = height_of(part)
    for top in range(here.top, here.bottom, rows):
        block = in_rows(here, top, min(top + rows, here.bottom))
        advance_block(shot, state, k, n, block, here.front, window, tape, change)


@within_lean_loops
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


@within_lean_loops
def first_of(grid, part):
    """Return the first array row at the free surface that a thread reflects."""
    return grid.base + (part.top if grid.planes > 1 else 0)


@within_lean_loops
def end_of(grid, part):
    """Return the last of these rows + 1."""
    if grid.planes > 1:
        return grid.base + part.bottom
    return grid.base + (1 if part.top == 0 else 0)


@within_lean_loops
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


@inlined
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
    record(shot.recorders, np.int64(0), fields, traces[n], team)
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
    record(shot.recorders, np.int64(1), fields, traces[n + steps - 1], team)
    join_stage(tables, neighbours, np.int64(1), fields, part, team)


@within_lean_loops
def join_stage(tables, neighbours, k, fields, part, team):
    """Set the fields of stage k above a free surface and around the layer."""
    barrier(team)
    numbers = tables.seams.fields[k]
    exchange_fields(neighbours, tables.grid, tables.cut, fields, numbers, team)
    reflect(tables, fields, k, part)
    barrier(team)


@within_lean_loops
def rows_of(grid, part, s, count):
    """Return the array rows of slice s, with all rows before the first slice or after the last."""
    here = slice_of(grid, part, s)
    begin, end = here.top, here.bottom
    if grid.planes > 1:
        begin, end = here.front * grid.stride, here.back * grid.stride
    begin = grid.base + begin if s > 0 else -END
    end = grid.base + end if s + 1 < count else END
    return begin, end


@within_lean_loops
def record_rows(recorders, k, fields, traces, begin, end):
    """Set the traces that are read before stage k and end in array rows from begin to end - 1."""
    first = find_trace(recorders, k, begin)
    record_traces(recorders, fields, traces, first, find_trace(recorders, k, end))


@within_lean_loops
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


@within_lean_loops
def record(recorders, k, fields, traces, team):
    """Set this thread's share of the traces that are read before stage k."""
    first = recorders.stages[k]
    n = recorders.stages[k + 1] - first
    begin, end = n * team.rank // team.size, n * (team.rank + 1) // team.size
    record_traces(recorders, fields, traces, first + begin, first + end)


@within_lean_loops
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


@within_lean_loops
def widen_all(shot, window, fields, team):
    """Return a window of the whole grid that no field can leave within STEPS_PER_WINDOW steps."""
    cut, grid, faces = shot.tables.cut, shot.tables.grid, 0
    for f in range(len(fields)):
        faces |= find_wave(cut, grid, radius_of(shot.tables), window, fields[f])
    return widen(cut.whole, 0, window, unite_faces(shot.neighbours, faces, team))


@lean_loop
def sweep_staggered(shot, state, tape, traces, change, team):
    """Simulate one shot, and fill the tape and the traces.

    traces: (time, trace); change: see `advance_block`.
    """
    tables, window, n = shot.tables, window_at(tape, 0), 0
    while n < len(shot.signal):
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
        steps = min(most_steps(shot, state, team), len(shot.signal) - n)
        pass_forward(shot, state, n, steps, part, tape, traces, change, team)
        n += steps


@within_lean_loops
def clear(buffer, box, grid, plane, mask):
    """Set the cells of a box in a plane of a buffer to 0."""
    for row in range(box.top, box.bottom):
        r = U(grid.base + plane * grid.stride + row) & mask
        for j in range(box.left + MARGIN, box.right + MARGIN):
            buffer[r, j] = 0


@inlined
def weigh_block(shot, state, k, n, block, plane, window, tape, rates, energies):
    """Compute the buffers of the transposed stage k in a block of rows, and add to gradients."""
    tables, fields, buffers = shot.tables, state.fields, state.buffers
    stage, mask, grid = tables.stages[k], mask_of(buffers), tables.grid
    cells, reach = cells_of(grid, block, plane), radius_of(tables)
    for m in range(stage.n_relaxations):
        it = stage.relaxations[m]
        add_share(fields[it.memory], fields[it.field], tables.share, None, cells)
    for d in range(stage.n_differences):
        out = buffers[d]
        for w in range(stage.ends[d], stage.ends[d + 1]):
            it = stage.weights[w]
            if w == stage.ends[d]:
                weigh_first(out, tables.rates[it.rate], fields[it.field], cells, mask)
            else:
                weigh_next(out, tables.rates[it.rate], fields[it.field], cells, mask)
        relax(tables, stage.differences[d], out, state.memory, block, plane, mask)
        # The buffer is 0 around the window.
        if window.left > 0:
            box = Box(0, 0, block.top, block.bottom, block.left - reach, block.left)
            clear(out, box, grid, plane, mask)
        if window.right < grid.n:
            box = Box(0, 0, block.top, block.bottom, block.right, block.right + reach)
            clear(out, box, grid, plane, mask)
        if block.top == window.top:
            box = in_rows(block, block.top - reach, block.top)
            clear(out, box, grid, plane, mask)
        if block.bottom == window.bottom:
            box = in_rows(block, block.bottom, block.bottom + reach)
            clear(out, box, grid, plane, mask)
    if stores_sample(tape, n):
        entry, loaded = n // tape.interval, buffers[-1]
        for s in range(stage.n_samples):
            load_block(tables, tape, entry, k, s, block, plane, window, loaded, mask)
            for p in range(stage.n_products):
                it = stage.products[p]
                if it.sample == s:
                    add_one(rates[it.gradient], fields[it.field], loaded, cells, mask)
            if len(energies) > 0:
                add_square_of_buffer(energies[0], loaded, cells, mask)
        if len(energies) > 0 and stage.n_samples > 0:
            for t in range(stage.n_targets):
                add_square(energies[1], fields[stage.targets[t].field], cells)
    for m in range(stage.n_relaxations):
        it = stage.relaxations[m]
        decay = tables.decays[it.number]
        decay_and_add(fields[it.memory], fields[it.field], tables.share, decay, cells)


@inlined
def weigh_slice(shot, state, k, n, part, s, window, tape, rates, energies):
    """Do so in a slice of a part of the grid."""
    grid = shot.tables.grid
    here = slice_of(grid, part, s)
    rows = height_of(part)
    for top in range(here.top, here.bottom, rows):
        block = in_rows(here, top, min(top + rows, here.bottom))
        weigh_block(shot, state, k, n, block, here.front, window, tape, rates, energies)


@within_lean_loops
def clear_planes(shot, state, k, part, front, back):
    """Set the buffers of stage k to 0 in some planes."""
    mask = mask_of(state.buffers)
    for d in range(shot.tables.stages[k].n_differences):
        for plane in range(front, back):
            clear(state.buffers[d], part, shot.tables.grid, plane, mask)


@within_lean_loops
def scatter_rows(tables, state, k, cells, deep_only):
    """Apply the transposed differences of stage k in some rows.

    deep_only: True if only differences along the first axis are not 0 there.
    """
    stage, mask, whole = tables.stages[k], mask_of(state.buffers), ~U(0)
    for d in range(stage.n_differences):
        it = stage.differences[d]
        if deep_only and it.axis > 0:
            continue
        f, buffer, weights = state.fields[it.field], state.buffers[d], tables.weights[it.axis]
        if it.stride > 0:
            difference_across(
                f, buffer, cells, whole, mask, it.stride, 1 - it.between, weights, True
            )
        else:
            difference_along(f, buffer, cells, whole, mask, 1 - it.between, weights, True)


@inlined
def scatter_slice(shot, state, k, part, s):
    """Apply the transposed differences of stage k in a slice of a part of the grid."""
    grid = shot.tables.grid
    here = slice_of(grid, part, s)
    rows = height_of(part)
    for top in range(here.top, here.bottom, rows):
        block = in_rows(here, top, min(top + rows, here.bottom))
        scatter_rows(shot.tables, state, k, cells_of(grid, block, here.front), False)


@within_lean_loops
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


@inlined
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


@within_lean_loops
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


@within_lean_loops
def differentiate_sources(emitters, k, fields, signal, by_signal, by_weights):
    """Add the terms of stage k of a step to the gradients with respect to the sources."""
    for e in range(emitters.ends[k], emitters.ends[k + 1]):
        it = emitters.cells[e]
        value = fields[it.field, it.row, it.column]
        by_signal[it.source] = fma(emitters.weights[e], value, by_signal[it.source])
        by_weights[e] = fma(value, signal[it.source], by_weights[e])


@lean_loop
def sweep_staggered_back(shot, state, tape, arriving, gradients, team):
    """Apply the transpose of `sweep_staggered`.

    Only the window of the forward wave is computed, see `sweeps.sweep_backward`. arriving: the
    gradient with respect to the traces, (time, trace).
    """
    tables = shot.tables
    for n in range(len(shot.signal) - 1, -1, -1):
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
            stage_backward(
                shot, state, k, n, window, tape, gradients.rates, gradients.energies, team
            )
            inject(shot.injectors, k, state.fields, arriving[n], window, tables.grid, team)
            barrier(team)
