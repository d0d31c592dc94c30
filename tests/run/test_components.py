"""Tests of inversions of several components of the waves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import segyio

from hpcfwi.storage.models import read_model
from tests.convert.examples import read_gathers
from tests.inversion.examples import read_history
from tests.run.test_equations import COMPONENTS, INVERTED, write_elastic


def write_components(folder: Path, **changes: Any) -> Path:
    """Write the input of an elastic inversion of several components of moment tensors."""
    return write_elastic(folder, "elastic", **{**COMPONENTS, **changes})


@pytest.mark.usefixtures("no_figures")
def test_component_with_weight_0_does_not_change_the_inversion(hpcfwi: Any, tmp_path: Path) -> None:
    found = []
    for number, changes in enumerate(
        (
            {"survey.receivers.components": ["pressure", "vz"], "data.components": {"vz": 0.0}},
            {"survey.receivers.components": ["pressure"]},
        )
    ):
        folder = tmp_path / str(number)
        path = write_elastic(folder, "elastic", **changes, **{"inversion.epochs": 2})
        assert hpcfwi("run", path, "--quiet") == 0
        found.append(read_model(folder / "run" / "model.h5"))
    for name in INVERTED["elastic"]:
        np.testing.assert_allclose(found[0][name], found[1][name], rtol=1e-5)


@pytest.mark.usefixtures("no_figures")
def test_components_in_segy_of_another_program_are_inverted(hpcfwi: Any, tmp_path: Path) -> None:
    keys = {"survey.receivers.components": ["pressure", "vz", "vx"], "inversion.epochs": 1}
    path = write_elastic(tmp_path, "elastic", **keys)
    assert hpcfwi("run", path, "--quiet") == 0
    survey, traces = read_gathers(tmp_path / "run" / "observed.h5")
    n_shots, n_traces, n_samples = survey.shape
    x = 10 * np.broadcast_to(survey.receivers[:, 1], (n_shots, n_traces))
    spec = segyio.spec()
    spec.format, spec.tracecount, spec.samples = 5, n_shots * n_traces, np.arange(n_samples)
    with segyio.create(tmp_path / "line.sgy", spec) as file:
        file.bin.update({segyio.BinField.Interval: round(1e6 * survey.dt)})
        number = 0
        for shot in range(n_shots):
            # A recorder writes the components of a receiver one after the other.
            for trace in np.arange(n_traces).reshape(3, -1).T.ravel():
                file.header[number] = {
                    segyio.TraceField.FieldRecord: shot + 1,
                    segyio.TraceField.TraceNumber: number % n_traces + 1,
                    segyio.TraceField.TraceIdentificationCode: (11, 12, 14)[3 * trace // n_traces],
                    segyio.TraceField.SourceGroupScalar: -10,
                    segyio.TraceField.ElevationScalar: -10,
                    segyio.TraceField.SourceX: round(10 * survey.sources[shot, 1]),
                    segyio.TraceField.SourceDepth: round(10 * survey.sources[shot, 0]),
                    segyio.TraceField.GroupX: round(x[shot, trace]),
                    segyio.TraceField.ReceiverGroupElevation: -550,
                }
                file.trace[number] = traces[shot, trace]
                number += 1
    np.save(tmp_path / "wavelet.npy", survey.wavelet)
    command = ("convert", tmp_path / "line.sgy", tmp_path / "line.h5", "--wavelet")
    assert hpcfwi(*command, tmp_path / "wavelet.npy") == 0
    found, again = read_gathers(tmp_path / "line.h5")
    assert found.components.names == survey.components.names
    np.testing.assert_array_equal(found.components.kinds, survey.components.kinds)
    np.testing.assert_array_equal(again, traces)
    own = ("sources", "receivers", "wavelet", "dt", "duration")
    changes: dict[str, Any] = dict.fromkeys(f"survey.{key}" for key in own)
    changes |= {"survey.file": "line.h5", "output.directory": str(tmp_path / "again")}
    assert hpcfwi("run", write_elastic(tmp_path, "elastic", **keys, **changes), "--quiet") == 0
    for name in INVERTED["elastic"]:
        one, other = (read_model(tmp_path / run / "model.h5")[name] for run in ("run", "again"))
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.usefixtures("no_figures")
def test_order_of_components_does_not_matter(hpcfwi: Any, tmp_path: Path) -> None:
    names, found = ["strain", "pressure", "vz"], []
    for order in (names, names[::-1]):
        path = write_components(
            tmp_path / order[0], **{"survey.receivers.components": order, "inversion.epochs": 2}
        )
        assert hpcfwi("run", path, "--quiet") == 0
        folder = path.parent / "run"
        found.append((read_model(folder / "model.h5"), read_history(folder)))
    (one, entries), (other, _) = found
    assert entries[1]["loss"] < 0.9 * entries[0]["loss"]
    for name in INVERTED["elastic"]:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-4)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("name", ["gauss-newton", "lbfgs"])
def test_line_searches_fit_several_components_with_several_parameters(
    hpcfwi: Any, tmp_path: Path, name: str
) -> None:
    optimizer = {"name": name, "step": 60.0}
    keys = {"inversion.optimizer": optimizer, "inversion.sampling": "all", "inversion.epochs": 3}
    path = write_components(tmp_path, **keys, **{"inversion.parameters": ["vp", "vs", "rho"]})
    assert hpcfwi("run", path, "--quiet") == 0
    entries = read_history(tmp_path / "run")
    assert entries[-1]["loss"] < 0.5 * entries[0]["loss"]


def test_data_with_a_component_and_without_traces_of_it_are_drawn(
    hpcfwi: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {"survey.receivers.components": ["pressure", "vz"], "inversion.epochs": 1}
    path = write_elastic(tmp_path, "elastic", **keys)
    assert hpcfwi("run", path, "--quiet") == 0
    with (
        h5py.File(tmp_path / "run" / "observed.h5") as given,
        h5py.File(tmp_path / "line.h5", "w") as file,
    ):
        for name in given:
            given.copy(name, file)
        file.attrs.update(given.attrs)
        file["mask"] = np.ones(file["data"].shape[:2], bool)
        file["mask"][2, file["kinds"][...] == 1] = False
    own = ("sources", "receivers", "wavelet", "dt", "duration")
    changes: dict[str, Any] = dict.fromkeys(f"survey.{key}" for key in own)
    changes |= {"survey.file": "line.h5", "data.components": {"vz": 0.0}}
    changes |= {"output.directory": str(tmp_path / "again"), "output.every": 1}
    path = write_elastic(tmp_path, "elastic", **{"inversion.epochs": 1}, **changes)
    capsys.readouterr()
    assert hpcfwi("check", path) == 0
    assert "loud" not in capsys.readouterr().out.split("of all")[0]
    assert hpcfwi("run", path, "--quiet") == 0
    assert hpcfwi("show", tmp_path / "again") == 0
