"""What the arrays and launches of a batch of shots depend on, and which arrays there are.

Two batches with the same blueprint use the same arrays, one after the other. What is done in them
is in `sweep`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm, prod

import torch

from hpcfwi.wave.engines.gpu.cells import Box, Layout, Sizes
from hpcfwi.wave.engines.gpu.loop import STRETCH
from hpcfwi.wave.history import Boundary, History, Recompute, count_samples, sampling_offset

FORMATS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
}
# Sampled steps in a segment, at least, where segments are simulated again: a state of a simulation
# takes as much memory as some of them.
SEGMENT_SAMPLES = 8
# Loops of a sweep that are captured, each in two lengths; launches of a step, and what one holds of
# the card's memory, bytes: at most
LOOPS, LAUNCHES, ARGUMENTS = 5, 9, 4096
# Kept cells that one program of a kernel handles, and that share one scale.
KEPT = 256
# What the largest magnitude of some cells becomes in the formats of a small range.
UNITS = {torch.float16: 1, torch.int8: 127}


@dataclass(frozen=True)
class Blueprint:
    """What a sweep's arrays and launches depend on, apart from the numbers in them.

    steps: samples of a trace; sources, receivers: sizes of their matrices; keeps: whether there
    will be a way back.
    """

    layout: Layout
    device: torch.device
    dtype: torch.dtype
    free_surface: bool
    shots: int
    steps: int
    sources: Sizes
    receivers: Sizes
    history: History
    keeps: bool
    illuminates: bool

    @property
    def interval(self) -> int:
        assert self.history.interval is not None, "resolved by acoustic.simulate"
        return self.history.interval

    @property
    def rebuilds(self) -> bool:
        """Whether the way back rebuilds the field from its perimeter."""
        return self.keeps and isinstance(self.history, Boundary)

    @property
    def recomputes(self) -> bool:
        """Whether the way back simulates again, segment by segment."""
        return self.keeps and isinstance(self.history, Recompute)

    @property
    def period(self) -> int:
        """Steps after which launches repeat: two fields alternate, and some steps are sampled."""
        return lcm(2, self.interval)

    @property
    def segment(self) -> int:
        """Steps of a segment."""
        return -(-SEGMENT_SAMPLES * self.interval // self.period) * self.period

    @property
    def segments(self) -> int:
        return -(-(self.steps - 1) // self.segment)

    @property
    def states(self) -> int:
        """States that are kept, but for that at the beginning, which is zero."""
        if not self.recomputes:
            return 0
        assert isinstance(self.history, Recompute)
        return min(self.history.states, self.segments - 1)

    @property
    def kept_as(self) -> torch.dtype:
        """What kept fields are stored as."""
        return FORMATS.get(getattr(self.history, "format", "full"), self.dtype)

    @property
    def keeps_straight(self) -> bool:
        """Whether whole fields are kept as they are, so that they are written where they stay."""
        return self.keeps and not self.rebuilds and self.kept_as == self.dtype

    def is_sampled(self, n: int) -> bool:
        """Whether the image is made from step n."""
        return self.keeps and n % self.interval == sampling_offset(self.interval)

    def list_arrays(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Name, shape and type of each array."""
        layout, shots, steps = self.layout, self.shots, self.steps
        keeps, rebuilds, again = map(int, (self.keeps, self.rebuilds, self.recomputes))
        lit = int(self.keeps and self.illuminates)
        shapes: dict[str, tuple[int, ...]] = {
            "v2dt2": (layout.size,),
            "fields": (2, shots, layout.size),
            "memory": (2 + keeps, shots, layout.memory_size),
            "u": (keeps - self.keeps_straight, shots, layout.size),
            "image": (keeps, shots, layout.size),
            "energies": (2 * lit, shots, layout.size),
            "last": (2 * rebuilds, shots, layout.size),
            "rebuilt": (2 * rebuilds, shots, layout.size),
            "past": (2 * again, shots, layout.size),
            "past_memory": (2 * again, shots, layout.memory_size),
            "states": (self.states, 2, shots, layout.size),
            "states_memory": (self.states, 2, shots, layout.memory_size),
            "wavelet": (shots, steps, self.sources.points),
            "wavelet_gradient": (shots, steps, self.sources.points),
            "traces": (shots, steps, self.receivers.points),
        }
        arrays = {name: (shape, self.dtype) for name, shape in shapes.items()}
        kept_as = self.kept_as
        samples = count_samples(steps - 1, self.interval) if keeps else 0
        if again:
            samples = min(samples, self.segment // self.interval)
        frame = _volume(layout.frame) if rebuilds else layout.size
        edge = _volume(layout.perimeter) if rebuilds else 0
        for name, slots, cells in (("samples", samples, frame), ("edges", steps - 1, edge)):
            scales = -(-cells // KEPT) if kept_as in UNITS else 0
            arrays[name] = (slots, shots, cells), kept_as
            arrays[f"{name}_scales"] = (slots, shots, scales), torch.float32
        for name, sizes in (("sources", self.sources), ("receivers", self.receivers)):
            rows, columns = (shots, sizes.points, sizes.entries), (shots, sizes.cells, sizes.shared)
            arrays[f"{name}_cells"] = rows, torch.int32
            arrays[f"{name}_weights"] = rows, self.dtype
            arrays[f"{name}_occupied"] = columns[:2], torch.int32
            arrays[f"{name}_points"] = columns, torch.int32
            arrays[f"{name}_spreading"] = columns, self.dtype
        return arrays

    def count_touched(self) -> tuple[int, int]:
        """Bytes that a step goes through: of a shot, on the way that takes more; of all alike."""
        arrays, passed = self.list_arrays(), 0
        for name in ("fields", "memory", "u", "image", "energies", "rebuilt"):
            shape, dtype = arrays[name]
            # Each way has an energy of its own
            passed += prod(shape) * dtype.itemsize // (2 if name == "energies" else 1)
        (*_, kept), dtype = arrays["samples"]
        common, of_model = arrays["v2dt2"]
        sample = kept * dtype.itemsize if self.keeps else 0
        return passed // self.shots + sample, prod(common) * of_model.itemsize

    @property
    def captured(self) -> int:
        """Bytes of the card's memory that captured launches hold, at most."""
        steps = max(STRETCH, self.period) if self.device.type == "cuda" else 0
        return 2 * LOOPS * steps * LAUNCHES * ARGUMENTS

    def count_bytes(self) -> int:
        """Of the arrays, of lists of cells that are kept, and of captured launches."""
        arrays = sum(prod(shape) * dtype.itemsize for shape, dtype in self.list_arrays().values())
        listed = [*self.layout.frame, *self.layout.perimeter] if self.rebuilds else []
        return arrays + 4 * _volume(listed) + self.captured


def _volume(boxes: list[Box]) -> int:
    return sum(prod(end - begin for begin, end in box) for box in boxes)
