"""Tests of the memory at hand, and of recognizing memory errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcfwi.errors import is_out_of_memory
from hpcfwi.system import free_on_host
from hpcfwi.wave.history import memory_at_hand

GB = 10**9


def test_memory_at_hand_is_four_fifths_of_the_free_host_memory() -> None:
    free = free_on_host()
    assert 0 < free < 10**15
    assert memory_at_hand(torch.device("cpu")) == pytest.approx(0.8 * free, rel=0.2)


def test_unused_memory_reserved_by_torch_on_a_gpu_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gigabytes = {"mem_get_info": (10 * GB, 80 * GB), "memory_reserved": 9 * GB}
    for name, value in {**gigabytes, "memory_allocated": 4 * GB}.items():
        monkeypatch.setattr(torch.cuda, name, lambda _, value=value: value)
    assert memory_at_hand(torch.device("cuda:0")) == 12 * GB


def test_memory_errors_of_numpy_and_torch_are_recognised() -> None:
    errors = [torch.OutOfMemoryError("CUDA out of memory."), MemoryError()]
    for allocate in (np.empty, torch.empty):
        with pytest.raises((MemoryError, RuntimeError)) as error:
            allocate((2**40, 2**18))
        errors.append(error.value)
    assert all(is_out_of_memory(error) for error in errors)


def test_other_errors_are_not_taken_for_memory_errors() -> None:
    others = [RuntimeError("shapes do not fit"), ValueError("out of memory"), KeyboardInterrupt()]
    assert not any(is_out_of_memory(error) for error in others)
