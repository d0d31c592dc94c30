"""Which cells an inversion keeps: down to a depth, a surface in a file, the first fast cell."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hpcfwi.config import load_config
from hpcfwi.config.inversion import InversionSection
from hpcfwi.errors import InputError
from hpcfwi.inversion.parameters import Known, lay_surface
from hpcfwi.inversion.preparation import prepare
from hpcfwi.inversion.stages import make_stages
from hpcfwi.model import Grid, Model
from hpcfwi.parallel.context import Context
from hpcfwi.storage.models import read_model
from tests.inversion.examples import true_model, write_input

GRID = Grid((5, 4), (10.0, 20.0), (100.0, 0.0))  # depths 100 to 140 m, x 0 to 60 m
VOLUME = Grid((5, 3, 4), (10.0, 20.0, 20.0), (100.0, 0.0, 0.0))


def section(**keys):
    return InversionSection(epochs=1, batch=1, optimizer="adam", **keys)


def kept(cells):
    """How many cells each column keeps, which are all at its top."""
    counts = cells.sum(axis=0)
    depths = np.arange(len(cells)).reshape(-1, *[1] * counts.ndim)
    np.testing.assert_array_equal(cells, depths < counts)
    return counts.tolist()


def cells(known, grid=GRID, **keys):
    return known.cells(section(**keys), grid)


def made_of(columns, grid=GRID):
    """A model of which each column has so many cells of water above rock."""
    depths = np.arange(grid.shape[0]).reshape(-1, *[1] * (grid.ndim - 1))
    vp = np.where(depths < np.array(columns), 1500.0, 2500.0)
    return Known(Model(grid, {"vp": vp.astype(np.float32)}), {}, {})


def laid(rows, grid=GRID):
    model = Model(grid, {"vp": np.full(grid.shape, 2000.0, np.float32)})
    return Known(model, {"floor.txt": lay_surface(np.array(rows, float), grid, "floor.txt")}, {})


def test_without_a_key_nothing_is_kept_and_with_a_depth_all_down_to_it():
    known = made_of([0, 0, 0, 0])
    assert kept(cells(known)) == [0, 0, 0, 0]
    assert kept(cells(known, fixed_above=120.0)) == [3, 3, 3, 3]
    assert kept(cells(known, fixed_above=99.0)) == [0, 0, 0, 0]


def test_a_surface_is_linear_between_its_rows_and_level_beyond_them():
    known = laid([[40.0, 135.0], [20.0, 115.0]])
    assert kept(cells(known, fixed={"file": "floor.txt"})) == [2, 2, 4, 4]


def test_a_step_of_the_sea_floor_is_a_step_of_the_cells_that_are_kept():
    known = laid([[0.0, 110.0], [39.0, 110.0], [39.1, 130.0]])
    assert kept(cells(known, fixed={"file": "floor.txt"})) == [2, 2, 4, 4]


def test_a_surface_in_three_dimensions_is_linear_within_its_rows_and_as_the_nearest_beyond():
    slope = [[y, x, 100.0 + 0.5 * (y + x)] for y in (0.0, 20.0) for x in (0.0, 20.0, 40.0)]
    known = laid(slope, VOLUME)
    expected = [[1, 2, 3, 3], [2, 3, 4, 4], [2, 3, 4, 4]]
    assert kept(cells(known, VOLUME, fixed={"file": "floor.txt"})) == expected
    level = laid([[20.0, 20.0, 120.0]], VOLUME)
    assert kept(cells(level, VOLUME, fixed={"file": "floor.txt"})) == [[3] * 4] * 3


def test_a_column_is_kept_down_to_its_first_fast_cell_whatever_is_below_it():
    known = made_of([2, 0, 5, 3])
    known.start["vp"][4, 0] = 1500.0
    assert kept(cells(known, fixed={"above_velocity": 1600.0})) == [2, 0, 5, 3]
    assert kept(cells(made_of([2] * 4), fixed={"above_velocity": 1500.0})) == [2] * 4
    assert kept(cells(made_of([2] * 4), fixed={"above_velocity": 1499.0})) == [0] * 4
    columns = [[2, 0, 5, 3], [1, 1, 1, 1], [0, 0, 0, 4]]
    known = made_of(columns, VOLUME)
    assert kept(cells(known, VOLUME, fixed={"above_velocity": 1600.0})) == columns


def test_on_another_grid_the_floor_is_where_it_was():
    fine = Grid((9, 7), (5.0, 10.0), (100.0, 0.0))
    for known, keys in (
        (laid([[0.0, 110.0], [60.0, 140.0]]), {"file": "floor.txt"}),
        (made_of([2, 3, 4, 5]), {"above_velocity": 1600.0}),
    ):
        floor = known.floor(section(fixed=keys), fine)
        np.testing.assert_allclose(floor, np.linspace(110.0, 140.0, 7))
        assert kept(cells(known, fine, fixed=keys)) == [3, 4, 5, 6, 7, 8, 9]


@given(
    st.lists(st.integers(-5, 40), min_size=2, max_size=6, unique=True),
    st.floats(50.0, 200.0),
    st.booleans(),
)
def test_a_flat_surface_keeps_what_its_depth_does(places, depth, is_volume):
    grid = VOLUME if is_volume else GRID
    # In 3-D on two lines; in 2-D in any order
    across = [[0.0], [15.0]] if is_volume else [[]]
    rows = [[*y, float(10 * x), depth] for y in across for x in places]
    assume(min(places) <= 6 and max(places) >= 0)  # some are over the model
    known = laid(rows, grid)
    np.testing.assert_array_equal(
        cells(known, grid, fixed={"file": "floor.txt"}), cells(known, grid, fixed_above=depth)
    )


@pytest.mark.parametrize(
    ("rows", "grid", "words"),
    [
        ([[0.0, 0.11], [0.06, 0.12]], GRID, ("within 0.06 m, in a model of 60 m", "in km")),
        ([[500.0, 120.0], [900.0, 120.0]], GRID, ("x = 500 to 900", "x = 0 to 60 m")),
        ([[9.0, 0.0, 1.0], [9.0, 50.0, 1.0]], VOLUME, ("2 places lie on one line", "two lines")),
    ],
)
def test_places_that_cannot_be_meant_are_refused(rows, grid, words):
    with pytest.raises(InputError) as refused:
        lay_surface(np.array(rows), grid, "floor.txt")
    for word in ("floor.txt", *words):
        assert word in str(refused.value)


# A sea floor that is one cell deeper in the right half than the example's
STEPPED = "0 60\n590 60\n600 80\n"


def write_stepped(folder, fixed, **changes):
    folder.mkdir(exist_ok=True)
    (folder / "floor.txt").write_text(STEPPED)
    keys = {"inversion.fixed_above": None, "inversion.fixed": fixed}
    return write_input(folder, {**keys, **changes})


def test_what_is_slower_is_looked_for_before_the_model_is_smoothed_and_stays(tmp_path):
    path = write_stepped(tmp_path, {"above_velocity": 1600.0})
    experiment = prepare(load_config(path), Context.alone())
    water = true_model()["vp"] == 1500.0
    np.testing.assert_array_equal(experiment.fixed, water)
    assert (experiment.initial["vp"][water] == 1500.0).all()
    assert (experiment.initial["vp"][4] < 2000.0).all(), "of which the sea floor has some"


def test_waves_on_a_coarser_grid_and_stages_keep_what_the_whole_model_does(tmp_path):
    stage = {"spacing": 40.0, "inversion": {"fixed": {"file": "floor.txt"}}}
    path = write_stepped(tmp_path, {"file": "floor.txt"}, stage=[stage])
    experiment = prepare(load_config(path), Context.alone())
    (first,) = make_stages(experiment, Context.alone())
    np.testing.assert_array_equal(first.experiment.fixed, experiment.fixed)
    assert kept(experiment.fixed) == [4] * 30 + [5] * 30
    coarse = first.experiment.seen_by_waves()
    assert coarse.initial.grid.shape == (16, 31)
    assert kept(coarse.fixed) == [2] * 16 + [3] * 15, "at 0, 39 and 77 m"


@pytest.mark.usefixtures("no_figures")
def test_an_inversion_leaves_these_cells_alone_and_show_knows_them_without_the_file(
    hpcfwi, tmp_path
):
    changes = {"inversion.epochs": 1, "output.every": 1}
    path, run = write_stepped(tmp_path, {"file": "floor.txt"}, **changes), tmp_path / "run"
    assert hpcfwi("run", path) == 0
    fixed = prepare(load_config(path), Context.alone()).fixed
    found, initial = (read_model(run / name)["vp"] for name in ("model.h5", "initial.h5"))
    np.testing.assert_array_equal(found[fixed], initial[fixed])
    assert (found[~fixed] != initial[~fixed]).mean() > 0.9
    (tmp_path / "floor.txt").unlink()
    assert hpcfwi("show", run) == 0
    with h5py.File(run / "epochs" / "fixed.h5") as file:
        masks = file["fixed"][...]
    assert masks.shape == (2, 30, 60), "of the whole and its only stage"
    np.testing.assert_array_equal(masks[1], fixed)


def write_cells(path, name, values, grid):
    """Numbers of cells, laid out as a model file is."""
    with h5py.File(path, "w") as file:
        file[name] = values
        file.attrs.update(format="hpcfwi-model", version=1, axes=grid.axes)
        file.attrs.update(spacing=grid.spacing, origin=grid.origin)


def find_salt(grid):
    """A body whose edges are on no point of the grids that are used here."""
    z, x = np.meshgrid(grid.coordinates(0), grid.coordinates(1), indexing="ij")
    return (np.abs(z - 310.0) < 95.0) & (np.abs(x - 610.0) < 195.0)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float64])
@pytest.mark.parametrize("start", [{"smooth": 80.0}, {"linear": [1500.0, 1.0]}])
def test_a_mask_keeps_any_cells_of_the_starting_model_whatever_it_is_made_of(
    dtype, start, tmp_path
):
    model = true_model()
    write_cells(tmp_path / "salt.h5", "fixed", find_salt(model.grid).astype(dtype), model.grid)
    path = write_stepped(tmp_path, {"file": "salt.h5"}, **{"model.initial": start})
    experiment = prepare(load_config(path), Context.alone())
    salt = find_salt(model.grid)
    np.testing.assert_array_equal(experiment.fixed, salt)
    np.testing.assert_array_equal(experiment.initial["vp"][salt], model["vp"][salt])
    assert (experiment.initial["vp"][~salt] != model["vp"][~salt]).mean() > 0.8


def test_a_mask_on_another_grid_is_that_of_the_nearest_cell_on_the_grid_and_on_that_of_stages(
    tmp_path,
):
    fine = Grid((121, 241), (5.0, 5.0), (0.0, 0.0))
    write_cells(tmp_path / "salt.h5", "fixed", find_salt(fine).astype(np.uint8), fine)
    stages = [{"spacing": 40.0, "inversion": {"epochs": 1}}, {"inversion": {"epochs": 1}}]
    path = write_stepped(tmp_path, {"file": "salt.h5"}, stage=stages)
    experiment = prepare(load_config(path), Context.alone())
    np.testing.assert_array_equal(experiment.fixed, find_salt(true_model().grid))
    first, second = make_stages(experiment, Context.alone())
    for stage in (first, second):
        np.testing.assert_array_equal(stage.experiment.fixed, experiment.fixed)
    coarse = first.experiment.seen_by_waves()
    assert coarse.fixed.shape == (16, 31)
    share = coarse.fixed.mean() / experiment.fixed.mean()
    assert 0.8 < share < 1.2, "the body is still there"


@pytest.mark.usefixtures("no_figures")
def test_cells_of_a_mask_keep_their_bits_in_all_stages_and_show_knows_them_without_the_file(
    hpcfwi, tmp_path
):
    model, run = true_model(), tmp_path / "run"
    write_cells(tmp_path / "salt.h5", "fixed", find_salt(model.grid), model.grid)
    stages = [{"spacing": 40.0, "inversion": {"epochs": 1}}, {"inversion": {"epochs": 1}}]
    # Steps of another length, as those of Adam might take back the first ones to the bit
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
        (lambda mask: 2 * mask, ("/fixed", "neither 0 nor 1", "1 for each cell that is kept")),
        (lambda mask: 1.0 * mask - 1.0, ("/fixed", "negative or not finite")),
        (lambda mask: 0 * mask, ("inversion.fixed.file", "1 for no cell")),
        (lambda mask: 0 * mask + 1, ("inversion.fixed.file", "1 for the whole model")),
        (lambda mask: mask[:10, :10], ("/fixed", "does not cover that of the model")),
        (lambda mask: mask.astype("S1"), ("/fixed", "expected numbers")),
    ],
)
def test_a_mask_that_cannot_be_meant_is_refused(spoil, words, hpcfwi, tmp_path, capsys):
    grid = true_model().grid
    write_cells(tmp_path / "salt.h5", "fixed", spoil(find_salt(grid).astype(np.int64)), grid)
    assert hpcfwi("check", write_stepped(tmp_path, {"file": "salt.h5"})) == 2
    told = capsys.readouterr().err
    for word in ("salt.h5", *words):
        assert word in told


def test_a_file_without_a_mask_says_how_to_store_one(hpcfwi, tmp_path, capsys):
    assert hpcfwi("check", write_stepped(tmp_path, {"file": "true.h5"})) == 2
    told = capsys.readouterr().err
    assert "/fixed: no such dataset; the file holds /vp" in told
    assert "as /fixed" in told
    with h5py.File(tmp_path / "true.h5", "a") as file:
        file["fixed"] = find_salt(true_model().grid)
    assert hpcfwi("check", write_stepped(tmp_path, {"file": "true.h5"})) == 0, "beside the model"
