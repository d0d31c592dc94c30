"""The misfit by a matching filter, which measures delays."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcfwi.inversion.misfits.adaptive import adaptive
from tests.inversion.misfits.toys import DT, SAMPLES, ricker, slope


@settings(max_examples=30)
@given(periods=st.floats(0.05, 3.0), sign=st.sampled_from([-1.0, 1.0]))
def test_adaptive_misfit_grows_with_delay_up_to_three_periods(periods, sign):
    assert sign * slope(adaptive, ricker, sign * periods) > 0.0


def test_adaptive_misfit_of_a_spike_is_half_its_squared_lag():
    observed, simulated = (0.0 * ricker(0.0) for _ in range(2))
    observed[0, 0, 30], simulated[0, 0, 80] = 1.0, 5.0
    found, _ = adaptive(simulated, observed, DT, damping=1e-9)
    assert float(found) == pytest.approx(0.5 * (50 / SAMPLES) ** 2, rel=1e-6)
