import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.image import imread

from hpcfwi.model import Grid
from hpcfwi.report import figures
from hpcfwi.report.figures import EpochPicture


def picture(shape=(15, 68), spacing=(25.0, 25.0), origin=(0.0, 0.0), **changes):
    grid = Grid(shape, spacing, origin)
    rng = np.random.default_rng(0)
    depth = np.arange(shape[0])[:, None] + np.zeros(shape)
    true = (1500.0 + 100.0 * depth).astype(np.float32)
    made = EpochPicture(
        epoch=20,
        grid=grid,
        true=true,
        inverted=true + 50.0,
        gradient=rng.standard_normal(shape).astype(np.float32),
        source_illumination=np.exp(-depth).astype(np.float32),
        receiver_illumination=np.zeros(shape, np.float32),
        sources=np.array([[origin[0], origin[1] + 4 * spacing[1]]]),
        receivers=np.stack(
            [np.full(60, origin[0]), np.linspace(origin[1], grid.last[1], 60)], axis=1
        ),
    )
    return dataclasses.replace(made, **changes)


def gathers(n=3, n_receivers=30, n_samples=100):
    data = np.random.default_rng(0).standard_normal((n, n_receivers, n_samples))
    x = 1000.0 + 50.0 * np.arange(n_receivers)
    receivers = np.broadcast_to(np.stack([np.full_like(x, 450.0), x], 1), (n, n_receivers, 2))
    sources = np.stack([np.full(n, 25.0), np.linspace(1000.0, 2000.0, n)], 1)
    return data.astype(np.float32), receivers, sources, 0.002, [f"Shot {i}" for i in range(n)]


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


def titles(figure):
    return [axes.get_title(loc="left") for axes in figure.axes]


def texts_overlap(figure):
    """Whether titles or axis names cover one another or leave the figure."""
    figure.canvas.draw()
    boxes = []
    for axes in [one for place in figure.axes for one in (place, *place.child_axes)]:
        for text in (axes.xaxis.label, axes.yaxis.label, axes._left_title):
            if text.get_text() and axes.get_visible():
                boxes.append(text.get_window_extent())
    inside = figure.bbox.padded(2)
    clashes = [a for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)]
    outside = [b for b in boxes if not (inside.contains(*b.min) and inside.contains(*b.max))]
    return bool(clashes or outside)


