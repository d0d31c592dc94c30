"""The misfit of envelopes, which ignores phases."""

from __future__ import annotations

import pytest
import torch

from hpcfwi.inversion.misfits.envelope import envelope
from tests.inversion.misfits.toys import DT, burst


def test_envelope_misfit_ignores_the_sign_of_traces():
    observed = burst(0.5)
    found, gradient = envelope(-observed, observed, DT)
    assert float(found) == 0.0
    assert not gradient.any()


def test_envelope_misfit_compares_envelopes():
    since = DT * torch.arange(250, dtype=torch.float64)
    first, second = (torch.exp(-(((since - time) / 0.1) ** 2)) for time in (0.5, 0.6))
    found, _ = envelope(burst(0.6), burst(0.5), DT)
    assert float(found) == pytest.approx(
        0.5 * DT * float((second - first).square().sum()), rel=1e-3
    )
