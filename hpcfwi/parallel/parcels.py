"""What an object travels as: an outline, which is a pickle, and its arrays as they lie in memory.

Arrays in a pickle are copied into it and out of it, and those of torch are written as files are:
of a checkpoint that takes many times as long as to send it. How parts are sent is in `objects`.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

# Bytes. Smaller arrays go with the outline: to send one more part takes longer.
SMALL = 2**16


def take_apart(value: Any) -> tuple[bytes, list[Bytes]]:
    """The outline of an object, and the arrays that are sent beside it; these are not copied."""
    arrays: list[Bytes] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        array = np.frombuffer(buffer.raw(), np.uint8)
        if array.size > SMALL:
            arrays.append(array)
        return array.size <= SMALL

    outline = io.BytesIO()
    _Pickler(outline, protocol=5, buffer_callback=keep).dump(value)
    return pickle.dumps((outline.getvalue(), [array.size for array in arrays])), arrays


def find_sizes(outline: bytes) -> list[int]:
    """Of the arrays that belong to an outline. It is unpickled: only one that can be trusted."""
    _, sizes = pickle.loads(outline)
    return list(sizes)


def make_room(outline: bytes) -> list[Bytes]:
    """For these arrays."""
    return [np.empty(size, np.uint8) for size in find_sizes(outline)]


def put_together(outline: bytes, arrays: list[Bytes]) -> Any:
    """The object; its arrays are these."""
    inner, _ = pickle.loads(outline)
    return pickle.loads(inner, buffers=arrays)


class _Pickler(pickle.Pickler):
    """Gives tensors away as NumPy's arrays."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or value.requires_grad or not _is_plain(value):
            return NotImplemented
        flat = value.contiguous().reshape(-1).view(torch.uint8).numpy()
        return _make_tensor, (flat, value.dtype, value.shape)


def _is_plain(tensor: torch.Tensor) -> bool:
    on_cpu = tensor.device.type == "cpu" and tensor.layout == torch.strided
    return on_cpu and not tensor.is_conj() and not tensor.is_neg()


def _make_tensor(flat: Bytes, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    return torch.from_numpy(flat).view(dtype).reshape(shape)
