"""What simulations may take of a device, and what says that it was too much."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcfwi.system import free_on_host
from hpcfwi.wave.history import is_out_of_memory, memory_at_hand

GB = 10**9


def test_of_what_is_free_here_a_fifth_is_left_to_others() -> None:
    free = free_on_host()
    assert 0 < free < 10**15
    assert memory_at_hand(torch.device("cpu")) == pytest.approx(0.8 * free, rel=0.2)


def test_on_a_gpu_what_torch_holds_for_nothing_is_free_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gigabytes = {"mem_get_info": (10 * GB, 80 * GB), "memory_reserved": 9 * GB}
    for name, value in {**gigabytes, "memory_allocated": 4 * GB}.items():
        monkeypatch.setattr(torch.cuda, name, lambda _, value=value: value)
    assert memory_at_hand(torch.device("cuda:0")) == 12 * GB


def test_numpy_and_torch_say_each_in_its_way_that_memory_has_run_out() -> None:
    errors = [torch.OutOfMemoryError("CUDA out of memory."), MemoryError()]
    for allocate in (np.empty, torch.empty):
        with pytest.raises((MemoryError, RuntimeError)) as error:
            allocate((2**40, 2**18))
        errors.append(error.value)
    assert all(is_out_of_memory(error) for error in errors)


def test_other_errors_say_something_else() -> None:
    others = [RuntimeError("shapes do not fit"), ValueError("out of memory"), KeyboardInterrupt()]
    assert not any(is_out_of_memory(error) for error in others)
