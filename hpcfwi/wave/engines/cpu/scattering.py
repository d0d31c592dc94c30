"""What a change of the model scatters, to first order: a compiled time loop of the `cpu` engine.

Its source is the change times what the forward sweep has kept, where the backward one multiplies
the same with the adjoint field: step by step, the one is the transpose of the other. What runs it
is in `histories`.
"""

from typing import NamedTuple

from numpy.typing import NDArray

from hpcfwi.wave.engines.cpu.lines import record
from hpcfwi.wave.engines.cpu.packing import unpack_frame
from hpcfwi.wave.engines.cpu.rows import loop
from hpcfwi.wave.engines.cpu.steps import step_forward
from hpcfwi.wave.engines.cpu.sweeps import add_products, reflect, window_at
from hpcfwi.wave.engines.cpu.threads import barrier
from hpcfwi.wave.engines.cpu.windows import share


class Scattering(NamedTuple):
    """What scatters, and what is found.

    change: field, of v2dt2 over the interval of the samples; traces: (time, receiver), filled.
    """

    change: NDArray
    traces: NDArray


@loop
def sweep_scattered(shot, fields, span, tape, scattering, team):
    """The scattered field over a span of steps, from the samples of all that are sampled in it.

    It is where the wave is: windows are those that the forward sweep has found.
    """
    tables, u, traces = shot.tables, tape.u, scattering.traces
    grid, one, line = tables.grid, tables.v2dt2.dtype.type(1), fields.lines[team.rank]
    for n in range(span[0], span[1]):
        p, prev = fields.waves[n % 2], fields.waves[(n + 1) % 2]
        record(traces[n], p, shot.receivers, one, team, line)
        window = window_at(tape, n)
        part = share(window, team.size, team.rank)
        step_forward(tables, fields, n, part, None, team)
        if n % tape.interval == tape.offset:
            k = n // tape.interval - tape.first
            unpack_frame(tape.samples, k, window, grid, part, u)
            add_products(grid, prev, part, scattering.change, u)
        reflect(tables, prev, team)
        barrier(team)
    last = traces.shape[0] - 1
    if span[1] == last:
        record(traces[last], fields.waves[last % 2], shot.receivers, one, team, line)
