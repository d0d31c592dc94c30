"""Where there is no GPU, Triton interprets its kernels, and wants to know before it is imported."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
