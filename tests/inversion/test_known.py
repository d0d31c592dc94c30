"""Cells that an inversion keeps: above a depth, a surface or the first fast cell, or in a mask."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hpcfwi.config.inversion import InversionSection
from hpcfwi.errors import InputError
from hpcfwi.inversion.parameters import PriorKnowledge, lay_surface
from hpcfwi.inversion.stages import make_stages
from hpcfwi.model import Grid, Model
from hpcfwi.parallel.context import Context
from hpcfwi.storage.models import read_model
from tests.inversion.examples import prepare_alone, true_model, write_input

GRID = Grid((5, 4), (10.0, 20.0), (100.0, 0.0))  # depths 100 to 140 m, x 0 to 60 m
VOLUME = Grid((5, 3, 4), (10.0, 20.0, 20.0), (100.0, 0.0, 0.0))


def section(**keys):
    return InversionSection(epochs=1, batch=1, optimizer="adam", **keys)


def count_kept(cells):
    """Return the number of cells that each column keeps; all of them are at its top."""
    counts = cells.sum(axis=0)
    depths = np.arange(len(cells)).reshape(-1, *[1] * counts.ndim)
    np.testing.assert_array_equal(cells, depths < counts)
    return counts.tolist()


def cells(known, grid=GRID, **keys):
    return known.cells(section(**keys), grid)


def water_columns(columns, grid=GRID):
    """Return a model whose columns have these numbers of cells of water above rock."""
    depths = np.arange(grid.shape[0]).reshape(-1, *[1] * (grid.ndim - 1))
    vp = np.where(depths < np.array(columns), 1500.0, 2500.0)
    return PriorKnowledge(Model(grid, {"vp": vp.astype(np.float32)}), {}, {})


def surface_of(rows, grid=GRID):
    model = Model(grid, {"vp": np.full(grid.shape, 2000.0, np.float32)})
    return PriorKnowledge(
        model, {"floor.txt": lay_surface(np.array(rows, float), grid, "floor.txt")}, {}
    )


def test_fixed_above_keeps_cells_down_to_its_depth():
    known = water_columns([0, 0, 0, 0])
    assert count_kept(cells(known)) == [0, 0, 0, 0]
    assert count_kept(cells(known, fixed_above=120.0)) == [3, 3, 3, 3]
    assert count_kept(cells(known, fixed_above=99.0)) == [0, 0, 0, 0]


def test_surface_is_linear_between_its_rows_and_constant_beyond():
    known = surface_of([[40.0, 135.0], [20.0, 115.0]])
    assert count_kept(cells(known, fixed={"file": "floor.txt"})) == [2, 2, 4, 4]


def test_step_of_the_sea_floor_is_a_step_of_the_fixed_cells():
    known = surface_of([[0.0, 110.0], [39.0, 110.0], [39.1, 130.0]])
    assert count_kept(cells(known, fixed={"file": "floor.txt"})) == [2, 2, 4, 4]


def test_surface_in_3d_is_linear_within_its_rows_and_nearest_beyond():
    slope = [[y, x, 100.0 + 0.5 * (y + x)] for y in (0.0, 20.0) for x in (0.0, 20.0, 40.0)]
    known = surface_of(slope, VOLUME)
    expected = [[1, 2, 3, 3], [2, 3, 4, 4], [2, 3, 4, 4]]
    assert count_kept(cells(known, VOLUME, fixed={"file": "floor.txt"})) == expected
    level = surface_of([[20.0, 20.0, 120.0]], VOLUME)
    assert count_kept(cells(level, VOLUME, fixed={"file": "floor.txt"})) == [[3] * 4] * 3


def test_above_velocity_keeps_a_column_down_to_its_first_fast_cell():
    known = water_columns([2, 0, 5, 3])
    known.start["vp"][4, 0] = 1500.0
    assert count_kept(cells(known, fixed={"above_velocity": 1600.0})) == [2, 0, 5, 3]
    assert count_kept(cells(water_columns([2] * 4), fixed={"above_velocity": 1500.0})) == [2] * 4
    assert count_kept(cells(water_columns([2] * 4), fixed={"above_velocity": 1499.0})) == [0] * 4
    columns = [[2, 0, 5, 3], [1, 1, 1, 1], [0, 0, 0, 4]]
    known = water_columns(columns, VOLUME)
    assert count_kept(cells(known, VOLUME, fixed={"above_velocity": 1600.0})) == columns


def test_floor_has_the_same_depth_on_another_grid():
    fine = Grid((9, 7), (5.0, 10.0), (100.0, 0.0))
    for known, keys in (
        (surface_of([[0.0, 110.0], [60.0, 140.0]]), {"file": "floor.txt"}),
        (water_columns([2, 3, 4, 5]), {"above_velocity": 1600.0}),
    ):
        floor = known.floor(section(fixed=keys), fine)
        np.testing.assert_allclose(floor, np.linspace(110.0, 140.0, 7))
        assert count_kept(cells(known, fine, fixed=keys)) == [3, 4, 5, 6, 7, 8, 9]


@given(
    st.lists(st.integers(-5, 40), min_size=2, max_size=6, unique=True),
    st.floats(50.0, 200.0),
    st.booleans(),
)
def test_flat_surface_fixes_same_cells_as_fixed_above(places, depth, is_volume):
    grid = VOLUME if is_volume else GRID
    # Rows are on two lines in 3-D, and in any order in 2-D
    across = [[0.0], [15.0]] if is_volume else [[]]
    rows = [[*y, float(10 * x), depth] for y in across for x in places]
    assume(min(places) <= 6 and max(places) >= 0)  # some rows are above the model
    known = surface_of(rows, grid)
    np.testing.assert_array_equal(
        cells(known, grid, fixed={"file": "floor.txt"}), cells(known, grid, fixed_above=depth)
    )


@pytest.mark.parametrize(
    ("rows", "grid", "words"),
    [
        ([[0.0, 0.11], [0.06, 0.12]], GRID, ("within 0.06 m, in a model of 60 m", "in km")),
        ([[500.0, 120.0], [900.0, 120.0]], GRID, ("x = 500 to 900", "x = 0 to 60 m")),
        ([[9.0, 0.0, 1.0], [9.0, 50.0, 1.0]], VOLUME, ("2 positions lie on one line", "two lines")),
    ],
)
def test_surface_outside_the_model_or_on_one_line_is_refused(rows, grid, words):
    with pytest.raises(InputError) as refused:
        lay_surface(np.array(rows), grid, "floor.txt")
    for word in ("floor.txt", *words):
        assert word in str(refused.value)


# The sea floor of the example, one cell deeper in the right half
STEPPED = "0 60\n590 60\n600 80\n"


def write_stepped(folder, fixed, **changes):
    folder.mkdir(exist_ok=True)
    (folder / "floor.txt").write_text(STEPPED)
    keys = {"inversion.fixed_above": None, "inversion.fixed": fixed}
    return write_input(folder, {**keys, **changes})


def test_above_velocity_is_applied_before_the_model_is_smoothed(tmp_path):
    experiment = prepare_alone(write_stepped(tmp_path, {"above_velocity": 1600.0}))
    water = true_model()["vp"] == 1500.0
    np.testing.assert_array_equal(experiment.fixed, water)
    assert (experiment.initial["vp"][water] == 1500.0).all()
    assert (experiment.initial["vp"][4] < 2000.0).all(), "smoothed across the sea floor"


def test_coarser_grid_and_stages_have_the_fixed_cells_of_the_model(tmp_path):
    stage = {"spacing": 40.0, "inversion": {"fixed": {"file": "floor.txt"}}}
    experiment = prepare_alone(write_stepped(tmp_path, {"file": "floor.txt"}, stage=[stage]))
    (first,) = make_stages(experiment, Context.alone())
    np.testing.assert_array_equal(first.experiment.fixed, experiment.fixed)
    assert count_kept(experiment.fixed) == [4] * 30 + [5] * 30
    coarse = first.experiment.seen_by_waves()
    assert coarse.initial.grid.shape == (16, 31)
    assert count_kept(coarse.fixed) == [2] * 16 + [3] * 15, "depths of 0, 39 and 77 m"


@pytest.mark.usefixtures("no_figures")
def test_inversion_keeps_cells_above_surface_and_show_needs_no_file(hpcfwi, tmp_path):
    changes = {"inversion.epochs": 1, "output.every": 1}
    path, run = write_stepped(tmp_path, {"file": "floor.txt"}, **changes), tmp_path / "run"
    assert hpcfwi("run", path) == 0
    fixed = prepare_alone(path).fixed
    found, initial = (read_model(run / name)["vp"] for name in ("model.h5", "initial.h5"))
    np.testing.assert_array_equal(found[fixed], initial[fixed])
    assert (found[~fixed] != initial[~fixed]).mean() > 0.9
    (tmp_path / "floor.txt").unlink()
    assert hpcfwi("show", run) == 0
    with h5py.File(run / "epochs" / "fixed.h5") as file:
        masks = file["fixed"][...]
    assert masks.shape == (2, 30, 60), "masks of the whole run and of its only stage"
    np.testing.assert_array_equal(masks[1], fixed)


def write_cells(path, name, values, grid):
    """Write values of cells in the layout of a model file."""
    with h5py.File(path, "w") as file:
        file[name] = values
        file.attrs.update(format="hpcfwi-model", version=1, axes=grid.axes)
        file.attrs.update(spacing=grid.spacing, origin=grid.origin)


def find_salt(grid):
    """Return the cells of a body whose edges are on no point of the grids in this module."""
    z, x = np.meshgrid(grid.coordinates(0), grid.coordinates(1), indexing="ij")
    return (np.abs(z - 310.0) < 95.0) & (np.abs(x - 610.0) < 195.0)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float64])
@pytest.mark.parametrize("start", [{"smooth": 80.0}, {"linear": [1500.0, 1.0]}])
def test_mask_keeps_cells_of_the_true_model_in_any_starting_model(dtype, start, tmp_path):
    model = true_model()
    write_cells(tmp_path / "salt.h5", "fixed", find_salt(model.grid).astype(dtype), model.grid)
    path = write_stepped(tmp_path, {"file": "salt.h5"}, **{"model.initial": start})
    experiment = prepare_alone(path)
    salt = find_salt(model.grid)
    np.testing.assert_array_equal(experiment.fixed, salt)
    np.testing.assert_array_equal(experiment.initial["vp"][salt], model["vp"][salt])
    assert (experiment.initial["vp"][~salt] != model["vp"][~salt]).mean() > 0.8


def test_mask_on_another_grid_is_resampled_to_nearest_cells(
    tmp_path,
):
    fine = Grid((121, 241), (5.0, 5.0), (0.0, 0.0))
    write_cells(tmp_path / "salt.h5", "fixed", find_salt(fine).astype(np.uint8), fine)
    stages = [{"spacing": 40.0, "inversion": {"epochs": 1}}, {"inversion": {"epochs": 1}}]
    experiment = prepare_alone(write_stepped(tmp_path, {"file": "salt.h5"}, stage=stages))
    np.testing.assert_array_equal(experiment.fixed, find_salt(true_model().grid))
    first, second = make_stages(experiment, Context.alone())
    for stage in (first, second):
        np.testing.assert_array_equal(stage.experiment.fixed, experiment.fixed)
    coarse = first.experiment.seen_by_waves()
    assert coarse.fixed.shape == (16, 31)
    share = coarse.fixed.mean() / experiment.fixed.mean()
    assert 0.8 < share < 1.2, "the body is still there"


@pytest.mark.usefixtures("no_figures")
def test_cells_of_a_mask_keep_their_bits_in_all_stages(hpcfwi, tmp_path):
    model, run = true_model(), tmp_path / "run"
    write_cells(tmp_path / "salt.h5", "fixed", find_salt(model.grid), model.grid)
    stages = [{"spacing": 40.0, "inversion": {"epochs": 1}}, {"inversion": {"epochs": 1}}]
    # Another length of steps, since Adam might undo the first ones to the last bit
    stages[1]["inversion"]["optimizer"] = {"lr": 15.0}
    changes = {"output.every": 1, "stage": stages}
    path = write_stepped(tmp_path, {"file": "salt.h5"}, **changes)
    assert hpcfwi("run", path) == 0
    salt = find_salt(model.grid)
    found, initial = (read_model(run / name)["vp"] for name in ("model.h5", "initial.h5"))
    np.testing.assert_array_equal(found[salt], model["vp"][salt])
    assert (found[~salt] != initial[~salt]).mean() > 0.9
    (tmp_path / "salt.h5").unlink()
    assert hpcfwi("show", run) == 0


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda mask: 2 * mask,
            ("/fixed", "neither 0 nor 1", "1 for each fixed cell"),
        ),
        (lambda mask: 1.0 * mask - 1.0, ("/fixed", "negative or not finite")),
        (lambda mask: 0 * mask, ("inversion.fixed.file", "1 for no cell")),
        (lambda mask: 0 * mask + 1, ("inversion.fixed.file", "1 for the whole model")),
        (lambda mask: mask[:10, :10], ("/fixed", "does not cover that of the model")),
        (lambda mask: mask.astype("S1"), ("/fixed", "expected numbers")),
    ],
)
def test_invalid_mask_is_refused(spoil, words, hpcfwi, tmp_path, capsys):
    grid = true_model().grid
    write_cells(tmp_path / "salt.h5", "fixed", spoil(find_salt(grid).astype(np.int64)), grid)
    assert hpcfwi("check", write_stepped(tmp_path, {"file": "salt.h5"})) == 2
    message = capsys.readouterr().err
    for word in ("salt.h5", *words):
        assert word in message


def test_error_for_file_without_a_mask_says_how_to_store_one(hpcfwi, tmp_path, capsys):
    assert hpcfwi("check", write_stepped(tmp_path, {"file": "true.h5"})) == 2
    message = capsys.readouterr().err
    assert "/fixed: there is no such dataset; the file holds /vp" in message
    assert "as /fixed" in message
    with h5py.File(tmp_path / "true.h5", "a") as file:
        file["fixed"] = find_salt(true_model().grid)
    assert hpcfwi("check", write_stepped(tmp_path, {"file": "true.h5"})) == 0, (
        "a mask stored in the model file"
    )
