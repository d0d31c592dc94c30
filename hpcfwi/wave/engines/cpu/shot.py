"""One shot as the sweeps want it, with the memory and the threads that it takes.

What it keeps of its simulation is in `keepers`; which shots run when is in `engine`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.wave.engines.cpu import sweeps
from hpcfwi.wave.engines.cpu.layout import make_zeros
from hpcfwi.wave.engines.cpu.packing import FULL, Frame, Store, count_cells, make_store
from hpcfwi.wave.engines.cpu.rows import HALO
from hpcfwi.wave.engines.cpu.scheme import Scheme, Taps
from hpcfwi.wave.engines.cpu.shelf import Shelf
from hpcfwi.wave.engines.cpu.steps import Fields
from hpcfwi.wave.engines.cpu.team import Team
from hpcfwi.wave.engines.cpu.windows import PATIENCE, Window, first_window

NOWHERE = Window(0, 0, 0, 0, 0, 0)
NO_FRAME = Frame(NOWHERE, NOWHERE)
NO_STORE = Store(FULL, np.zeros((0, 0), np.uint8), np.zeros((0, 0), np.float32))


SHELF = Shelf()


class Crew:
    """The threads that work on one shot."""

    def __init__(self, size: int) -> None:
        self.size = size

    def run(self, work: Callable[[Team], None]) -> None:
        """Do the same work on all threads, each with its rank in the team."""
        arrivals = np.zeros(1, np.int64)
        if self.size == 1:
            work(Team(0, 1, arrivals))
            return
        teams = [Team(rank, self.size, arrivals) for rank in range(self.size)]
        with ThreadPoolExecutor(self.size, initializer=flush_denormals) as threads:
            list(threads.map(work, teams))


def flush_denormals() -> None:
    """Numbers below 1e-38 become 0 in this thread; ahead of a wave they would slow it tenfold."""
    torch.set_flush_denormal(True)


@dataclass(frozen=True, eq=False)
class Shot:
    """One shot as the sweeps want it.

    wavelet: (time, 1), at the simulation's step; scale: 1 / cell volume; interior: the part of the
    grid where nothing absorbs.
    """

    scheme: Scheme
    source: Taps
    receivers: Taps
    wavelet: NDArray
    scale: np.floating
    interior: Window

    @property
    def steps(self) -> int:
        return int(self.wavelet.shape[0])

    @property
    def dtype(self) -> np.dtype:
        return self.scheme.v2dt2.dtype

    @property
    def whole(self) -> Window:
        return sweeps.whole_of.py_func(self.scheme.grid)

    def make_fields(self, crew: Crew) -> Fields:
        """A simulation at rest."""
        s = self.scheme
        columns = s.v2dt2.shape[1]

        def pair(rows: int, columns: int) -> tuple[NDArray, NDArray]:
            shape = (rows, columns)
            return make_zeros(shape, self.dtype), make_zeros(shape, self.dtype)

        blocks, stretch = s.grid.planes * s.sides.blocks, s.sides.a.size + 2 * HALO
        return Fields(
            make_zeros((2, *s.v2dt2.shape), self.dtype),
            pair(s.slabs.rows, columns),
            pair(blocks, stretch),
            make_zeros((crew.size, stretch), self.dtype),
        )

    def make_windows(self) -> NDArray[np.int64]:
        """Windows of each step, of which only the first is known."""
        s, source = self.scheme, self.source
        windows = np.zeros((self.steps // PATIENCE + 1, 6), np.int64)
        windows[0] = first_window(
            s.grid, s.sides.width, len(s.x), source.rows[0], source.columns[0]
        )
        return windows

    def make_store(self, borrower: object, format: str, steps: int, frame: Frame) -> Store:
        """Room for a frame of so many steps, which goes with the borrower."""
        shelf, rows = partial(SHELF.lend, borrower), self.scheme.v2dt2.shape[0]
        return make_store(shelf, format, self.dtype, steps, count_cells(frame), rows)

    def no_rebuilding(self) -> sweeps.Rebuilding:
        waves = np.empty((2, 0, 0), self.dtype)
        return sweeps.Rebuilding(False, NO_STORE, NO_FRAME, NOWHERE, waves)

    def sweep_forward(
        self,
        fields: Fields,
        span: tuple[int, int],
        history: sweeps.History,
        crew: Crew,
        traces: NDArray | None = None,
        rebuilding: sweeps.Rebuilding | None = None,
        energy: NDArray | None = None,
    ) -> None:
        """`sweeps.sweep_forward`; traces and the energy are found where they are given."""
        receivers = self.receivers
        if traces is None:
            receivers = Taps(*(array[:0] for array in receivers))
            traces = np.empty((self.steps, 0), self.dtype)
        energy = np.empty((0, 1), self.dtype) if energy is None else energy
        emitted = (self.source, receivers, self.wavelet, self.scale)
        rest = (traces, history, rebuilding or self.no_rebuilding(), energy)
        crew.run(
            lambda team: sweeps.sweep_forward(self.scheme, fields, span, *emitted, *rest, team)
        )

    def sweep_backward(
        self,
        fields: Fields,
        span: tuple[int, int],
        history: sweeps.History,
        crew: Crew,
        way_back: WayBack,
        rebuilding: sweeps.Rebuilding | None = None,
    ) -> None:
        """`sweeps.sweep_backward`."""
        none = np.empty((0, 1), self.dtype)
        energy = none if way_back.energy is None else way_back.energy
        emitted = (self.source, self.receivers, self.wavelet)
        back = (way_back.residual, self.scale, way_back.wavelet)
        rest = (history, rebuilding or self.no_rebuilding(), way_back.image, energy)
        crew.run(
            lambda team: sweeps.sweep_backward(
                self.scheme, fields, span, *emitted, *back, *rest, team
            )
        )


@dataclass(frozen=True, eq=False)
class WayBack:
    """What goes into the way back, and what it fills: the arrays of `sweeps.sweep_backward`."""

    residual: NDArray
    wavelet: NDArray
    image: NDArray
    energy: NDArray | None
