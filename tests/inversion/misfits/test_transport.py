"""The optimal-transport misfit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcfwi.inversion.misfits.transport import transport
from tests.inversion.misfits.toys import DT, random_traces, ricker, slope


@settings(max_examples=30)
@given(periods=st.floats(0.05, 3.0), sign=st.sampled_from([-1.0, 1.0]))
def test_transport_misfit_grows_with_delay_up_to_three_periods(periods, sign):
    assert sign * slope(transport, ricker, sign * periods) > 0.0


def test_transport_misfit_is_mean_square_of_time_between_equal_shares():
    traces = random_traces(2)[:1, :1], random_traces(1)[:1, :1]
    shares = (np.arange(10**6) + 0.5) / 10**6
    times = []
    for trace in (pair.numpy().ravel() for pair in traces):
        positive = np.log1p(np.exp(2.0 * trace / np.sqrt(np.mean(trace**2))))
        arrived = np.append(0.0, np.cumsum(positive) / np.sum(positive))
        times.append(np.interp(shares, arrived, np.linspace(0.0, 1.0, arrived.size)))
    found, _ = transport(*traces, DT, sharpness=2.0)
    assert float(found) == pytest.approx(np.mean((times[0] - times[1]) ** 2), rel=1e-6)
