"""The tables and arrays of the compiled loops of first-order equations, for the `cpu` engine.

A description of an equation and its `StaggeredScheme` become lists of whole numbers: which
differences of which fields, which slabs absorb them, and which rates multiply them. The loops in
`staggered_blocks` go through these lists, so that they are compiled once for all equations.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfwi.wave.engines.cpu.layout import MARGIN, Cut, GridLayout, lay_out, make_cut, make_grid
from hpcfwi.wave.engines.cpu.teams import Neighbours
from hpcfwi.wave.engines.cpu.windows import FieldStore
from hpcfwi.wave.equation import Derivative, System
from hpcfwi.wave.layers import HALO, Layer, find_layer
from hpcfwi.wave.numerics import staggered_difference
from hpcfwi.wave.problem import Problem
from hpcfwi.wave.staggered import FieldPoints, StaggeredScheme, group_terms


def _record(*names: str) -> np.dtype[Any]:
    """Return the type of a row of a table of whole numbers."""
    return np.dtype([(name, np.int64) for name in names])


# A difference of a field along an axis, with the slabs in which it is absorbed. stride: array rows
# between neighbours, 0 along the rows; between: 1 if it lies half a cell after the field's places;
# buffer: that in which it is summed.
DIFFERENCE = _record("field", "axis", "stride", "between", "first_slab", "end_slab", "buffer")
# A box of absorbing cells. memory: index of its first memory variable; profile: row of the CPML's
# profiles; along: 0 if the axis is that of planes, 1 for rows of a plane, 2 for cells of a row, or
# `EACH_CELL` if each cell has an entry of the profile, of which the first one is `entry`.
SLAB = _record(
    "front", "back", "top", "bottom", "left", "right", "memory", "profile", "along", "entry"
)
EACH_CELL = 3
# Fields that share differences. kind: one of the constants below.
GROUP = _record("kind", "first_target", "end_target", "first_difference", "end_difference")
# One field, whose differences along different axes have the same rate; two fields, both with one
# difference across the rows and one along them; any others.
SUM_OF_DIFFERENCES, PAIR_OF_DIFFERENCES, OTHER_DIFFERENCES = range(3)
# A field and the terms (rate, buffer) that are added to it.
TARGET = _record("field", "first_term", "end_term")
TERM = _record("rate", "buffer")
# The rates and adjoint fields whose products are summed in the buffer of a difference.
WEIGHT = _record("rate", "field")
# A product of an adjoint field and a stored buffer, which is added to the gradient of a rate.
PRODUCT = _record("gradient", "field", "sample")
# A field and the factor of its image above a free surface: depth -k is that of depth k - shift.
IMAGE = _record("field", "shift", "sign")
# A memory variable and the field that it is added to. number: that of its decay.
RELAXATION = _record("memory", "field", "number")
# A cell of the sources: `weights` times the signal of `source` is added to it.
EMISSION = _record("field", "row", "column", "source")
# A cell of the receivers.
TAP = _record("field", "row", "column")

# Room for the rows of each list of a stage.
MOST = 120
_LISTS = {
    "differences": DIFFERENCE,
    "groups": GROUP,
    "targets": TARGET,
    "terms": TERM,
    "weights": WEIGHT,
    "ends": np.dtype(np.int64),
    "samples": np.dtype(np.int64),
    "products": PRODUCT,
    "images": IMAGE,
    "relaxations": RELAXATION,
}
# The lists of a stage, of which `n_differences` and so on are the lengths. weights: rows ends[d] to
# ends[d + 1] - 1 are those of difference d; samples: the buffers that are stored.
STAGE = np.dtype(
    [(f"n_{name}", np.int64) for name in _LISTS]
    + [(name, kind, (MOST,)) for name, kind in _LISTS.items()]
)


class Seams(NamedTuple):
    """The arrays of each stage whose planes beside the cuts the layers of a grid exchange.

    fields: numbers of those that the stage updates, after it; differences: numbers of the buffers
    of the transposed stage, before its differences are applied; sources: numbers of the adjoint
    fields that derivatives with respect to the sources read, before the transposed stage.
    """

    fields: tuple[NDArray[np.int64], NDArray[np.int64]]
    differences: tuple[NDArray[np.int64], NDArray[np.int64]]
    sources: tuple[NDArray[np.int64], NDArray[np.int64]]


class StaggeredTables(NamedTuple):
    """The discrete equation of a layer of a problem's shots.

    weights: of the differences along z, y and x; rates: (rate, row, column); stages, slabs: of the
    types `STAGE` and `SLAB`; a, b: the CPML's profiles, (profile, entry); memory: number of memory
    variables of the slabs; surface: array rows from one depth to the next, 0 if there is no free
    surface; decays: of the memory variables of the medium; share: of these that is added to fields.
    """

    grid: GridLayout
    cut: Cut
    seams: Seams
    weights: tuple[tuple[np.floating, ...], ...]
    rates: NDArray
    stages: NDArray
    slabs: NDArray
    a: NDArray
    b: NDArray
    memory: int
    surface: int
    decays: NDArray
    share: np.floating


class Emitters(NamedTuple):
    """The cells to which the sources add, and their factors.

    ends: entries ends[k] to ends[k + 1] - 1 belong to stage k, and are sorted by row.
    """

    cells: NDArray
    weights: NDArray
    ends: tuple[int, int, int]


class Recorders(NamedTuple):
    """The cells whose weighted sums are recorded.

    ends: entries ends[r] to ends[r + 1] - 1 are those of the trace with the number traces[r];
    stages: traces[stages[k]] to traces[stages[k + 1] - 1] are read before stage k, because it does
    not update their fields; rows: the last array row of each trace, by which those of a stage
    are sorted, and span: the largest number of rows from the first row of a trace to the last one,
    both only after `sort_recorders`.
    """

    cells: NDArray
    weights: NDArray
    ends: NDArray[np.int64]
    traces: NDArray[np.int64]
    stages: tuple[int, int, int]
    rows: NDArray[np.int64]
    span: int

    @property
    def trace_of_entries(self) -> NDArray[np.int64]:
        """The number of the trace of each entry."""
        return np.repeat(self.traces, np.diff(self.ends))


class StaggeredShot(NamedTuple):
    """The tables and points of a shot in a layer. signal: (time, source).

    The simulation uses emitters, those in the layer, and recorders, those of the traces that it
    records. The transpose uses the emitters of the sources whose derivatives the layer computes,
    and injectors, the recorders' cells in the layer. Some of the recorders' and of the sources'
    cells may be in the halo.
    """

    tables: StaggeredTables
    neighbours: Neighbours
    emitters: Emitters
    recorders: Recorders
    sources: Emitters
    injectors: Recorders
    signal: NDArray


class StaggeredState(NamedTuple):
    """The state of a simulation between two steps, and buffers to work in."""

    fields: NDArray
    memory: NDArray
    buffers: NDArray


class StaggeredTape(NamedTuple):
    """The samples of the differences, each an entry of the store; see `sweeps.Tape`.

    The interval is 0 if nothing is stored.
    """

    interval: int
    offset: int
    first: int
    samples: FieldStore
    windows: NDArray
    explores: bool


class StaggeredGradients(NamedTuple):
    """The results of the backward sweep.

    rates: the gradient with respect to the rates that have one, (gradient, row, column); energies:
    two fields to which the squares of the samples and of the adjoint fields are added, or none;
    signal: with respect to the signal, (time, source); emitters: with respect to the factors of the
    emitters.
    """

    rates: NDArray
    energies: NDArray
    signal: NDArray
    emitters: NDArray


class Entries:
    """The taps of a shot's points that have a weight, in the layout of a layer's sweeps."""

    def __init__(self, points: FieldPoints, cut: Cut, shot: int) -> None:
        self.point, self.tap = np.nonzero(points.weights[shot])
        self.row, self.column = _locate(points.cells[shot, self.point, self.tap], cut)

    def take(self, values: NDArray) -> NDArray:
        """Return values (point, tap) of these taps."""
        return values[self.point, self.tap]


def _locate(cells: NDArray[np.int64], cut: Cut) -> tuple[NDArray, NDArray]:
    """Return the array rows, in a layer, and the columns of cells of the flattened whole grid."""
    grid = cut.whole
    plane, row, x = np.unravel_index(cells, (grid.planes, grid.rows, grid.nx))
    row = (plane - cut.front) * grid.stride + row - cut.top
    return grid.base + row, MARGIN + x


def depths_of(cells: NDArray, cut: Cut) -> NDArray[np.int64]:
    """Return the planes of the whole grid (rows, in 2-D) in which cells of a layer's arrays lie."""
    return (cells["row"] - cut.whole.base) // cut.stride + cut.front + cut.top