SHAPES = {
    "wide": {"shape": (15, 68)},
    "square": {"shape": (40, 40)},
    "small": {"shape": (3, 5), "spacing": (10.0, 10.0)},
    "tall": {"shape": (60, 10)},
    "very wide": {"shape": (5, 400)},
    "with an origin": {"shape": (30, 50), "origin": (300.0, 5000.0)},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_an_epoch_has_five_panels_in_km_with_depth_downwards_and_no_overlap(shape):
    made = picture(**shape)
    figure = figures.epoch_figure(made)
    assert titles(figure) == [
        "True model",
        "Inverted model, epoch 20",
        "Gradient, clipped at 99 %",
        "Source illumination",
        "Receiver illumination",
    ]
    (top, left), (bottom, right) = made.grid.origin, made.grid.last
    half = 0.5 * made.grid.spacing[0]
    for axes in figure.axes:
        assert axes.get_ylim() == pytest.approx([(bottom + half) / 1e3, (top - half) / 1e3])
        assert axes.get_xlim() == pytest.approx([(left - half) / 1e3, (right + half) / 1e3])
    assert figure.axes[0].get_ylabel() == "depth (km)"
    assert figure.axes[4].get_xlabel() == "x (km)"
    assert not texts_overlap(figure)


def test_both_models_have_the_true_ones_colour_scale_in_km_per_s():
    made = picture()
    true, inverted = (axes.images[0] for axes in figures.epoch_figure(made).axes[:2])
    assert true.get_clim() == inverted.get_clim() == pytest.approx((1.5, 2.9))
    assert true.colorbar.ax.get_ylabel() == "P velocity (km/s)"
    assert (true.colorbar.extend, inverted.colorbar.extend) == ("neither", "max")


def test_the_gradient_is_symmetric_about_zero_and_clipped():
    image = figures.epoch_figure(picture()).axes[2].images[0]
    low, high = image.get_clim()
    assert low == -high
    assert high == pytest.approx(np.percentile(np.abs(picture().gradient), 99))
    assert image.colorbar.extend == "both"


def test_illumination_is_in_decibels_down_to_60():
    image = figures.epoch_figure(picture()).axes[3].images[0]
    assert image.get_clim() == (-60.0, 0.0)
    assert image.get_array().max() == 0.0
    assert image.get_array()[1, 0] == pytest.approx(-10.0 / np.log(10.0))


def test_the_starting_model_stands_in_for_an_unknown_true_one():
    made = picture(true=None, start=np.full((15, 68), 2000.0, np.float32))
    figure = figures.epoch_figure(made)
    start, inverted = (axes.images[0] for axes in figure.axes[:2])
    assert titles(figure)[0] == "Starting model"
    assert start.get_clim() == inverted.get_clim() == pytest.approx((1.55, 2.95))


def test_a_panel_says_that_the_true_model_is_not_known():
    axes = figures.epoch_figure(picture(true=None)).axes[0]
    assert "not known" in [text.get_text() for text in axes.texts]


def test_sources_and_receivers_are_marked_and_counted():
    figure = figures.epoch_figure(picture(origin=(0.0, 5000.0)))
    receivers, sources = figure.axes[0].lines
    assert (sources.get_xdata(), sources.get_ydata()) == (pytest.approx([5.1]), [0.0])
    assert len(receivers.get_xdata()) == 30
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["60 receivers", "1 source"]
    assert not figures.epoch_figure(picture(sources=None, receivers=None)).legends


VOLUMES = {
    "long": {"shape": (10, 12, 60)},
    "tall": {"shape": (40, 9, 8)},
    "flat, with an origin": {
        "shape": (8, 19, 20),
        "spacing": (10.0, 25.0, 25.0),
        "origin": (300.0, 5000.0, 9000.0),
    },
}


def volume(shape=(8, 16, 16), spacing=(25.0, 25.0, 25.0), origin=(0.0, 0.0, 0.0), **changes):
    """A picture of layers with a block in them: at a third of y and x, half way down."""
    grid = Grid(shape, spacing, origin)
    nz, ny, nx = shape
    true = 1500.0 + 10.0 * np.arange(nz)[:, None, None] + np.zeros(shape)
    true[nz // 2, ny // 3, nx // 3] = 3000.0
    made = EpochPicture(
        epoch=20,
        grid=grid,
        true=true.astype(np.float32),
        inverted=(true + 50.0).astype(np.float32),
        gradient=np.random.default_rng(0).standard_normal(shape).astype(np.float32),
        source_illumination=np.ones(shape, np.float32),
        receiver_illumination=np.zeros(shape, np.float32),
        sources=np.array([origin]),
        receivers=np.linspace(origin, grid.last, 100),
    )
    return dataclasses.replace(made, **changes)


def slices(panel):
    """The map, the inline and the crossline section of a panel."""
    return panel.child_axes


@pytest.mark.parametrize("shape", VOLUMES.values(), ids=VOLUMES)
def test_a_volume_has_three_slices_a_panel_in_km_with_no_overlap(shape):
    made = volume(**shape)
    figure = figures.epoch_figure(made)
    assert titles(figure) == [
        "True model",
        "Inverted model, epoch 20",
        "Gradient, clipped at 99 %",
        "Source illumination, 1 source",
        "Receiver illumination, 100 receivers",
    ]
    half = 0.5 * np.array(made.grid.spacing)
    (top, front, left), (bottom, back, right) = (
        np.array([made.grid.origin - half, made.grid.last + half]) / 1e3
    )
    for panel in figure.axes:
        limits = [axes.get_xlim() + axes.get_ylim() for axes in slices(panel)]
        assert limits[0] == pytest.approx((left, right, front, back))
        assert limits[1] == pytest.approx((left, right, bottom, top))
        assert limits[2] == pytest.approx((front, back, bottom, top))
    map_, inline, crossline = slices(figure.axes[4])
    assert (map_.get_ylabel(), inline.get_ylabel()) == ("y (km)", "depth (km)")
    assert (inline.get_xlabel(), crossline.get_xlabel()) == ("x (km)", "y (km)")
    assert not texts_overlap(figure)


def test_slices_show_the_block_where_it_is_and_are_marked_in_one_another():
    made = volume()
    cut = (4, 5, 5)
    shown = slices(figures.epoch_figure(made).axes[0])
    for axes, axis in zip(shown, range(3), strict=True):
        image = axes.images[0].get_array()
        np.testing.assert_allclose(image, made.true.take(cut[axis], axis) / 1e3, rtol=1e-6)
        # Where the image has the block, the lines cross
        row, column = np.argwhere(image == image.max())[0]
        down, across = axes.lines
        assert down.get_xdata()[0] == pytest.approx(0.025 * column)
        assert across.get_ydata()[0] == pytest.approx(0.025 * row)
        assert image.shape == (16, 16) if axis == 0 else (8, 16)
    said = [axes.texts[0].get_text() for axes in shown]
    assert said == ["depth 0.10 km", "y 0.12 km", "x 0.12 km"]


def test_both_volumes_have_the_true_ones_colour_scale_and_a_bar_beside_the_map():
    for panel in figures.epoch_figure(volume()).axes[:2]:
        assert {axes.images[0].get_clim() for axes in slices(panel)} == {(1.5, 3.0)}
        bar = slices(panel)[0].images[0].colorbar
        assert bar.ax.get_ylabel() == "P velocity (km/s)"


def test_sources_and_receivers_are_marked_on_the_maps_of_what_they_illuminate():
    figure = figures.epoch_figure(volume())
    marks = [len(slices(panel)[0].lines) - 2 for panel in figure.axes]
    assert marks == [0, 0, 0, 1, 1]
    unmarked = figures.epoch_figure(volume(sources=None, receivers=None))
    assert titles(unmarked)[3:] == ["Source illumination", "Receiver illumination"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("far", [0.0, 1e5])
def test_positions_that_no_grid_has_do_not_stretch_a_figure(far):
    inside, outside = np.array([[0.0, 100.0]]), np.array([[far, 1e5]])
    for sources in (outside, np.concatenate([inside, outside])):
        figure = figures.epoch_figure(picture(sources=sources))
        figure.draw_without_rendering()
        _, stars = figure.axes[0].lines
        assert len(stars.get_xdata()) == len(sources) - 1
    for sources in ([[far, 1e5, 0.0]], [[0.0, 50.0, 50.0], [far, 0.0, 1e5]]):
        figures.epoch_figure(volume(sources=np.array(sources))).draw_without_rendering()


def test_an_empty_or_broken_volume_can_still_be_drawn():
    nothing = np.full((8, 16, 16), np.nan, np.float32)
    made = volume(true=None, inverted=nothing, gradient=nothing, source_illumination=nothing)
    figure = figures.epoch_figure(made)
    assert "not known" in [text.get_text() for text in slices(figure.axes[0])[0].texts]
    figure.canvas.draw()


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_an_empty_or_broken_epoch_can_still_be_drawn(value):
    nothing = np.full((15, 68), value, np.float32)
    made = picture(gradient=nothing, inverted=nothing, source_illumination=nothing)
    figures.epoch_figure(made).canvas.draw()


def test_gathers_have_time_downwards_and_receiver_positions_in_km():
    figure = figures.gathers_figure(*gathers())
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
    images = [axes.images[0] for axes in figures.gathers_figure(data, *others).axes]
    limit = np.percentile(np.abs(data), 98)
    assert [image.get_clim() for image in images] == [pytest.approx((-limit, limit))] * 3


def test_receivers_in_a_well_are_drawn_along_depth():
    data, receivers, *others = gathers(n=1)
    figure = figures.gathers_figure(data, receivers[..., ::-1], *others)
    assert figure.axes[0].get_xlabel() == "receiver depth (km)"


def test_of_receivers_in_an_area_the_line_next_to_the_source_is_drawn_in_order():
    y, x = (along.ravel() for along in np.indices((4, 30)) * 50.0)
    places = np.stack([np.zeros_like(x), y, x], axis=1)
    data = np.broadcast_to((y / 50.0 + x / 1e6)[:, None], (120, 10))
    order = np.random.default_rng(0).permutation(120)
    source = np.array([[0.0, 110.0, 700.0]])
    figure = figures.gathers_figure(data[order][None], places[order][None], source, 0.002, ["Shot"])
    axes = figure.axes[0]
    assert titles(figure) == ["Shot, y = 0.10 km"]
    assert axes.get_xlabel() == "receiver x (km)"
    np.testing.assert_allclose(axes.images[0].get_array()[0], 2.0 + 50e-6 * np.arange(30))
    assert not texts_overlap(figure)


def test_a_gather_of_one_receiver_can_be_drawn(tmp_path):
    figures.draw_gathers(tmp_path / "one.png", *gathers(n=1, n_receivers=1))


@pytest.mark.parametrize("frequency", [5.0, 20.0])
def test_the_wavelet_figure_names_the_peak_and_ends_where_nothing_is_left(frequency):
    figure = figures.wavelet_figure(ricker(frequency), 0.002)
    in_time, in_frequency = figure.axes
    assert f"peak at {frequency:g} Hz" in titles(figure)[1]
    assert in_time.get_xlabel() == "time (s)"
    assert in_frequency.get_xlabel() == "frequency (Hz)"
    assert 2.0 / frequency < in_time.get_xlim()[1] < 4.0 / frequency
    assert 2.5 * frequency < in_frequency.get_xlim()[1] < 5.0 * frequency
    assert not texts_overlap(figure)


def test_a_silent_wavelet_can_be_drawn(tmp_path):
    figures.draw_wavelet(tmp_path / "silence.png", np.zeros(100, np.float32), 0.002)


def test_a_misfit_over_more_than_a_decade_has_a_logarithmic_axis():
    assert figures.loss_figure(metrics(60)).axes[0].get_yscale() == "log"
    assert figures.loss_figure(metrics(10)).axes[0].get_yscale() == "linear"


def test_a_noisy_misfit_is_shown_with_its_running_median():
    raw, median = figures.loss_figure(metrics(60, noise=0.5)).axes[0].lines
    assert raw.get_linewidth() < median.get_linewidth()
    roughness = [np.abs(np.diff(np.log(line.get_ydata()))).sum() for line in (raw, median)]
    assert roughness[1] < 0.5 * roughness[0]


def test_the_model_error_has_its_own_panel_where_it_is_known():
    figure = figures.loss_figure(metrics(5))
    assert [axes.get_ylabel() for axes in figure.axes] == ["misfit", "RMS error (m/s)"]
    unknown = [{"epoch": 1, "loss": 1.0}, {"epoch": 2, "loss": None, "model_error": None}]
    assert len(figures.loss_figure(unknown).axes) == 1
    assert not texts_overlap(figure)


@pytest.mark.parametrize(
    ("draw", "arguments"),
    [
        (figures.draw_wavelet, (ricker(5.0), 0.002)),
        (figures.draw_gathers, gathers()),
        (figures.draw_loss, (metrics(60),)),
        (figures.draw_loss, ([],)),
        (figures.draw_epoch, (picture(),)),
        (figures.draw_epoch, (volume(),)),
    ],
)
def test_every_figure_is_a_png_large_enough_to_print_with_nothing_left_beside(
    tmp_path, draw, arguments
):
    path = tmp_path / "läufe mit Leerzeichen" / "figure.png"
    path.parent.mkdir()
    draw(path, *arguments)
    height, width, _ = imread(path).shape
    assert 700 <= width <= 2000
    assert 400 <= height <= 2000
    assert list(path.parent.iterdir()) == [path]


def test_a_figure_that_fails_leaves_the_old_one_and_nothing_beside(tmp_path, monkeypatch):
    path = tmp_path / "loss.png"
    figures.draw_loss(path, metrics(3))
    before = path.read_bytes()

    def fail_half_way(_figure, name, **_):
        name.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail_half_way)
    with pytest.raises(OSError, match="disk full"):
        figures.draw_loss(path, metrics(4))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_no_display_and_no_pyplot_are_needed(tmp_path):
    program = (
        "import sys; from pathlib import Path; from hpcfwi.report.figures import draw_loss;"
        "draw_loss(Path(sys.argv[1]), [{'epoch': 1, 'loss': 1.0}]);"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    environment = {**os.environ, "DISPLAY": "nowhere:9", "MPLBACKEND": "tkagg"}
    command = [sys.executable, "-c", program, str(tmp_path / "a.png")]
    subprocess.run(command, env=environment, check=True)
    assert (tmp_path / "a.png").exists()
