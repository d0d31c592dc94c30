"""Compiled functions of the `cpu` engine for rows of staggered fields.

They are written as those of `kernels`, and the arrays of a function do not overlap. A buffer holds
a difference in a few rows of the grid: row r of the grid is row r & mask of the buffer.
"""

from hpcfwi.wave.engines.cpu.jit import U, fma, over_rows
from hpcfwi.wave.engines.cpu.kernels import columns_of_cells, zero_of


@over_rows
def update(out, rate, far, near, along, cells, strides, places, far_d, near_d, along_d):
    """Add the sum of up to three differences, multiplied by a rate, to a field.

    far, near: fields whose differences across the rows are taken, and along, whose difference along
    the rows is taken, or None; strides: array rows between neighbours of far and near; places: for
    each of the three, 1 if the difference lies half a cell after the field; far_d, near_d, along_d:
    weights.
    """
    zero = zero_of(out)
    far_stride, near_stride = U(strides[0]), U(strides[1])
    far_after, near_after, after = U(places[0]), U(places[1]), U(places[2])
    far_before, near_before, before = U(1 - places[0]), U(1 - places[1]), U(1 - places[2])
    for i in range(U(cells.rows)):
        r = U(cells.row) + i
        for j in columns_of_cells(cells):
            total = zero
            if far is not None:
                d = zero
                for m in range(len(far_d)):
                    n, p = r + (U(m) + far_after) * far_stride, r - (U(m) + far_before) * far_stride
                    d = fma(far_d[m], far[n, j] - far[p, j], d)
                total += d
            if near is not None:
                d = zero
                for m in range(len(near_d)):
                    n = r + (U(m) + near_after) * near_stride
                    p = r - (U(m) + near_before) * near_stride
                    d = fma(near_d[m], near[n, j] - near[p, j], d)
                total += d
            if along is not None:
                d = zero
                for m in range(len(along_d)):
                    n, p = j + U(m) + after, j - U(m) - before
                    d = fma(along_d[m], along[r, n] - along[r, p], d)
                total += d
            out[r, j] = fma(rate[r, j], total, out[r, j])


@over_rows
def update_pair(first, second, a, b, c, d, across, along, cells, stride, places, across_d, along_d):
    """Add two differences to two fields: a times the first one and b times the second, and c and d.

    across, along: the fields whose differences are taken; the others are as in `update`.
    """
    zero = zero_of(first)
    stride, past, after = U(stride), U(places[0]), U(places[1])
    ahead, before = U(1 - places[0]), U(1 - places[1])
    for i in range(U(cells.rows)):
        r = U(cells.row) + i
        for j in columns_of_cells(cells):
            x, y = zero, zero
            for m in range(len(across_d)):
                n, p = r + (U(m) + past) * stride, r - (U(m) + ahead) * stride
                x = fma(across_d[m], across[n, j] - across[p, j], x)
                n, p = j + U(m) + after, j - U(m) - before
                y = fma(along_d[m], along[r, n] - along[r, p], y)
            first[r, j] = fma(b[r, j], y, fma(a[r, j], x, first[r, j]))
            second[r, j] = fma(d[r, j], y, fma(c[r, j], x, second[r, j]))


@over_rows
def difference_across(out, f, cells, to, of, stride, between, weights, add):
    """Set `out` to the difference of f across the rows, or subtract it from `out` if add is given.

    to, of: bits of the row that count in `out` and in f.
    """
    stride, after, before, zero = U(stride), U(between), U(1 - between), zero_of(f)
    for i in range(U(cells.rows)):
        r = U(cells.row) + i
        for j in columns_of_cells(cells):
            total = zero
            for m in range(len(weights)):
                later, earlier = r + (U(m) + after) * stride, r - (U(m) + before) * stride
                total = fma(weights[m], f[later & of, j] - f[earlier & of, j], total)
            if add is None:
                out[r & to, j] = total
            else:
                out[r & to, j] -= total


@over_rows
def difference_along(out, f, cells, to, of, between, weights, add):
    """Do the same along the rows."""
    after, before, zero = U(between), U(1 - between), zero_of(f)
    for i in range(U(cells.rows)):
        r = U(cells.row) + i
        for j in columns_of_cells(cells):
            total = zero
            for m in range(len(weights)):
                later, earlier = j + U(m) + after, j - U(m) - before
                total = fma(weights[m], f[r & of, later] - f[r & of, earlier], total)
            if add is None:
                out[r & to, j] = total
            else:
                out[r & to, j] -= total


