"""Tests of the reciprocity option, which exchanges sources and receivers."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from tests.convert.examples import DT, N_SAMPLES, line_traces, read_gathers, write_segy
from tests.inversion.examples import write_input

SHOTS, NODES = 8, 3


def node_fields(order):
    """Return headers of a survey of nodes, whose traces are sorted by node and shot, reordered."""
    node, shot = (index.ravel()[order] for index in np.indices((NODES, SHOTS)))
    return {
        "record": 501 + shot,
        "channel": 1 + node,
        "source_depth": 5,
        "receiver_elevation": -900 - node,
        "source_x": 100 * shot,
        "receiver_x": 37 + 200 * node,
        "interval": round(1e6 * DT),
    }


@pytest.mark.parametrize("shuffle", [False, True])
def test_reciprocity_exchanges_nodes_and_shots(shuffle, convert, tmp_path):
    traces = line_traces(NODES * SHOTS)
    order = np.random.default_rng(2).permutation(len(traces)) if shuffle else np.arange(len(traces))
    write_segy(tmp_path / "a.sgy", node_fields(order), traces[order])
    survey, found = read_gathers(convert("a.sgy", "a.h5", "--reciprocity"))
    np.testing.assert_array_equal(found, traces.reshape(NODES, SHOTS, N_SAMPLES))
    node, shot = np.arange(NODES), np.arange(SHOTS)
    np.testing.assert_array_equal(
        survey.sources, np.stack([900.0 + node, 37.0 + 200.0 * node], axis=1)
    )
    np.testing.assert_array_equal(
        survey.receivers, np.stack([np.full(SHOTS, 5.0), 100.0 * shot], axis=1)
    )


def test_shots_not_recorded_by_a_node_are_masked(convert, tmp_path):
    order = np.delete(np.arange(NODES * SHOTS), [2, 11, 12])
    traces = line_traces(NODES * SHOTS)
    write_segy(tmp_path / "a.sgy", node_fields(order), traces[order])
    survey, found = read_gathers(convert("a.sgy", "a.h5", "--reciprocity"))
    assert survey.mask.sum(axis=1).tolist() == [7, 6, 8]
    np.testing.assert_array_equal(found[survey.mask], traces[order])


def test_reciprocity_with_a_wavelet_per_source_is_refused(tmp_path, refuse):
    write_segy(tmp_path / "a.sgy", node_fields(slice(None)), line_traces(NODES * SHOTS))
    np.save(tmp_path / "w.npy", np.ones((NODES, 5)))
    words = ("--reciprocity", "--wavelet", tmp_path / "w.npy")
    assert "Give one wavelet that all sources have emitted" in refuse("a.sgy", "a.h5", *words)


def test_reciprocal_simulated_gathers_agree_with_the_exchanged_survey(hpcfwi, convert, tmp_path):
    one = {"count": SHOTS, "first": 83.0, "last": 1103.0, "depth": 27.0}
    other = {"count": NODES, "first": 303.0, "last": 907.0, "depth": 311.0}
    for name, sources, receivers in (("forth", one, other), ("back", other, one)):
        changes = {
            "survey.sources": sources,
            "survey.receivers": receivers,
            "wave.free_surface": True,
            "inversion.batch": 2,
            "wave.engine": "eager",
            "survey.duration": 0.48,
            "output.directory": str(tmp_path / name),
        }
        config = write_input(tmp_path, changes, name)
        assert hpcfwi("forward", config, "--quiet") == 0
    convert("forth/observed.h5", "forth.sgy")
    wavelet = tmp_path / "forth" / "observed.h5"
    survey, found = read_gathers(
        convert("forth.sgy", "turned.h5", "--reciprocity", "--wavelet", wavelet)
    )
    expected_survey, expected = read_gathers(tmp_path / "back" / "observed.h5")
    np.testing.assert_allclose(survey.sources, expected_survey.sources, atol=1e-3)
    np.testing.assert_allclose(survey.receivers, expected_survey.receivers, atol=1e-3)
    assert np.abs(expected).max() > 0.0
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    with h5py.File(wavelet) as file:
        assert file["data"].shape == (SHOTS, NODES, expected.shape[-1])
