"""How tables come to a card."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from hpcfwi.wave.engines.gpu.layout import upload


def test_what_is_copied_to_a_card_is_pinned_and_needs_no_conversion(monkeypatch):
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


def test_elsewhere_it_is_copied_as_it_is():
    target = torch.zeros(2)
    upload(target, np.array([0.1, 0.2]))
    assert torch.equal(target, torch.tensor([0.1, 0.2]))