def find_owners(
    cells: NDArray, points: NDArray[np.int64], count: int, cut: Cut, layers: Sequence[Layer]
) -> NDArray[np.int64]:
    """Return the layer that reads the cells of each of so many points, -1 if no layer can.

    It has the plane in the middle of them. points: of each cell.
    """
    depths = depths_of(cells, cut)
    first, last = np.full(count, layers[-1].end), np.zeros(count, np.int64)
    np.minimum.at(first, points, depths)
    np.maximum.at(last, points, depths)
    owners = find_layer((first + last) // 2, layers)
    begins, ends = (np.array(edges)[owners] for edges in zip(*map(astuple, layers), strict=True))
    return np.where((first < begins - HALO) | (last >= ends + HALO), -1, owners)


def select_emitters(emitters: Emitters, kept: NDArray[np.bool_]) -> Emitters:
    """Return some of the entries of emitters."""
    if kept.all():
        return emitters
    before = np.append(0, kept.cumsum())
    first, middle, last = (int(before[end]) for end in emitters.ends)
    return Emitters(emitters.cells[kept], emitters.weights[kept], (first, middle, last))


def select_recorders(recorders: Recorders, kept: NDArray[np.bool_]) -> Recorders:
    """Return recorders with some of the entries, whose other traces are 0."""
    if kept.all():
        return recorders
    before = np.append(0, kept.cumsum())
    return recorders._replace(
        cells=recorders.cells[kept],
        weights=recorders.weights[kept],
        ends=before[recorders.ends],
    )


def divide_recorders(
    recorders: Recorders, mine: NDArray[np.bool_], alone: NDArray[np.bool_], count: int
) -> Recorders:
    """Return the recorders of a layer, given those of `count` traces.

    mine: the entries of the traces that the layer records; alone: the entries whose fields are each
    recorded as a further trace, numbered from `count` on, because no layer can record their traces.
    """
    found = select_recorders(recorders, mine)
    if not alone.any():
        return found
    middle = recorders.stages[1]
    singles, number = np.flatnonzero(alone), int(alone[: recorders.ends[middle]].sum())
    ones, numbers = np.ones(singles.size, np.int64), count + np.arange(singles.size)

    def insert(values: NDArray, at: int, added: NDArray) -> NDArray:
        """Return values with those for the first stage inserted, and the others appended."""
        parts = values[:at], added[:number], values[at:], added[number:]
        return np.concatenate(parts).astype(values.dtype)

    lengths = insert(np.diff(found.ends), middle, ones)
    return recorders._replace(
        cells=insert(found.cells, found.ends[middle], recorders.cells[singles]),
        weights=insert(found.weights, found.ends[middle], ones),
        ends=np.append(0, lengths.cumsum()),
        traces=insert(found.traces, middle, numbers),
        stages=(0, middle + number, found.traces.size + singles.size),
    )


def sort_recorders(recorders: Recorders) -> Recorders:
    """Return recorders whose traces in each stage are sorted by their last rows."""
    count, rows = recorders.traces.size, recorders.cells["row"]
    trace = np.repeat(np.arange(count), np.diff(recorders.ends))
    first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(first, trace, rows)
    np.maximum.at(last, trace, rows)
    order = np.lexsort((last, np.arange(count) >= recorders.stages[1]))
    places = np.empty(count, np.int64)
    places[order] = np.arange(count)
    by_trace = np.argsort(places[trace], kind="stable")
    return recorders._replace(
        cells=recorders.cells[by_trace],
        weights=recorders.weights[by_trace],
        ends=np.append(0, np.diff(recorders.ends)[order].cumsum()),
        traces=recorders.traces[order],
        rows=last[order],
        span=int((last - first).max(initial=0)),
    )


def make_recorders(scheme: StaggeredScheme, shot: int, dtype: np.dtype, cut: Cut) -> Recorders:
    """Return the recorders of a shot, with its traces in the order of their stages."""
    names, count = list(scheme.system.fields), scheme.recordings[0].traces.shape[1]
    cells, weights, keys = [], [], []
    read = np.arange(count)
    for stage, recording in zip(scheme.reading_stages, scheme.recordings, strict=True):
        read += stage * count * recording.traces[shot]
        for name, points in recording.points.items():
            entries = Entries(points, cut, shot)
            some = np.zeros(entries.tap.size, TAP)
            some["field"] = names.index(name)
            some["row"], some["column"] = entries.row, entries.column
            cells.append(some)
            weights.append(entries.take(points.weights[shot]))
            keys.append(stage * count + entries.point)
    traces, key = np.sort(read), np.concatenate(keys)
    order = np.argsort(key, kind="stable")
    return Recorders(
        np.concatenate(cells)[order],
        np.concatenate(weights)[order].astype(dtype),
        np.append(np.searchsorted(key[order], traces), key.size),
        traces % count,
        (0, int(np.searchsorted(traces, count)), count),
        np.zeros(0, np.int64),
        0,
    )


def make_tables(
    problem: Problem,
    scheme: StaggeredScheme,
    wanted: Sequence[int],
    layer: Layer,
) -> StaggeredTables:
    """Return the tables of a layer of a scheme; wanted: numbers of the rates that have a gradient.

    Their seams are those for points that no cut is near.
    """
    grid, ndim = make_grid((layer.planes, *scheme.shape[1:])), len(scheme.axes)
    rates = [rate.detach() for rate in scheme.distinct_rates]
    like = rates[0].numpy().dtype
    each = [tuple(staggered_difference(problem.order, h).astype(like)) for h in problem.spacing]
    slabs = _Slabs(scheme, grid, like, layer)
    stages, has_surface = np.zeros(2, STAGE), problem.free_surface and layer.first == 0
    for number, stage in enumerate(stages):
        lists = _list_stage(has_surface, scheme, grid, number, wanted, slabs)
        for name, rows in lists.items():
            stage[f"n_{name}"] = len(rows)
            stage[name][: len(rows)] = np.array(rows, _LISTS[name])
    return StaggeredTables(
        grid,
        make_cut(scheme.shape, layer),
        _find_seams(scheme.system, stages),
        (each[0], each[-2], each[-1]),  # of z, y and x; there is no y in 2-D
        np.stack([lay_out(rate[layer.first : layer.end]) for rate in rates]),
        stages,
        np.array(slabs.rows, SLAB),
        *slabs.values,
        slabs.memory,
        0 if not has_surface else 1 if ndim == 2 else grid.stride,
        np.array([each.decay for each in scheme.relaxations], like),
        like.type(0.5 * problem.dt),
    )


def _find_seams(system: System, stages: NDArray) -> Seams:
    """Return the seams that the differences along z need."""
    names = list(system.fields)
    first, second = (
        np.array([names.index(name) for name in read], np.int64) for read in system.read_along("z")
    )
    along, across = (
        np.flatnonzero(stage["differences"]["axis"][: stage["n_differences"]] == 0)
        for stage in stages
    )
    nothing = np.zeros(0, np.int64)
    return Seams((first, second), (along, across), (nothing, nothing))


def widen_seams(
    seams: Seams, system: System, recorded: Collection[int], emitted: Collection[int]
) -> Seams:
    """Return seams with the fields that points read across a cut, given their numbers."""
    names = list(system.fields)

    def of_stage(numbers: Iterable[int], stage: int) -> NDArray[np.int64]:
        found = [n for n in sorted(numbers) if system.stage_of(names[n]) == stage]
        return np.array(found, np.int64)

    first, second = (of_stage({*seams.fields[k], *recorded}, k) for k in range(2))
    return Seams((first, second), seams.differences, (of_stage(emitted, 0), of_stage(emitted, 1)))


class _Slabs:
    """The absorbing slabs of a scheme in a layer of the grid, with its profiles."""

    def __init__(
        self, scheme: StaggeredScheme, grid: GridLayout, dtype: np.dtype, layer: Layer
    ) -> None:
        self.scheme, self.grid, self.layer = scheme, grid, layer
        self.rows, self.memory = list[tuple[int, ...]](), 0
        self.a, self.b = (values.astype(dtype) for values in scheme.pad_profiles())
        for values in (self.a, self.b):
            # The first two profiles are those along z
            values[:2, : layer.planes] = values[:2, layer.first : layer.end].copy()

    def add(self, axis: str, place: str) -> None:
        """Append the slabs of a difference, see `System.place_of`."""
        system, axes, first = self.scheme.system, self.scheme.axes, self.memory
        if system.multiaxial:
            absorbing, profile, along = axes, system.find_places().index((axis, place)), EACH_CELL
        else:
            absorbing, profile = axis, 2 * axes.index(axis) + (axis in place)
            along = axes.index(axis) + 3 - len(axes)
        for box in self._frame(absorbing, place):
            self.rows.append((*box, self.memory, profile, along, self.memory - first))
            self.memory += int(np.prod(np.diff(box)[::2]))

    def _frame(self, axes: str, place: str) -> list[list[int]]:
        """Return boxes of the cells that are absorbed at both ends of some axes, each cell once."""
        inner, found = [0, self.grid.planes, 0, self.grid.rows, 0, self.grid.nx], []
        for axis in axes:
            number = self.scheme.axes.index(axis)
            at = 2 * (number + 3 - len(self.scheme.axes))
            n = inner[at + 1]
            inside = np.flatnonzero(self.a[2 * number + (axis in place), :n] == 0)
            low, high = (inside[0], inside[-1] + 1) if len(inside) else (n, n)
            for begin, end in ((0, low), (high, n)):
                if begin < end:
                    found.append([*inner[:at], begin, end, *inner[at + 2 :]])
            inner[at : at + 2] = low, high
        return found

    @property
    def values(self) -> tuple[NDArray, NDArray]:
        """The profiles, with an entry for each cell of the slabs if they are mixed."""
        if not self.scheme.system.multiaxial:
            return self.a, self.b
        found: tuple[list[NDArray], list[NDArray]] = [], []
        for axis, place in self.scheme.system.find_places():
            profiles = []
            for box in self._frame(self.scheme.axes, place):
                ends = list(zip(box[::2], box[1::2], strict=True))[-len(self.scheme.axes) :]
                ends[0] = ends[0][0] + self.layer.first, ends[0][1] + self.layer.first
                profiles.append(self.scheme.mixed_profile(axis, place, ends))
            for rows, name in zip(found, ("a", "b"), strict=True):
                values = (getattr(profile, name).ravel() for profile in profiles)
                rows.append(np.concatenate([np.zeros(0), *values]))
        n = max(map(len, found[0]))
        a, b = (
            np.stack([np.pad(row, (0, n - len(row))) for row in rows]).astype(self.a.dtype)
            for rows in found
        )
        return a, b


def _make_difference(
    scheme: StaggeredScheme, grid: GridLayout, derivative: Derivative, slot: int, slabs: _Slabs
) -> tuple[int, ...]:
    axis, field = derivative
    between = int(axis not in scheme.system.fields[field].half)
    first = len(slabs.rows)
    slabs.add(axis, scheme.system.place_of(derivative))
    stride = {"z": grid.stride if grid.planes > 1 else 1, "y": 1, "x": 0}[axis]
    number = list(scheme.system.fields).index(field)
    return number, "zyx".index(axis), stride, between, first, len(slabs.rows), slot


def _kind_of(used: Sequence[Mapping[Derivative, int]], derivatives: Sequence[Derivative]) -> int:
    """Return the kind of a group, of whose fields each uses some of the sorted derivatives."""
    axes = [axis for axis, _ in derivatives]
    rates = {rate for each in used for rate in each.values()}
    if len(used) == len(rates) == 1 and len(set(axes)) == len(axes):
        return SUM_OF_DIFFERENCES
    is_pair = len(used) == 2 and all(len(each) == len(derivatives) == 2 for each in used)
    return PAIR_OF_DIFFERENCES if is_pair and axes[0] != "x" == axes[1] else OTHER_DIFFERENCES


def _list_stage(
    has_surface: bool,
    scheme: StaggeredScheme,
    grid: GridLayout,
    number: int,
    wanted: Sequence[int],
    slabs: _Slabs,
) -> dict[str, Sequence[Any]]:
    """Return the lists of a stage by name, and append its slabs."""
    system, names = scheme.system, list(scheme.system.fields)
    stage, used = system.stages[number], scheme.number_rates(number)
    differences, groups, targets, terms, products = (list[tuple[int, ...]]() for _ in range(5))
    samples: list[int] = []
    buffer: dict[Derivative, int] = {}
    for names_of_group in group_terms(used):
        derivatives = sorted(
            {d for name in names_of_group for d in used[name]},
            key=lambda d: (scheme.axes.index(d[0]), d[1]),
        )
        first = len(differences)
        kind = _kind_of([used[name] for name in names_of_group], derivatives)
        for derivative in derivatives:
            slot = first if kind == SUM_OF_DIFFERENCES else len(differences)
            buffer[derivative] = slot
            differences.append(_make_difference(scheme, grid, derivative, slot, slabs))
        groups.append(
            (kind, len(targets), len(targets) + len(names_of_group), first, len(differences))
        )
        for name in names_of_group:
            begin = len(terms)
            each = {(used[name][d], buffer[d]): None for d in derivatives if d in used[name]}
            terms.extend(each)
            targets.append((names.index(name), begin, len(terms)))
            for rate, slot in each:
                if rate in wanted:
                    if slot not in samples:
                        samples.append(slot)
                    products.append((wanted.index(rate), names.index(name), samples.index(slot)))
    weights, ends = list[tuple[int, int]](), [0]
    for derivative in buffer:
        weights.extend(
            (each[derivative], names.index(name))
            for name, each in used.items()
            if derivative in each
        )
        ends.append(len(weights))
    images = [
        (number, int("z" in field.half), -1 if field.odd else 1)
        for number, (name, field) in enumerate(system.fields.items())
        if name in stage and name not in system.memories and has_surface
    ]
    relaxations = [
        (names.index(each.memory), names.index(each.field), number)
        for number, each in enumerate(scheme.relaxations)
        if each.memory in stage
    ]
    return {
        "differences": differences,
        "groups": groups,
        "targets": targets,
        "terms": terms,
        "weights": weights,
        "ends": ends,
        "samples": samples,
        "products": products,
        "images": images,
        "relaxations": relaxations,
    }
