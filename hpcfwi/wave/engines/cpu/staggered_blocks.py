"""Compiled functions of the `cpu` engine for a block of rows of staggered fields: one stage.

They do not depend on the equation, because they go through the differences, absorbing slabs and
terms that `StaggeredTables` lists. A stage first computes every difference in a buffer and absorbs
there, then adds the differences, multiplied by their rates, to the fields that the stage updates.
The transposed stage first multiplies the adjoint fields by the rates, absorbs, and then applies the
transposed differences. Both apply the same functions to rows, because the transpose of a forward
difference is a backward difference with the opposite sign.

The buffers have one array for each difference of a stage, whose row is a row of the grid modulo the
number of rows of the buffer, a power of two.

Parameters have the same meaning in all functions here: tables is a `StaggeredTables`; fields
(field, row, column); buffers (difference, row, column); k is the number of a stage, and n that of a
step; block is the `Box` of cells that are computed, in one plane.
"""

from hpcfwi.wave.engines.cpu.jit import U, within_loops
from hpcfwi.wave.engines.cpu.kernels import Cells, add_square, cells_of
from hpcfwi.wave.engines.cpu.layout import MARGIN, Box
from hpcfwi.wave.engines.cpu.staggered_rows import (
    absorb_across,
    absorb_along,
    absorb_cells,
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
    EACH_CELL,
    PAIR_OF_DIFFERENCES,
    SUM_OF_DIFFERENCES,
)
from hpcfwi.wave.engines.cpu.sweeps import in_rows, stores_sample
from hpcfwi.wave.engines.cpu.windows import cells_before, pack, unpack


@within_loops
def mask_of(buffers):
    """Return the bits of a row of the grid that count in a buffer."""
    return U(buffers.shape[1] - 2)


@within_loops
def radius_of(tables):
    """Return the number of cells that a difference reaches."""
    return len(tables.weights[0])


@within_loops
def overlap(box, slab):
    """Return the cells of a box that lie in a slab: no rows if none do."""
    front, back = max(box.front, slab.front), min(box.back, slab.back)
    top, bottom = max(box.top, slab.top), min(box.bottom, slab.bottom)
    left, right = max(box.left, slab.left), min(box.right, slab.right)
    if front >= back or left >= right:
        bottom = top
    return Box(front, back, top, max(top, bottom), left, right)


@within_loops
def relax(tables, difference, buffer, memory, block, plane, mask):
    """Absorb the difference in a buffer in the slabs that a block of rows of a plane meets."""
    for number in range(difference.first_slab, difference.end_slab):
        slab = tables.slabs[number]
        box = overlap(block, slab)
        if box.top < box.bottom:
            cells = cells_of(tables.grid, box, plane)
            relax_cells(tables, slab, buffer, memory, box, plane, cells, mask, True)


@within_loops
def relax_cells(tables, slab, buffer, memory, box, plane, cells, mask, add):
    """Update the memory variables of a difference in a buffer, see `absorb_across`."""
    width, rows = slab.right - slab.left, slab.bottom - slab.top
    row = (plane - slab.front) * rows + box.top - slab.top
    at = slab.memory + row * width + box.left - slab.left
    a, b = tables.a[slab.profile], tables.b[slab.profile]
    if slab.along == EACH_CELL:
        first = at - slab.memory + slab.entry
        absorb_cells(buffer, memory, cells, mask, at, width, a, b, first, add)
    elif slab.along == 2:
        absorb_along(buffer, memory, cells, mask, at, width, a, b, box.left, add)
    elif slab.along == 1:
        absorb_across(buffer, memory, cells, mask, at, width, a, b, box.top, 1, add)
    else:
        absorb_across(buffer, memory, cells, mask, at, width, a, b, plane, 0, add)


@within_loops
def differ(tables, difference, fields, out, cells, mask):
    """Set a buffer to a difference."""
    f, weights, whole = fields[difference.field], tables.weights[difference.axis], ~U(0)
    stride, between = difference.stride, difference.between
    if stride > 0:
        difference_across(out, f, cells, mask, whole, stride, between, weights, None)
    else:
        difference_along(out, f, cells, mask, whole, between, weights, None)


@within_loops
def update_sum(tables, stage, group, fields, cells):
    """Update the field of a group whose terms have the same rate, without the slabs."""
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


@within_loops
def update_both(tables, stage, group, fields, cells):
    """Update the two fields of a group with two differences, without the slabs."""
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


@within_loops
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
                for m in range(first + 3, target.end_term):
                    term = stage.terms[m]
                    add_one(out, tables.rates[term.rate], buffers[term.buffer], cells, mask)


@within_loops
def absorb_block(tables, stage, state, block, plane, mask, sampled):
    """Add the memory variables of a block of rows to the fields that a stage updates.

    sampled: True if they are also added to the buffers of the differences.
    """
    fields, buffers = state.fields, state.buffers
    work = buffers[-1]
    for d in range(stage.n_differences):
        it = stage.differences[d]
        for number in range(it.first_slab, it.end_slab):
            slab = tables.slabs[number]
            box = overlap(block, slab)
            if box.top < box.bottom:
                cells = cells_of(tables.grid, box, plane)
                differ(tables, it, fields, work, cells, mask)
                relax_cells(tables, slab, work, state.memory, box, plane, cells, mask, None)
                for w in range(stage.ends[d], stage.ends[d + 1]):
                    term = stage.weights[w]
                    add_one(fields[term.field], tables.rates[term.rate], work, cells, mask)
                if sampled:
                    add_rows(buffers[it.buffer], work, cells, mask)


@within_loops
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
        entry = n // tape.interval - tape.first
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


@within_loops
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


@within_loops
def entry_of(tables, entry, k, s):
    """Return the entry of the store for sample s of stage k of a step."""
    first = tables.stages[0].n_samples
    return entry * (first + tables.stages[1].n_samples) + k * first + s


@within_loops
def store_block(tables, tape, entry, k, s, block, plane, window, buffer, mask):
    """Store a sample of a step in a block of rows."""
    grid, at = tables.grid, entry_of(tables, entry, k, s)
    for row in range(block.top, block.bottom):
        r = grid.base + plane * grid.stride + row
        cells = Cells(int(U(r) & mask), 1, block.left + MARGIN, block.right - block.left)
        pack(tape.samples, at, cells_before(window, plane, row), 2 * r, buffer, cells)


@within_loops
def load_block(tables, tape, entry, k, s, block, plane, window, buffer, mask):
    """Load a sample that `store_block` has stored."""
    grid, at = tables.grid, entry_of(tables, entry, k, s)
    for row in range(block.top, block.bottom):
        r = grid.base + plane * grid.stride + row
        cells = Cells(int(U(r) & mask), 1, block.left + MARGIN, block.right - block.left)
        unpack(tape.samples, at, cells_before(window, plane, row), 2 * r, buffer, cells)


@within_loops
def clear(buffer, box, grid, plane, mask):
    """Set the cells of a box in a plane of a buffer to 0."""
    for row in range(box.top, box.bottom):
        r = U(grid.base + plane * grid.stride + row) & mask
        for j in range(box.left + MARGIN, box.right + MARGIN):
            buffer[r, j] = 0


@within_loops
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
        entry, loaded = n // tape.interval - tape.first, buffers[-1]
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


@within_loops
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
