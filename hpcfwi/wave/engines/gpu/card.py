"""What a card is, as far as its driver tells."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Card:
    """Bytes of the cache of the second level, and multiprocessors."""

    cache: int
    processors: int


def card_of(device: torch.device) -> Card | None:
    """None where no driver tells."""
    if device.type != "cuda":
        return None
    told = torch.cuda.get_device_properties(device)
    return Card(told.L2_cache_size, told.multi_processor_count)
