"""Tests of the agreement of the engines in single precision."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.wave.examples import EXACT, relative, smooth_shots, white_residual


def test_engines_agree_to_rounding_in_single_precision() -> None:
    shots = smooth_shots(samples=160)
    shots = replace(shots, vp=shots.vp.float())
    eager, cpu = (shots.simulate(engine=engine, history=EXACT) for engine in ("eager", "cpu"))
    residual = white_residual(eager.data)
    expected, found = eager.backpropagate(residual), cpu.backpropagate(residual)
    assert relative(cpu.data, eager.data) < 1e-5
    assert relative(found.model["vp"], expected.model["vp"]) < 1e-5
    assert relative(found.wavelet, expected.wavelet) < 1e-5


@pytest.mark.parametrize("engine", ["eager", "cpu"])
def test_single_precision_agrees_with_double_to_five_digits(engine: str) -> None:
    shots = smooth_shots(samples=160)
    single = replace(shots, vp=shots.vp.float()).simulate(engine=engine, history=EXACT)
    double = shots.simulate(engine="cpu", history=EXACT)
    residual = white_residual(double.data)
    assert single.data.dtype == torch.float32
    assert relative(single.data, double.data) < 1e-5
    gradient = single.backpropagate(residual.float()).model["vp"]
    assert relative(gradient, double.backpropagate(residual).model["vp"]) < 1e-5
