"""Tests of commands with a 3-D model."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from hpcfwi.storage.models import read_model
from tests.inversion.examples import (
    prepare_alone,
    read_metric,
    true_volume,
    write_volume,
)
from tests.undrawn import draw_nothing

FIGURES = [
    f"{name}.png"
    for name in (
        *("epoch_0002", "fit", "loss", "observed_data", "profiles", "ricker", "traces"),
        "wavelet",
    )
]


def survey(folder, changes=None):
    return prepare_alone(write_volume(folder, changes)).survey


def test_points_cover_the_area_of_the_model_with_x_running_fastest(tmp_path):
    (z, y, x), grid = survey(tmp_path).sources.T, true_volume().grid
    assert set(z) == {40.0}
    np.testing.assert_allclose(y, np.repeat([0.0, grid.last[1]], 3))
    np.testing.assert_allclose(x, np.tile([0.0, grid.last[2] / 2, grid.last[2]], 2))
    assert survey(tmp_path).receivers.shape == (35, 3)


def test_points_can_cover_a_part_of_the_area_or_form_a_line(tmp_path):
    part = {"count": [2, 2], "depth": 40.0, "first": [80.0, 120.0], "last": [160.0, 240.0]}
    sources = survey(tmp_path, {"survey.sources": part}).sources[:, 1:]
    assert sources.tolist() == [[80.0, 120.0], [80.0, 240.0], [160.0, 120.0], [160.0, 240.0]]
    line = survey(tmp_path, {"survey.sources.count": [1, 4]}).sources
    np.testing.assert_array_equal(line[:, 1], true_volume().grid.last[1] / 2)


def test_volume_is_inverted_and_its_figures_are_drawn(hpcfwi, tmp_path, monkeypatch, capsys):
    path, run = write_volume(tmp_path), tmp_path / "run"

    with monkeypatch.context() as patch:
        draw_nothing(patch.setattr)
        assert hpcfwi("run", path, "--quiet") == 0
        capsys.readouterr()

    errors = read_metric(run, "model_error")
    assert errors[1] < errors[0]
    result, true = read_model(run / "model.h5"), true_volume()
    assert result.grid == true.grid
    np.testing.assert_array_equal(result["vp"][:2], true["vp"][:2], "the water is fixed")
    with h5py.File(run / "observed.h5") as file:
        assert (file["data"].shape, file["sources"].shape) == ((6, 35, 60), (6, 3))

    assert hpcfwi("show", run) == 0

    assert capsys.readouterr().out.split() == [str(run / name) for name in FIGURES]
    assert all((run / name).read_bytes().startswith(b"\x89PNG") for name in FIGURES)


def test_coarser_grid_covers_the_same_volume(tmp_path):
    coarse = {"model.spacing": 60.0, "inversion.fixed_above": None}
    experiment = prepare_alone(write_volume(tmp_path, coarse))
    assert experiment.initial.grid.shape == (8, 9, 9)
    assert experiment.true["vp"][-1].mean() == pytest.approx(2200.0, rel=0.1)
