"""Reading of input files and settings, and the location of the files that they name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.config import changed_keys, load_config
from hpcfwi.config.read import HistorySection
from hpcfwi.config.values import count_bytes
from hpcfwi.errors import InputError
from tests.config.examples import MINIMAL
from tests.ranks import ROOT

FOLDER = ROOT / "inputs"
INPUTS = sorted(FOLDER.glob("*.toml"))


def test_minimal_input_has_documented_defaults(path):
    config = load_config(path)
    wave = config.wave
    assert (wave.equation, wave.order, wave.boundary, wave.free_surface) == (
        "acoustic",
        8,
        20,
        False,
    )
    assert (wave.engine, wave.history) == ("auto", "auto")
    assert (config.inversion.seed, config.inversion.fixed_above) == (0, None)
    assert config.output.every == 10
    assert config.model.spacing is None


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.name)
def test_input_files_of_the_project_are_valid(path):
    config = load_config(path)
    assert config.inversion.optimizer.name == ("adam" if config.migration is None else "cg")


def test_integers_are_accepted_as_lengths_and_times(path):
    config = load_config(path)
    assert config.survey.duration == 1.0
    assert config.inversion.optimizer.lr == 25.0


def test_config_cannot_be_changed(path):
    with pytest.raises(ValueError, match="frozen"):
        load_config(path).inversion.epochs = 5


def test_files_are_relative_to_input_and_run_directory_to_working_directory(path, tmp_path):
    path.write_text(
        MINIMAL.replace("{ smooth = 200.0 }", '{ file = "../start.h5", qp.file = "q.h5" }')
    )
    config = load_config(path)
    assert config.model.file == str(tmp_path / "models" / "true.h5")
    assert config.model.initial.file == str(tmp_path.parent / "start.h5")
    assert config.model.initial.qp.file == str(tmp_path / "q.h5")
    assert config.output.directory == "runs/minimal"


def test_run_directory_given_as_the_input_is_the_output_directory(path, tmp_path, monkeypatch):
    run = tmp_path / "renamed"
    run.mkdir()
    (run / "config.toml").write_text(load_config(path).to_toml())
    assert load_config(run).output.directory == str(run)
    monkeypatch.chdir(tmp_path)
    assert load_config(Path("renamed")).output.directory == "renamed"
    assert load_config(run, ["output.every=3"]).output.directory == str(run)
    assert load_config(run, ["output.directory='other'"]).output.directory == "other"
    assert load_config(run / "config.toml").output.directory == "runs/minimal"


def test_files_in_stages_are_relative_to_the_input(path, tmp_path):
    keys = (
        'epochs = 3\nfixed = { file = "floor.txt" }\n'
        'regularize = { name = "tv", weight = 1.0, prior = "wells.h5" }'
    )
    stages = (
        '\n[[stage]]\ninversion.fixed.file = "deep/floor.txt"\n'
        '[[stage]]\ninversion.regularize.prior = "deep/wells.h5"\n'
        '[[stage]]\ninversion.regularize = { name = "tikhonov", weight = 1.0 }\n'
    )
    path.write_text(MINIMAL.replace("epochs = 3", keys) + stages)
    parts = [part.inversion for _, part in load_config(path).stages()]
    floor, wells = str(tmp_path / "floor.txt"), str(tmp_path / "wells.h5")
    deep = tmp_path / "deep"
    assert [part.fixed.file for part in parts] == [str(deep / "floor.txt"), floor, floor]
    assert [part.regularize.prior for part in parts] == [wells, str(deep / "wells.h5"), None]


def test_files_in_a_folder_whose_name_is_not_utf8_are_refused(tmp_path):
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    (folder / "input.toml").write_text(MINIMAL)
    with pytest.raises(InputError, match=r"model\.file: found .* in UTF-8"):
        load_config(folder / "input.toml")


@pytest.mark.parametrize(
    "setting", ["model.initial.file=start.h5", 'model.initial={ file = "start.h5" }']
)
def test_files_in_settings_are_relative_to_working_directory(setting, path, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path.write_text(MINIMAL.replace("{ smooth = 200.0 }", "{}"))
    config = load_config(path, [setting, "model.spacing=25.0"])
    assert config.model.initial.file == str(tmp_path / "here" / "start.h5")
    assert config.model.file == str(tmp_path / "models" / "true.h5"), "named by the input"


@pytest.mark.parametrize(
    "history",
    [
        "boundary",
        "{ interval = 3 }",
        '{ kind = "snapshots", interval = 5, format = "int8" }',
        '{ kind = "recompute", states = 8 }',
    ],
)
def test_written_config_is_read_as_the_same_config(path, tmp_path, history):
    settings = [f"wave.history={history}", "wave.memory=12 GB", "wave.aperture=3000"]
    config = load_config(path, [*settings, "inversion.bounds=[1400.0, 5000.0]"])
    (tmp_path / "elsewhere").mkdir()
    copy = tmp_path / "elsewhere" / "config.toml"
    copy.write_text(config.to_toml())
    assert load_config(copy) == config
    own = {"output.directory": str(copy.parent)}
    assert changed_keys(load_config(copy.parent), config) == own, "a run directory is a config"
    assert changed_keys(load_config(copy), config) == {}


def test_points_of_a_volume_are_pairs_and_survive_writing(path, tmp_path):
    sources = "{ count = [4, 6], depth = 25, first = [0, 100.0], last = [800.0, 900] }"
    config = load_config(path, [f"survey.sources={sources}"])
    assert config.survey.sources.count == (4, 6)
    assert config.survey.sources.last == (800.0, 900.0)
    (tmp_path / "copy.toml").write_text(config.to_toml())
    assert load_config(tmp_path / "copy.toml") == config
    assert changed_keys(config, load_config(path)) == {
        "survey.sources.count": (4, 6),
        "survey.sources.first": (0.0, 100.0),
        "survey.sources.last": (800.0, 900.0),
    }


@given(st.floats(1e-6, 1e6), st.integers(1, 10**6), st.booleans(), st.sampled_from([2, 4, 6, 8]))
def test_settings_override_values_of_the_file(spacing, batch, free, order):
    path = FOLDER / "marmousi.toml"
    settings = {
        "model.spacing": spacing,
        "inversion.batch": batch,
        "wave.free_surface": str(free).lower(),
        "wave.order": order,
    }
    config = load_config(path, [f"{key}={value}" for key, value in settings.items()])
    assert config.model.spacing == spacing
    assert config.inversion.batch == batch
    assert config.wave.free_surface == free
    assert config.wave.order == order
    assert config.survey == load_config(path).survey


def test_setting_may_be_text_without_quotes_a_table_or_a_new_section(path):
    config = load_config(path, ["wave.engine=eager", "model.initial={ smooth = 9.0 }"])
    assert config.wave.engine == "eager"
    assert config.model.initial.smooth == 9.0
    assert load_config(path, ["wave.history.interval=1"]).wave.history == HistorySection(interval=1)


@pytest.mark.parametrize(
    ("size", "expected"),
    [("12 GB", 12 * 10**9), ("500MiB", 500 * 2**20), ("0.5 gb", 5 * 10**8), ("800 B", 800)],
)
def test_units_of_sizes_are_powers_of_1000_or_1024(path, size, expected):
    assert count_bytes(load_config(path, [f"wave.memory={size}"]).wave.memory) == expected


def test_last_of_several_settings_of_a_key_is_used(path):
    assert load_config(path, ["inversion.epochs=5", "inversion.epochs=7"]).inversion.epochs == 7


def test_input_that_begins_with_a_byte_order_mark_is_read(path):
    path.write_text(MINIMAL)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_config(path).inversion.epochs > 0


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["a." * 100_000 + "a = 1", "a = " + "[" * 100_000, "#" * 2**21])
def test_input_too_deep_or_too_large_is_refused_at_once(text, tmp_path):
    path = tmp_path / "input.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"input\.toml"):
        load_config(path)


def test_scales_are_relative_to_the_first_parameter_and_powers_of_two(path):
    def scales(*settings):
        return load_config(path, settings).inversion.scales

    assert scales() == {"vp": 1.0}
    assert scales("inversion.scale={vp=30.0}") == {"vp": 1.0}
    names = 'inversion.parameters=["vp", "rho", "epsilon"]'
    assert scales(names) == {"vp": 1.0, "rho": 1.0, "epsilon": 2.0**-11}
    assert scales(names, "inversion.scale={rho=30.0}")["rho"] == 0.25
