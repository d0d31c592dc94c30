"""Tests of copying tables to a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from hpcfwi.wave.engines.gpu.layout import upload


def test_table_for_a_gpu_is_copied_from_pinned_memory_of_its_dtype(monkeypatch):
    copied = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: SimpleNamespace(pinned=self))
    card: Any = SimpleNamespace(
        is_cuda=True,
        dtype=torch.float32,
        copy_=lambda given, non_blocking: copied.append((given.pinned, non_blocking)),
    )
    upload(card, np.array([0.1, 0.2]))
    ((given, waits_not),) = copied
    assert waits_not
    assert torch.equal(given, torch.tensor([0.1, 0.2]))


def test_table_for_a_cpu_is_copied_directly():
    target = torch.zeros(2)
    upload(target, np.array([0.1, 0.2]))
    assert torch.equal(target, torch.tensor([0.1, 0.2]))
