"""One kind of step over and over: launched, or captured and replayed.

On CUDA and ROCm devices the launches of a stretch of steps are captured in a graph and replayed;
the number of the step is in device memory, where kernels look for it. Elsewhere they are launched
one by one. What a step launches is in `sweep`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

# Steps of a captured stretch, at least: replaying a graph takes the host some microseconds.
STRETCH = 32

# step(n, at): makes the launches of step n; at = n less the clock's time.
Step = Callable[[int, int], None]


class Loop:
    """Runs one kind of step over and over; stretches that come again are captured and replayed.

    direction: of the steps, 1 or -1; period: steps after which launches repeat. The steps are given
    to `run`, as a loop that held them would hold the arrays, and be held by them.
    """

    def __init__(self, clock: Tensor, direction: int, period: int) -> None:
        self._clock, self._direction, self._period = clock, direction, period
        self._stretch = -(-STRETCH // period) * period
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph | None] = {}

    def run(self, step: Step, start: int, count: int) -> None:
        """`count` steps from step `start` on."""
        self._clock.fill_(start)
        for done in range(0, count, self._stretch):
            length = min(self._stretch, count - done)
            self._play(step, start + self._direction * done, length)

    def _play(self, step: Step, start: int, length: int) -> None:
        """The first time as plain launches, so that kernels are compiled; then captured."""
        key = (start % self._period, length)
        if key not in self._graphs or self._clock.device.type != "cuda":
            self._launch(step, start, length)
            self._graphs[key] = None
            return
        graph = self._graphs[key]
        if graph is None:
            graph = self._graphs[key] = self._capture(step, start, length)
        graph.replay()

    def _capture(self, step: Step, start: int, length: int) -> torch.cuda.CUDAGraph:
        """In a stream of the clock's device: torch's own is that of the first that has captured."""
        graph, device = torch.cuda.CUDAGraph(), self._clock.device
        stream, before = torch.cuda.Stream(device), torch.cuda.current_stream(device)  # type: ignore[no-untyped-call]
        try:
            # Other threads, such as NCCL's, may go on calling CUDA meanwhile.
            with (
                no_collection(),
                torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
            ):
                self._launch(step, start, length)
        finally:
            # Where a capture cannot be ended torch stays in its stream
            torch.cuda.set_stream(before)
        return graph

    def _launch(self, step: Step, start: int, length: int) -> None:
        for k in range(length):
            at = self._direction * k
            step(start + at, at)
        self._clock.add_(self._direction * length)


@contextmanager
def no_collection() -> Iterator[None]:
    """Without Python's garbage collector, which may destroy other graphs, or unload modules.

    Neither is allowed while a graph is captured.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
