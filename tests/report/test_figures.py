"""Tests of the figures of traces, wavelets and misfits."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.image import imread

from hpcfwi.errors import WriteFailure
from hpcfwi.report import figures, models, style
from hpcfwi.report.figures import (
    bin_phases,
    comparison_figure,
    fit_figure,
    take_turns,
    traces_figure,
)
from hpcfwi.survey import TimeAxis
from tests.report.examples import picture, texts_overlap, titles, volume

AXIS = TimeAxis(0.002, 0.0)


def gathers(n=3, n_receivers=30, n_samples=100):
    data = np.random.default_rng(0).standard_normal((n, n_receivers, n_samples))
    x = 1000.0 + 50.0 * np.arange(n_receivers)
    receivers = np.broadcast_to(np.stack([np.full_like(x, 450.0), x], 1), (n, n_receivers, 2))
    sources = np.stack([np.full(n, 25.0), np.linspace(1000.0, 2000.0, n)], 1)
    return data.astype(np.float32), receivers, sources, AXIS, [f"Shot {i}" for i in range(n)]


def gathers_figure(data, receivers, *others):
    return figures.gathers_figure({"pressure": [*zip(data, receivers, strict=True)]}, *others)


def ricker(frequency, dt=0.002, n=1000):
    a = (np.pi * frequency * (np.arange(n) * dt - 1.3 / frequency)) ** 2
    return ((1 - 2 * a) * np.exp(-a)).astype(np.float32)


def metrics(n, noise=0.0):
    rng = np.random.default_rng(0)
    return [
        {
            "epoch": e,
            "loss": float(np.exp(-e / 10 + noise * rng.normal())),
            "model_error": 300.0 - e,
        }
        for e in range(1, n + 1)
    ]


def test_gathers_have_time_downwards_and_receiver_positions_in_km():
    figure = gathers_figure(*gathers())
    assert titles(figure) == ["Shot 0", "Shot 1", "Shot 2"]
    first = figure.axes[0]
    assert first.get_xlabel() == "receiver position (km)"
    assert first.get_ylabel() == "time (s)"
    assert first.get_xlim() == pytest.approx((0.975, 2.475))
    assert first.get_ylim() == pytest.approx((0.199, -0.001))
    assert not texts_overlap(figure)


def test_gathers_share_a_symmetric_scale_clipped_at_the_98th_percentile():
    data, *others = gathers()
    data[0] *= 100.0
    images = [axes.images[0] for axes in gathers_figure(data, *others).axes]
    limit = np.percentile(np.abs(data), 98)
    assert [image.get_clim() for image in images] == [pytest.approx((-limit, limit))] * 3


def test_each_component_has_a_row_of_gathers_with_its_own_scale():
    data, receivers, *others = gathers()
    traces = {"pressure": data, "vz": 1e-3 * data}
    both = {name: [*zip(traces[name], receivers, strict=True)] for name in traces}
    figure = figures.gathers_figure(both, *others)
    assert titles(figure)[::3] == ["Shot 0, pressure", "Shot 0, vz"]
    above, below = (figure.axes[k].images[0].get_clim()[1] for k in (0, 3))
    assert above == pytest.approx(1e3 * below)
    assert not texts_overlap(figure)


def test_receivers_in_a_well_are_drawn_along_depth():
    data, receivers, *others = gathers(n=1)
    figure = gathers_figure(data, receivers[..., ::-1], *others)
    assert figure.axes[0].get_xlabel() == "receiver depth (km)"


def test_receivers_in_an_area_are_drawn_as_the_line_nearest_to_the_source():
    y, x = (along.ravel() for along in np.indices((4, 30)) * 50.0)
    places = np.stack([np.zeros_like(x), y, x], axis=1)
    data = np.broadcast_to((y / 50.0 + x / 1e6)[:, None], (120, 10))
    order = np.random.default_rng(0).permutation(120)
    source = np.array([[0.0, 110.0, 700.0]])
    figure = gathers_figure(data[order][None], places[order][None], source, AXIS, ["Shot"])
    axes = figure.axes[0]
    assert titles(figure) == ["Shot, y = 0.10 km"]
    assert axes.get_xlabel() == "receiver x (km)"
    np.testing.assert_allclose(axes.images[0].get_array()[0], 2.0 + 50e-6 * np.arange(30))
    assert not texts_overlap(figure)


def test_gather_of_one_receiver_is_drawn(tmp_path):
    data, *others = gathers(n=1, n_receivers=1)
    figure = gathers_figure(data, *others)
    style.save(figure, tmp_path / "one.png")
    assert imread(tmp_path / "one.png").size > 0
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), data[0].T)
    left, right = figure.axes[0].get_xlim()
    assert left < 1.0 < right, "the position of the receiver, km"


@pytest.mark.parametrize("frequency", [5.0, 20.0])
def test_wavelet_figure_names_the_peak_and_omits_silence(frequency):
    figure = figures.wavelet_figure(ricker(frequency), AXIS)
    in_time, in_frequency = figure.axes
    assert f"peak at {frequency:g} Hz" in titles(figure)[1]
    assert in_time.get_xlabel() == "time (s)"
    assert in_frequency.get_xlabel() == "frequency (Hz)"
    assert 2.0 / frequency < in_time.get_xlim()[1] < 4.0 / frequency
    assert 2.5 * frequency < in_frequency.get_xlim()[1] < 5.0 * frequency
    assert not texts_overlap(figure)


def test_wavelets_of_shots_are_an_image_that_masks_unknown_ones():
    wavelets = np.stack([ricker(4.0), 0.5 * ricker(6.0), np.zeros(1000, np.float32)])
    figure = figures.wavelets_figure(wavelets, TimeAxis(0.002, -0.1))
    in_time, in_frequency = figure.axes[:2]
    assert titles(figure) == [
        "Source wavelets (blue: unknown)",
        "Amplitude spectrum, peak at 4.06 Hz",
    ]
    shown = in_time.images[0].get_array()
    np.testing.assert_array_equal(np.ma.getmaskarray(shown)[0], [False, False, True])
    np.testing.assert_array_equal(shown[:, 1], wavelets[1])
    later, earlier = in_time.get_ylim()
    assert (earlier, later) == pytest.approx((-0.101, 0.76), abs=0.01)
    assert in_frequency.get_xlim()[1] < 25.0
    assert not texts_overlap(figure)
    assert titles(figures.wavelets_figure(wavelets[:2], AXIS))[0] == "Source wavelets"


def test_silent_wavelet_is_drawn(tmp_path):
    figure = figures.wavelet_figure(np.zeros(100, np.float32), AXIS)
    style.save(figure, tmp_path / "silence.png")
    assert imread(tmp_path / "silence.png").size > 0
    in_time, in_frequency = figure.axes
    np.testing.assert_array_equal(in_time.lines[1].get_ydata(), np.zeros(100))
    assert in_time.get_xlim() == pytest.approx((0.0, 0.198)), "the whole time axis"
    assert in_frequency.get_xlim() == pytest.approx((0.0, 250.0)), "up to the Nyquist frequency"


def test_misfit_over_more_than_a_decade_has_a_logarithmic_axis():
    assert figures.loss_figure(metrics(60)).axes[0].get_yscale() == "log"
    assert figures.loss_figure(metrics(10)).axes[0].get_yscale() == "linear"


def test_numbers_on_a_logarithmic_axis_have_one_font_size():
    axes = figures.loss_figure(metrics(60)).axes[0]
    sizes = {text.get_fontsize() for text in axes.get_yticklabels(which="both")}
    assert sizes == {style.SMALL}


def test_axis_of_a_single_epoch_has_one_whole_number():
    axes = figures.loss_figure([{"epoch": 1, "loss": 2e-3}]).axes[0]
    first, last = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if first <= tick <= last] == [1.0]


def test_noisy_misfit_is_drawn_with_its_running_median():
    raw, median = figures.loss_figure(metrics(60, noise=0.5)).axes[0].lines
    assert raw.get_linewidth() < median.get_linewidth()
    roughness = [np.abs(np.diff(np.log(line.get_ydata()))).sum() for line in (raw, median)]
    assert roughness[1] < 0.5 * roughness[0]


def test_known_model_error_has_its_own_panel():
    figure = figures.loss_figure(metrics(5))
    assert [axes.get_ylabel() for axes in figure.axes] == ["misfit", "RMS error (m/s)"]
    unknown = [{"epoch": 1, "loss": 1.0}, {"epoch": 2, "loss": None, "model_error": None}]
    assert len(figures.loss_figure(unknown).axes) == 1
    assert not texts_overlap(figure)


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (figures.wavelet_figure, (ricker(5.0), AXIS)),
        (gathers_figure, gathers()),
        (figures.loss_figure, (metrics(60),)),
        (figures.loss_figure, ([],)),
        (models.epoch_figure, (picture(),)),
        (models.epoch_figure, (volume(),)),
    ],
)
def test_every_figure_is_a_png_large_enough_to_print(tmp_path, make, arguments):
    path = tmp_path / "läufe mit Leerzeichen" / "figure.png"
    path.parent.mkdir()
    style.save(make(*arguments), path)
    height, width, _ = imread(path).shape
    assert 700 <= width <= 2000
    assert 400 <= height <= 2000
    assert list(path.parent.iterdir()) == [path]


def test_failed_figure_leaves_only_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "loss.png"
    style.save(figures.loss_figure(metrics(3)), path)
    before = path.read_bytes()

    def fail_half_way(_figure, file, **_):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("matplotlib.backends.backend_agg.FigureCanvasAgg.print_png", fail_half_way)
    with pytest.raises(WriteFailure, match="disk full"):
        style.save(figures.loss_figure(metrics(4)), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_figures_need_no_display_and_no_pyplot(tmp_path):
    program = (
        "import sys; from pathlib import Path; from hpcfwi.report import figures, style;"
        "figure = figures.loss_figure([{'epoch': 1, 'loss': 1.0}]);"
        "style.save(figure, Path(sys.argv[1]));"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    environment = {**os.environ, "DISPLAY": "nowhere:9", "MPLBACKEND": "tkagg"}
    command = [sys.executable, "-c", program, str(tmp_path / "a.png")]
    subprocess.run(command, env=environment, check=True)
    assert (tmp_path / "a.png").exists()


def test_incomparable_losses_of_stages_are_drawn_relative_to_their_first():
    first, second = metrics(5), metrics(5)
    for number, (name, part) in enumerate((("low", first), ("high", second))):
        for entry in part:
            entry |= {"stage": name, "epoch": entry["epoch"] + 5 * number}
            entry["loss"] *= 1e-6 if number else 1.0
    figure = figures.loss_figure([*first, *second], {"vp": 300.0}, False)
    one, other = (line.get_ydata() for line in figure.axes[0].lines[:2])
    assert one[0] == other[0] == 1.0
    np.testing.assert_allclose(one, other)
    assert figure.axes[0].get_ylabel() == "misfit / first of its stage"
    assert titles(figure)[0] == "Misfit, stage by stage"
    assert not texts_overlap(figure)
    whole = figures.loss_figure([*first, *second])
    assert whole.axes[0].lines[1].get_ydata()[0] < 1e-5


def test_each_parameter_has_a_panel_of_its_error_from_the_start_on():
    entries = [{**entry, "model_error_rho": 2.0 * entry["model_error"]} for entry in metrics(5)]
    figure = figures.loss_figure(entries, {"vp": 300.0, "rho": 700.0})
    assert titles(figure) == ["Misfit", "Model error, vp", "Model error, rho"]
    assert [axes.get_ylabel() for axes in figure.axes[1:]] == [
        "RMS error (m/s)",
        "RMS error (kg/m3)",
    ]
    vp, rho = (axes.lines[0].get_ydata() for axes in figure.axes[1:])
    assert (vp[0], rho[0]) == (300.0, 700.0)
    np.testing.assert_allclose(rho[1:], 2.0 * vp[1:])
    assert not texts_overlap(figure)


def test_estimated_wavelet_is_drawn_with_the_scaled_one_of_the_survey():
    figure = figures.wavelet_figure(1e4 * ricker(4.0), TimeAxis(0.002, -0.2), ricker(5.0))
    given, found = figure.axes[0].lines[1:]
    assert given.get_label() == "of the survey, times 10000"
    assert found.get_label() == "estimated"
    assert given.get_ydata().max() == pytest.approx(found.get_ydata().max(), rel=1e-3)
    assert found.get_xdata()[0] == -0.2
    assert figure.axes[0].get_xlim()[0] == -0.2
    assert "peak at 4 Hz" in titles(figure)[1]
    assert len(figure.axes[1].lines) == 3
    each = figures.wavelets_figure(np.stack([ricker(4.0)] * 3), AXIS, ricker(5.0))
    assert len(each.axes[1].lines) == 3


@pytest.mark.parametrize("shots", [1, 3])
def test_each_shot_has_panels_of_observed_interleaved_and_residual_traces(shots):
    generator = np.random.default_rng(0)
    offsets = np.linspace(-1000.0, 2000.0, 31)
    observed, simulated = generator.normal(size=(2, 31, 200)).astype(np.float32)
    gathers = [(f"Shot {7 + k}", offsets, observed, simulated) for k in range(shots)]
    figure = traces_figure(gathers, TimeAxis(0.004, -0.4), 20)
    assert not texts_overlap(figure)
    assert titles(figure)[:3] == [
        "Shot 7, observed",
        "interleaved, red: simulated",
        "observed - simulated, epoch 20",
    ]
    left, middle, right = (axes.images[0] for axes in figure.axes[:3])
    turns = take_turns(offsets, 12)
    np.testing.assert_array_equal(left.get_array(), observed.T)
    np.testing.assert_array_equal(middle.get_array()[:, turns], simulated[turns].T)
    np.testing.assert_array_equal(middle.get_array()[:, ~turns], observed[~turns].T)
    np.testing.assert_array_equal(right.get_array(), (observed - simulated).T)
    assert left.get_clim() == middle.get_clim() == right.get_clim(), "one scale"
    assert left.get_extent()[2:] == pytest.approx((-0.4 + 199.5 * 0.004, -0.402))


@pytest.mark.parametrize("groups", [1, 4, 12])
def test_interleaved_traces_alternate_in_groups_of_equal_size(groups):
    places = np.random.default_rng(0).permutation(60).astype(float)
    turns = take_turns(places, groups)[np.argsort(places)]
    ends = np.flatnonzero(np.diff(turns)) + 1
    assert [part.size for part in np.split(turns, ends)] == [60 // groups] * groups
    assert not turns[0]


def test_phases_in_a_bin_of_offsets_are_averaged_on_the_circle():
    offsets, phases = np.array([1.0, 2.0, 11.0, 12.0, 40.0]), np.array([170, -170, 10, 30, np.nan])
    found = bin_phases(offsets, phases, np.linspace(0.0, 40.0, 5))
    assert np.abs(found[0]) == pytest.approx(180.0)
    assert found[1] == pytest.approx(20.0)
    assert np.isnan(found[2:]).all()


def shot(number, misfit=1e-4, traces=20, phase=30.0):
    offsets = np.linspace(-500.0, 1500.0, traces) - 50.0 * number
    return number, misfit, offsets, np.full(traces, phase)


def test_fit_figure_shows_phases_misfits_and_spectra():
    frequencies = np.linspace(0.0, 25.0, 51)
    observed = np.exp(-((frequencies - 8.0) ** 2) / 8.0)
    shots = [shot(3), shot(5, np.nan, phase=np.nan), shot(250, 3e-4)]
    figure = fit_figure(shots, 8.0, (frequencies, observed, 0.4 * observed), 20)
    assert not texts_overlap(figure)
    phases, misfits, _, ratio = figure.axes
    image = phases.images[0].get_array()
    assert np.ma.masked_invalid(image[:, 1]).mask.all()
    assert set(np.round(image[:, 0][np.isfinite(image[:, 0])], 9)) == {30.0}
    assert [text.get_text() for text in misfits.get_xticklabels()] == ["3", "5", "250"]
    found = ratio.lines[1].get_ydata()
    np.testing.assert_allclose(found[np.isfinite(found)], 0.4)
    assert np.isfinite(found).sum() < found.size, "only where the spectrum has energy"


def test_fit_of_silent_shots_and_shots_without_traces_is_drawn():
    nothing = np.zeros(11)
    spectra = np.linspace(0.0, 50.0, 11), nothing, nothing
    figure = fit_figure([shot(0, traces=0), shot(1, phase=np.nan)], 8.0, spectra, 1)
    figure.canvas.draw()
    phases, misfits, amplitudes, ratio = figure.axes
    assert np.ma.getmaskarray(np.ma.masked_invalid(phases.images[0].get_array())).all()
    assert [text.get_text() for text in misfits.get_xticklabels()] == ["0", "1"]
    assert [line.get_ydata().tolist() for line in amplitudes.lines] == [[0.0] * 11] * 2
    assert np.isnan(ratio.lines[1].get_ydata()).all()
    empty = np.zeros((0, 20), np.float32)
    figure = traces_figure([("Shot 0", np.zeros(0), empty, empty)], TimeAxis(0.01, 0.0), 1)
    figure.canvas.draw()
    assert titles(figure)[0] == "Shot 0, observed"
    assert not any(axes.images for axes in figure.axes)


@pytest.mark.parametrize("shots", [1, 3])
@pytest.mark.parametrize("ratio", [1.1, 1e4])
def test_comparison_has_a_row_per_shot_and_a_panel_of_first_arrivals(shots, ratio):
    generator = np.random.default_rng(0)
    offsets = np.linspace(-1000.0, 2000.0, 31)
    observed, simulated = generator.normal(size=(2, 31, 200)).astype(np.float32)
    observed[3] = np.nan
    gathers = [(f"Shot {k}", offsets, observed, simulated, np.zeros((0, 31))) for k in range(shots)]
    lags = np.linspace(-0.2, 0.3, 31)
    figure = comparison_figure(gathers, TimeAxis(0.004, -0.4), ratio, np.abs(offsets), lags, 0.125)
    figure.canvas.draw()
    *images, below = figure.axes
    titles = [axes.get_title(loc="left") for axes in images]
    assert len(images) == 3 * shots
    assert titles[0] == "Shot 0, observed"
    assert titles[1] == ("simulated" if ratio < 2.0 else "simulated, times 10000")
    drawn = [axes.images[0] for axes in images]
    begin, end = -0.4 - 0.002, -0.4 + 199.5 * 0.004
    for axes in images:
        assert axes.get_ylim() == pytest.approx((end, begin))
    assert {image.get_clim() for image in drawn[:3]} == {drawn[0].get_clim()}, "one scale"
    good, skipped = (line.get_ydata() for line in below.lines[1:])
    assert np.abs(good).max() <= 62.5 < np.abs(skipped).min(), (
        "more than half a period, in ms, is marked"
    )


def test_comparison_of_silent_traces_is_drawn():
    silent, none = np.zeros((5, 20), np.float32), np.array([])
    figure = comparison_figure(
        [("Shot 0", np.arange(5.0), silent, silent, np.zeros((0, 5)))],
        TimeAxis(0.01, 0.0),
        0.0,
        none,
        none,
        0.1,
    )
    figure.canvas.draw()
    assert figure.axes[1].get_title(loc="left") == "simulated"


@pytest.mark.parametrize(("ratio", "told"), [(-1.0, ", times -1"), (-30.0, ", times -30")])
def test_simulated_traces_are_scaled_by_the_factor_in_the_title(ratio, told):
    simulated = np.random.default_rng(0).normal(size=(5, 20)).astype(np.float32)
    gathers = [("Shot 0", np.arange(5.0), ratio * simulated, simulated, np.zeros((0, 5)))]
    none = np.array([])
    figure = comparison_figure(gathers, TimeAxis(0.01, 0.0), ratio, none, none, 0.1)
    observed, scaled, difference, _ = figure.axes
    assert scaled.get_title(loc="left") == f"simulated{told}"
    np.testing.assert_allclose(scaled.images[0].get_array(), observed.images[0].get_array())
    np.testing.assert_allclose(difference.images[0].get_array(), 0.0, atol=1e-5)


def test_picks_are_marked_at_their_offsets_and_times():
    traces, picks = np.ones((3, 20), np.float32), np.array([[0.05, np.nan, 0.1]])
    gathers = [("Shot 0", np.array([-1000.0, 0.0, 500.0]), traces, traces, picks)]
    none = np.array([])
    figure = comparison_figure(gathers, TimeAxis(0.01, 0.0), 1.0, none, none, 0.1)
    for axes in figure.axes[:3]:
        (line,) = axes.lines
        np.testing.assert_array_equal(line.get_xdata(), [-1.0, 0.0, 0.5])
        np.testing.assert_array_equal(line.get_ydata(), picks[0])
