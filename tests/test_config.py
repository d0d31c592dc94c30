"""The input file: what is read, what is refused, and with which words."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.config import Config, changed_keys, load_config
from hpcfwi.errors import InputError
from hpcfwi.schema import Kept, count_bytes
from hpcfwi.wave.history import KINDS, Format

INPUTS = sorted(Path(__file__).parent.parent.joinpath("inputs").glob("*.toml"))

MINIMAL = """
[model]
file = "models/true.h5"
initial = { smooth = 200.0 }

[survey]
sources = { count = 4, depth = 25.0 }
receivers = { count = 8, depth = 25.0 }
wavelet = { kind = "ricker", frequency = 5.0, delay = 0.25 }
dt = 0.002
duration = 1

[inversion]
epochs = 3
batch = 2
optimizer = { name = "adam", lr = 25 }

[output]
directory = "runs/minimal"
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "input.toml"
    path.write_text(MINIMAL)
    return path


def refused(path, *settings):
    with pytest.raises(InputError) as error:
        load_config(path, settings)
    return error.value


def test_defaults_are_those_of_the_contract(path):
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
def test_the_inputs_of_the_project_are_good(path):
    assert load_config(path).inversion.optimizer.name == "adam"


def test_whole_numbers_serve_as_lengths_and_times(path):
    config = load_config(path)
    assert config.survey.duration == 1.0
    assert config.inversion.optimizer.lr == 25.0


def test_a_config_cannot_be_changed(path):
    with pytest.raises(ValueError, match="frozen"):
        load_config(path).inversion.epochs = 5


def test_files_are_relative_to_the_input_and_directories_to_where_one_stands(path, tmp_path):
    path.write_text(MINIMAL.replace("{ smooth = 200.0 }", '{ file = "../start.h5" }'))
    config = load_config(path)
    assert config.model.file == str(tmp_path / "models" / "true.h5")
    assert config.model.initial.file == str(tmp_path.parent / "start.h5")
    assert config.output.directory == "runs/minimal"


@pytest.mark.parametrize(
    "setting", ["model.initial.file=start.h5", 'model.initial={ file = "start.h5" }']
)
def test_files_that_are_typed_are_relative_to_where_one_stands(
    setting, path, tmp_path, monkeypatch
):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path.write_text(MINIMAL.replace("{ smooth = 200.0 }", "{}"))
    config = load_config(path, [setting, "model.spacing=25.0"])
    assert config.model.initial.file == str(tmp_path / "here" / "start.h5")
    assert config.model.file == str(tmp_path / "models" / "true.h5"), "the input names it"


@pytest.mark.parametrize(
    "history",
    [
        "boundary",
        "{ interval = 3 }",
        '{ kind = "snapshots", interval = 5, format = "int8" }',
        '{ kind = "recompute", states = 8 }',
    ],
)
def test_what_is_written_is_read_as_the_same_config(path, tmp_path, history):
    settings = [f"wave.history={history}", "wave.memory=12 GB", "wave.aperture=3000"]
    config = load_config(path, [*settings, "inversion.bounds=[1400.0, 5000.0]"])
    (tmp_path / "elsewhere").mkdir()
    copy = tmp_path / "elsewhere" / "config.toml"
    copy.write_text(config.to_toml())
    assert load_config(copy) == config
    assert load_config(copy.parent) == config, "a run directory is a config"
    assert changed_keys(load_config(copy), config) == {}


def test_points_of_a_volume_are_given_in_pairs_and_written_as_they_are_read(path, tmp_path):
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
def test_settings_take_the_place_of_what_the_file_says(spacing, batch, free, order):
    path = Path(__file__).parent.parent / "inputs" / "marmousi.toml"
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


def test_a_setting_may_be_text_without_quotes_a_table_or_a_new_section(path):
    config = load_config(path, ["wave.engine=eager", "model.initial={ smooth = 9.0 }"])
    assert config.wave.engine == "eager"
    assert config.model.initial.smooth == 9.0
    assert load_config(path, ["wave.history.interval=1"]).wave.history == Kept(interval=1)


@pytest.mark.parametrize(
    ("size", "expected"),
    [("12 GB", 12 * 10**9), ("500MiB", 500 * 2**20), ("0.5 gb", 5 * 10**8), ("800 B", 800)],
)
def test_a_size_counts_thousands_or_with_an_i_1024s(path, size, expected):
    assert count_bytes(load_config(path, [f"wave.memory={size}"]).wave.memory) == expected


def test_the_kinds_and_formats_of_a_history_are_those_of_the_engines():
    assert [Kept(kind=kind).kind for kind in KINDS] == list(KINDS)
    assert [Kept(format=name).format for name in get_args(Format)] == list(get_args(Format))


def test_the_last_of_several_settings_counts(path):
    assert load_config(path, ["inversion.epochs=5", "inversion.epochs=7"]).inversion.epochs == 7