@over_rows
def absorb_across(f, memory, cells, mask, at, width, a, b, first, per_row, add):
    """Set the memory variables to b memory + a f, and f to these; add them to f if `add` is given.

    at: index of the memory variable of the first cell; width: number of memory variables of a row;
    first: entry of the profile for the first row; per_row: 1 if each row has its own entry.
    """
    for i in range(U(cells.rows)):
        r, k = (U(cells.row) + i) & mask, U(first) + U(per_row) * i
        for j in range(U(cells.n)):
            place, column = U(at) + i * U(width) + j, U(cells.first) + j
            memory[place] = fma(b[k], memory[place], a[k] * f[r, column])
            if add is None:
                f[r, column] = memory[place]
            else:
                f[r, column] += memory[place]


@over_rows
def absorb_along(f, memory, cells, mask, at, width, a, b, first, add):
    """Do the same where each column has its own entry of the profile."""
    for i in range(U(cells.rows)):
        r = (U(cells.row) + i) & mask
        for j in range(U(cells.n)):
            place, column, k = U(at) + i * U(width) + j, U(cells.first) + j, U(first) + j
            memory[place] = fma(b[k], memory[place], a[k] * f[r, column])
            if add is None:
                f[r, column] = memory[place]
            else:
                f[r, column] += memory[place]


@over_rows
def absorb_cells(f, memory, cells, mask, at, width, a, b, first, add):
    """Do the same where each cell has its own entry of the profile, as it has a memory variable."""
    for i in range(U(cells.rows)):
        r = (U(cells.row) + i) & mask
        for j in range(U(cells.n)):
            place, column = U(at) + i * U(width) + j, U(cells.first) + j
            k = U(first) + i * U(width) + j
            memory[place] = fma(b[k], memory[place], a[k] * f[r, column])
            if add is None:
                f[r, column] = memory[place]
            else:
                f[r, column] += memory[place]


@over_rows
def add_rows(out, f, cells, mask):
    """Add f to `out` in these cells of two buffers."""
    for i in range(U(cells.rows)):
        r = (U(cells.row) + i) & mask
        for j in columns_of_cells(cells):
            out[r, j] += f[r, j]


@over_rows
def add_one(out, a, x, cells, mask):
    """Add a x to `out` in these cells, where x is a buffer."""
    for i in range(U(cells.rows)):
        r = U(cells.row) + i
        for j in columns_of_cells(cells):
            out[r, j] = fma(a[r, j], x[r & mask, j], out[r, j])


@over_rows
def add_two(out, a, x, b, y, cells, mask):
    """Add a x + b y."""
    for i in range(U(cells.rows)):
        r = U(cells.row) + i
        for j in columns_of_cells(cells):
            total = fma(a[r, j], x[r & mask, j], out[r, j])
            out[r, j] = fma(b[r, j], y[r & mask, j], total)


@over_rows
def add_three(out, a, x, b, y, c, z, cells, mask):
    """Add a x + b y + c z."""
    for i in range(U(cells.rows)):
        r = U(cells.row) + i
        for j in columns_of_cells(cells):
            total = fma(a[r, j], x[r & mask, j], out[r, j])
            total = fma(b[r, j], y[r & mask, j], total)
            out[r, j] = fma(c[r, j], z[r & mask, j], total)


@over_rows
def add_share(out, f, share, decay, cells):
    """Add a share of a field to `out`; then multiply the field by a decay if one is given."""
    for i in range(U(cells.rows)):
        r = U(cells.row) + i
        for j in columns_of_cells(cells):
            out[r, j] = fma(share, f[r, j], out[r, j])
            if decay is not None:
                f[r, j] *= decay


@over_rows
def decay_and_add(out, f, share, decay, cells):
    """Multiply `out` by a decay, and add a share of a field."""
    for i in range(U(cells.rows)):
        r = U(cells.row) + i
        for j in columns_of_cells(cells):
            out[r, j] = fma(share, f[r, j], decay * out[r, j])


@over_rows
def add_square_of_buffer(out, x, cells, mask):
    """Add the square of a buffer to `out` in these cells."""
    for i in range(U(cells.rows)):
        r = U(cells.row) + i
        for j in columns_of_cells(cells):
            value = x[r & mask, j]
            out[r, j] = fma(value, value, out[r, j])


@over_rows
def weigh_first(out, a, x, cells, mask):
    """Set the buffer `out` to a x, where x is a field."""
    for i in range(U(cells.rows)):
        r = U(cells.row) + i
        for j in columns_of_cells(cells):
            out[r & mask, j] = a[r, j] * x[r, j]


@over_rows
def weigh_next(out, a, x, cells, mask):
    """Add a x to the buffer `out`."""
    for i in range(U(cells.rows)):
        r = U(cells.row) + i
        for j in columns_of_cells(cells):
            out[r & mask, j] = fma(a[r, j], x[r, j], out[r & mask, j])
