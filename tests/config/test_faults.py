"""Errors in an input file are reported with the file, the key and the remedy."""

from __future__ import annotations

import pytest

from hpcfwi.config import load_config
from hpcfwi.errors import InputError
from tests.config.examples import MINIMAL


def refused(path, *settings):
    with pytest.raises(InputError) as error:
        load_config(path, settings)
    return error.value


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
        ("survey.sources.count=[4]", "survey.sources.count", "found [4], expected more values"),
        ("survey.sources.count=[1, 2, 3]", "survey.sources.count", "at most 2 items"),
        ("survey.sources.first=[0.0, nan]", "survey.sources.first.1", "finite"),
        ("survey.sources.first=[0.0, 1.0]", "survey.sources", "count is a number and first a pair"),
        ("survey.receivers.offset=100.0", "survey.receivers", "spacing missing"),
        ("survey.receivers.spacing=25.0", "survey.receivers", "offset missing"),
        (
            "survey.receivers={ count = 3, depth = 8.0, offset = 0.0, spacing = 0.0 }",
            "survey.receivers",
            "spacing is 0; expected another number",
        ),
        (
            "survey.receivers={ count = 3, depth = 8.0, offset = 0.0, spacing = 5.0, last = 9.0 }",
            "survey.receivers",
            "last is for receivers that are the same for all shots",
        ),
        (
            "survey.receivers={ count = [1, 3], depth = 8.0, offset = 0.0, spacing = 5.0 }",
            "survey.receivers",
            "count is a pair; expected a number of receivers that move",
        ),
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
        ("inversion.optimizer.betas=[0.9, 1.0]", "inversion.optimizer.betas.1", "less than 1"),
        ("inversion.fixed={ }", "inversion.fixed", "exactly one of file and above_velocity"),
        ("inversion.bounds=[3000, 1500]", "inversion", "smaller one first"),
        ("inversion.bounds=[0, 1500]", "inversion", "expected values from 1 to 100000 m/s"),
        ("inversion.parametrization=slowness", "inversion.parametrization", "expected 'velocity'"),
        ("inversion.bounds={vs=[0, 1500]}", "inversion", "bounds has vs; expected only names"),
        ("inversion.scale={rho=50.0}", "inversion", "scale has rho; expected only names"),
        ("inversion.tied={vp='ratio'}", "inversion.tied.vp", "unknown key"),
        ("inversion.tied={vs='gardner'}", "inversion.tied.vs", "expected 'ratio'"),
        ("inversion.bounds=[1500]", "inversion.bounds", "expected more values"),
        ("output.every=0", "output.every", "greater than 0"),
        ("model=3", "--set model=3", "not a setting"),
        ("=3", "--set =3", "not a setting"),
        ("model.=3", "--set model.=3", "not a setting"),
    ],
)
def test_invalid_value_is_refused_with_its_key(path, setting, where, words):
    error = refused(path, setting)
    assert error.where in (where, f"{path}: {where}")
    assert words in error.problem
    assert error.remedy.endswith(".")
    assert "\n" not in str(error)


def test_name_of_optimizer_can_be_replaced(path):
    config = load_config(path, ["inversion.optimizer.name=sgd"])
    assert config.inversion.optimizer.name == "sgd"


def test_fixed_and_fixed_above_exclude_each_other(path):
    error = refused(path, "inversion.fixed_above=9", "inversion.fixed.above_velocity=1600")
    assert error.where == f"{path}: inversion"
    assert "fixed and fixed_above exclude each other" in error.problem


@pytest.mark.parametrize("names", [("low", "low"), ("2", None)])
def test_stages_of_the_same_name_are_refused(path, names):
    with path.open("a") as file:
        for name in names:
            file.write("[[stage]]\n" + (f'name = "{name}"\n' if name else ""))
    assert f"two stages have the name '{names[0]}'" in refused(path).problem


@pytest.mark.parametrize(
    ("key", "known"),
    [
        (
            "extra",
            "The file has the keys data, inversion, migration, model, output, stage, survey, wave.",
        ),
        ("model.extra", "model has the keys dataset, file, initial, network, spacing, true."),
        ("survey.wavelet.extra", "survey.wavelet has the keys delay, frequency, kind."),
        (
            "model.initial.extra",
            "model.initial has the keys file, linear, qp, qs, rho, run, smooth, smooth_slowness, "
            "vs.",
        ),
        ("wave.history.extra", "wave.history has the keys format, interval, kind, states."),
    ],
)
def test_unknown_key_is_refused_with_known_keys(path, key, known):
    error = refused(path, f"{key}.x=1" if "." not in key else f"{key}=1")
    assert error.where == f"{path}: {key}"
    assert (error.problem, error.remedy) == ("unknown key", known)


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("epochs", "inversion.epoch"),
        ("[inversion]", "Inversion"),
        ("lr", "inversion.optimizer.learning_rate"),
    ],
)
def test_misspelt_key_is_refused_as_unknown_rather_than_missing(path, key, other):
    text = path.read_text()
    assert text.count(key) == 1
    name = other.rpartition(".")[2]
    path.write_text(text.replace(key, f"[{name}]" if key.startswith("[") else name))
    error = refused(path)
    assert (error.where, error.problem) == (f"{path}: {other}", "unknown key")


def test_unknown_key_of_a_method_is_refused_with_keys_common_to_all_methods(path):
    method = 'inversion.regularize={ name = "tikhonov", weight = 1.0 }'
    error = refused(path, method, "inversion.regularize.extra=1")
    assert error.where == f"{path}: inversion.regularize.extra"
    assert error.remedy == "inversion.regularize has the keys prior, weight, weights."


@pytest.mark.parametrize("section", ["model", "survey", "inversion", "output"])
def test_missing_section_is_named(path, section):
    head, _, rest = path.read_text().partition(f"[{section}]")
    _, bracket, others = rest.partition("\n[")
    path.write_text(head + bracket + others)
    error = refused(path)
    assert (error.where, error.problem) == (f"{path}: {section}", "missing")


def test_missing_key_is_named_with_its_description(path):
    path.write_text(MINIMAL.replace("epochs = 3\n", ""))
    error = refused(path)
    assert (error.where, error.problem) == (f"{path}: inversion.epochs", "missing")
    assert error.remedy.startswith("Add the key. epochs: Number of updates of the model.")


def test_batch_is_required_unless_all_shots_are_sampled(path):
    path.write_text(MINIMAL.replace("batch = 2\n", ""))
    error = refused(path)
    assert (error.where, error.problem) == (
        f"{path}: inversion",
        "batch is missing; expected the number of shots of an epoch",
    )


def test_all_missing_keys_of_a_survey_are_named_at_once(path):
    path.write_text(MINIMAL.replace("dt = 0.002\nduration = 1\n", ""))
    assert refused(path).problem == "dt, duration missing; expected all of them, or file"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[model\n", "not valid TOML"),
        (b"[model]\n[model]\n", "twice (at line 2, column 7)). Write the keys"),
        (b"[stage]\n[stage]\n", "have two brackets: [[stage]]"),
        (b"\xff\xfe", "it is not UTF-8 text"),
        (b"", "missing"),
    ],
)
def test_file_that_is_not_a_config_is_refused(path, content, words):
    path.write_bytes(content)
    error = refused(path)
    assert error.where.startswith(str(path))
    assert words in str(error)


def test_missing_file_is_refused(tmp_path):
    assert refused(tmp_path / "none.toml").where == str(tmp_path / "none.toml")
    assert refused(tmp_path).where == str(tmp_path / "config.toml"), "not a run directory either"