@pytest.mark.parametrize(
    ("setting", "where", "words"),
    [
        ("model.spacing=0", "model.spacing", "found 0, expected greater than 0"),
        ("model.spacing=nan", "model.spacing", "finite"),
        ("model.spacing=inf", "model.spacing", "finite"),
        ('model.spacing="25"', "model.spacing", "found '25'"),
        ("model.spacing=true", "model.spacing", "found True"),
        ("survey.dt=-0.002", "survey.dt", "greater than 0"),
        ("survey.sources.count=0", "survey.sources.count", "greater than 0"),
        ("survey.sources.count=2.5", "survey.sources.count", "integer"),
        ("survey.sources.count=[4, 0]", "survey.sources.count.1", "greater than 0"),
        ("survey.sources.count=[4]", "survey.sources.count.1", "missing"),
        ("survey.sources.count=[1, 2, 3]", "survey.sources.count", "at most 2 items"),
        ("survey.sources.first=[0.0, nan]", "survey.sources.first.1", "finite"),
        ("survey.sources.first=[0.0, 1.0]", "survey.sources", "count is a number and first a pair"),
        ("survey.wavelet.kind=box", "survey.wavelet.kind", "'ricker'"),
        ("survey.file=data.h5", "survey", "file and sources exclude each other"),
        ("wave.boundary=-1", "wave.boundary", "greater than or equal to 0"),
        ("wave.history=all", "wave.history", "'auto', 'snapshots', 'boundary' or 'recompute'"),
        ("wave.history.interval=0", "wave.history.interval", "found 0, expected greater than 0"),
        ("wave.history.kind=all", "wave.history.kind", "'snapshots', 'boundary' or 'recompute'"),
        ("wave.history.format=int4", "wave.history.format", "'float16' or 'int8'"),
        ("wave.history.states=8", "wave.history", "snapshots has no states"),
        ('wave.history={ kind = "recompute", format = "full" }', "wave.history", "no format"),
        ("wave.memory=12", "wave.memory", "found 12, expected a size with its unit"),
        ("wave.memory=12 G", "wave.memory", "found '12 G', expected a size with its unit"),
        ("wave.memory=-1 GB", "wave.memory", "such as"),
        ("wave.memory=0 GB", "wave.memory", "such as"),
        ("wave.aperture=0", "wave.aperture", "greater than 0"),
        ("inversion.max_offset=-1", "inversion.max_offset", "greater than 0"),
        ("inversion.seed=-1", "inversion.seed", "greater than or equal to 0"),
        ("inversion.optimizer.lr=0", "inversion.optimizer.lr", "greater than 0"),
        ("inversion.optimizer.betas=[0.9, 1.0]", "inversion.optimizer", "from 0 up to 1"),
        ("inversion.optimizer.name=sgd", None, None),
        ("inversion.bounds=[3000, 1500]", "inversion", "smaller one first"),
        ("inversion.bounds=[0, 1500]", "inversion.bounds.0", "greater than 0"),
        ("inversion.bounds=[1500]", "inversion.bounds.1", "missing"),
        ("output.every=0", "output.every", "greater than 0"),
        ("model=3", "--set model=3", "not a setting"),
        ("=3", "--set =3", "not a setting"),
        ("model.=3", "--set model.=3", "not a setting"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_its_key(path, setting, where, words):
    if where is None:
        assert load_config(path, [setting]).inversion.optimizer.name == "sgd"
        return
    error = refused(path, setting)
    assert error.where in (where, f"{path}: {where}")
    assert words in error.problem
    assert error.remedy.endswith(".")
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("key", "known"),
    [
        ("extra", "The file has the keys inversion, model, output, survey, wave."),
        ("model.extra", "model has the keys dataset, file, initial, spacing."),
        ("survey.wavelet.extra", "survey.wavelet has the keys delay, frequency, kind."),
        ("model.initial.extra", "model.initial has the keys file, smooth."),
        ("wave.history.extra", "wave.history has the keys format, interval, kind, states."),
    ],
)
def test_an_unknown_key_is_refused_with_the_known_ones(path, key, known):
    error = refused(path, f"{key}.x=1" if "." not in key else f"{key}=1")
    assert error.where == f"{path}: {key}"
    assert (error.problem, error.remedy) == ("unknown key", known)


@pytest.mark.parametrize("section", ["model", "survey", "inversion", "output"])
def test_a_missing_section_is_named(path, section):
    head, _, rest = path.read_text().partition(f"[{section}]")
    _, bracket, others = rest.partition("\n[")
    path.write_text(head + bracket + others)
    error = refused(path)
    assert (error.where, error.problem) == (f"{path}: {section}", "missing")


def test_a_missing_key_is_named_with_its_meaning(path):
    path.write_text(MINIMAL.replace("batch = 2\n", ""))
    error = refused(path)
    assert (error.where, error.problem) == (f"{path}: inversion.batch", "missing")
    assert error.remedy.startswith("Add the key. batch: Shots of an epoch")


def test_all_that_a_survey_lacks_is_named_at_once(path):
    path.write_text(MINIMAL.replace("dt = 0.002\nduration = 1\n", ""))
    assert refused(path).problem == "dt, duration missing, or else file"


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"[model\n", "not valid TOML"), (b"\xff\xfe", "it is not UTF-8 text"), (b"", "missing")],
)
def test_a_file_that_is_no_config_is_refused(path, content, words):
    path.write_bytes(content)
    error = refused(path)
    assert error.where.startswith(str(path))
    assert words in error.problem


def test_a_file_that_is_not_there_is_refused(tmp_path):
    assert refused(tmp_path / "none.toml").where == str(tmp_path / "none.toml")
    assert refused(tmp_path).where == str(tmp_path / "config.toml"), "no run directory either"


def test_changed_keys_are_named_in_full_also_those_that_came_or_went(path):
    old = load_config(path)
    settings = ["model.spacing=25", "wave.history.interval=2", "inversion.optimizer.lr=5"]
    expected = [
        "inversion.optimizer.lr",
        "model.spacing",
        "wave.history",
        "wave.history.interval",
        "wave.history.kind",
    ]
    new = load_config(path, settings)
    assert list(changed_keys(old, new)) == list(changed_keys(new, old)) == expected
    assert changed_keys(old, new)["inversion.optimizer.lr"] == 25.0
    assert changed_keys(old, new)["model.spacing"] is None
    assert isinstance(new, Config)
