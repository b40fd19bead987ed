import hashlib
import os
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

import meanfield as mf
from meanfield import plotting
from tests.workflow.command_line import ROOT

SIZES = np.array([8, 16, 32, 64, 128])


@pytest.fixture
def ax():
    with plotting.paper_style():
        figure, axes = plotting.new_figure()
        yield axes[0, 0]
        figure.canvas.draw()  # whatever was drawn can be rendered


def replicates(slope=-0.5, spread=0.1, num=40):
    noise = np.random.default_rng(0).standard_normal((num, len(SIZES)))
    return 3 * SIZES**slope * np.exp(spread * noise)


def test_style_is_the_users_again_after_the_block():
    before = mpl.rcParams["font.family"], mpl.rcParams["axes.spines.top"]
    with plotting.paper_style():
        assert mpl.rcParams["font.family"] == ["STIXGeneral"]
        assert not mpl.rcParams["axes.spines.top"]
    assert (mpl.rcParams["font.family"], mpl.rcParams["axes.spines.top"]) == before


def test_figures_have_print_sizes():
    one, axes = plotting.new_figure()
    assert tuple(one.get_size_inches()) == pytest.approx((3.4, 3.4 * plotting.GOLDEN))
    assert axes.shape == (1, 1)
    two, axes = plotting.new_figure(2, 3, aspect=1.0)
    assert tuple(two.get_size_inches()) == pytest.approx((7.0, 14 / 3))
    assert axes.shape == (2, 3)
    assert not axes[0, 0].spines["top"].get_visible()
    with pytest.raises(mf.MeanfieldError, match="num_rows is 0"):
        plotting.new_figure(0)


def test_rate_plot_holds_points_band_line_and_slope(ax):
    errors = replicates()
    rate = mf.fit_rate(SIZES, errors)
    points = plotting.rate_plot(ax, SIZES, errors, label="tokens", rate=rate)
    assert np.array_equal(points.get_xdata(), SIZES)
    assert np.allclose(points.get_ydata(), np.sqrt((errors**2).mean(axis=0)))
    assert points.get_linestyle() == "None"
    (band,) = ax.collections
    corners = band.get_paths()[0].vertices
    low, high = np.quantile(errors, (0.1, 0.9), axis=0)
    for size, bottom, top in zip(SIZES, low, high, strict=True):
        seen = corners[np.isclose(corners[:, 0], size), 1]
        assert seen.min() == pytest.approx(bottom)
        assert seen.max() == pytest.approx(top)
    line = ax.lines[1]
    assert np.asarray(line.get_xdata()).tolist() == [8, 128]
    assert np.allclose(line.get_ydata(), rate.predict([8, 128]))
    assert line.get_color() == points.get_color()
    lower, upper = rate.interval
    expected = f"tokens: {rate.slope:.2f} [{lower:.2f}, {upper:.2f}]".replace("-", "\u2212")
    assert points.get_label() == expected
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    labels = [text.get_text() for text in ax.get_xticklabels()]
    assert labels == ["8", "16", "32", "64", "128"]


def test_rate_plot_of_one_curve_has_neither_band_nor_line(ax):
    points = plotting.rate_plot(ax, SIZES, replicates()[0], label="one", color=plotting.RED)
    assert len(ax.lines) == 1
    assert len(ax.collections) == 0
    assert points.get_label() == "one"
    assert to_hex(points.get_color()) == plotting.RED.lower()
    plotting.rate_plot(ax, SIZES, replicates(), label="more", band=False)
    assert len(ax.collections) == 0
    with pytest.raises(mf.MeanfieldError, match="one error per size"):
        plotting.rate_plot(ax, SIZES, np.ones(3), label="short")


@pytest.mark.parametrize(("spread", "plain"), [(1.0, True), (1e-5, False)])
def test_error_axis_is_plain_over_few_decades_only(ax, spread, plain):
    plotting.rate_plot(ax, SIZES, np.geomspace(0.5, 0.1 * spread, 5), label="error")
    ax.figure.canvas.draw()
    low, high = ax.get_ylim()
    shown = [
        text.get_text()
        for text, place in zip(ax.get_yticklabels(), ax.get_yticks(), strict=True)
        if low <= place <= high
    ]
    assert len(shown) >= 2
    assert all(("10^" not in text) == plain for text in shown)
    assert not any(text.get_text() for text in ax.get_yticklabels(minor=True))


@pytest.mark.parametrize("slope", [-0.5, -4.0, 1.0])
def test_reference_triangle_has_its_slope_and_stays_below_the_line(ax, slope):
    errors = replicates(slope, spread=0.01)
    rate = mf.fit_rate(SIZES, errors)
    plotting.rate_plot(ax, SIZES, errors, label="error", rate=rate)
    triangle = plotting.reference_triangle(ax, slope, rate, start=16.0, width=3.0)
    corners = triangle.get_xy()[:3]
    sizes, heights = corners.T
    assert sizes.min() == 16
    assert sizes.max() == 48
    left, right = heights[sizes == 16], heights[sizes == 48]
    measured = np.log(
        (right.min() if slope < 0 else right.max()) / (left.max() if slope < 0 else left.min())
    ) / np.log(3)
    assert measured == pytest.approx(slope)
    assert (heights <= 0.61 * rate.predict(sizes)).all()
    bottom, top = ax.get_ylim()
    assert bottom < heights.min() < heights.max() < top
    words = {text.get_text() for text in ax.texts}
    assert words == {plotting.fraction_text(abs(slope)), "1"}


def test_fractions_are_simple_where_they_can_be():
    assert [plotting.fraction_text(v) for v in (0.5, 1.0, 2 / 3, 1.25, 0.517)] == [
        "1/2",
        "1",
        "2/3",
        "5/4",
        "0.517",
    ]


def spiral(dim, num_nodes=6, num_tokens=4):
    generator = np.random.default_rng(dim)
    scales = 2.0 ** -np.arange(dim)
    start = generator.standard_normal((num_tokens, dim)) * scales
    return start * np.linspace(1, 0.2, num_nodes)[:, None, None] + 0.5


def test_planar_paths_are_drawn_as_they_are(ax):
    path = spiral(2)
    lines = plotting.token_paths(ax, path, label="tokens")
    segments = np.array(lines.get_segments())
    assert np.allclose(segments, path.swapaxes(0, 1))
    _, starts, ends = ax.collections
    assert np.allclose(starts.get_offsets(), path[0])
    assert np.allclose(ends.get_offsets(), path[-1])
    assert to_hex(starts.get_facecolor()[0]) == "#ffffff"  # open at depth 0, filled at the end
    assert to_hex(ends.get_facecolor()[0]) == plotting.BLUE.lower()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("$x_1$", "$x_2$")


def test_paths_in_space_are_seen_on_principal_axes_that_are_named(ax):
    path = spiral(5)
    lines = plotting.token_paths(ax, path)
    assert ax.get_xlabel().startswith("principal axis 1 (")
    assert ax.get_ylabel().startswith("principal axis 2 (")
    plane = plotting.principal_plane(path)
    assert np.allclose(plane.axes @ plane.axes.T, np.eye(2), atol=1e-12)
    seen = plane.project(path)
    assert np.allclose(np.array(lines.get_segments()), seen.swapaxes(0, 1))
    flat = path.reshape(-1, 5) - path.reshape(-1, 5).mean(axis=0)
    values = np.linalg.svd(flat, compute_uv=False)
    spread = ((seen.reshape(-1, 2) - seen.reshape(-1, 2).mean(axis=0)) ** 2).sum(axis=0)
    assert np.allclose(spread, values[:2] ** 2)
    share = float(ax.get_xlabel().split("(")[1].rstrip("%)"))
    assert share == pytest.approx(100 * values[0] ** 2 / (values**2).sum(), abs=0.51)


def test_a_plane_does_not_depend_on_the_order_of_tokens():
    points = spiral(4).reshape(-1, 4)
    a, b = plotting.principal_plane(points), plotting.principal_plane(points[::-1])
    assert np.allclose(a.axes, b.axes, atol=1e-10)
    line = np.outer(np.arange(5.0), [1.0, 2.0, 2.0])  # rank one: the second axis is empty
    assert np.allclose(plotting.principal_plane(line).project(line)[:, 1], 0, atol=1e-12)


def test_areas_follow_masses_and_queries_are_stars(ax):
    weights = np.array([0.6, 0.3, 0.1, 0.0])
    plotting.token_paths(ax, spiral(2), weights=weights)
    _, starts, ends, query_start, query_end = ax.collections
    areas = starts.get_sizes()
    assert areas[0] == pytest.approx(2 * areas[1])
    assert len(ends.get_offsets()) == 3
    assert np.allclose(query_end.get_offsets(), spiral(2)[-1, 3:])
    circle, star = starts.get_paths()[0], query_start.get_paths()[0]
    assert len(star.vertices) != len(circle.vertices)


def test_paths_on_a_line_are_drawn_over_depth(ax):
    path = spiral(2)[..., :1]
    lines = plotting.token_paths(ax, path)
    first = np.array(lines.get_segments()[0])
    assert first[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert np.allclose(first[:, 1], path[:, 0, 0])


@pytest.mark.parametrize(
    ("path", "weights", "said"),
    [
        (np.zeros((4, 2)), None, "[L+1, n, d]"),
        (np.zeros((1, 3, 2)), None, "[L+1, n, d]"),
        (np.zeros((4, 3, 2)), np.ones(2), "one weight per token"),
        (np.full((4, 3, 3), np.nan), None, "nan"),
    ],
)
def test_bad_paths_are_refused(ax, path, weights, said):
    with pytest.raises(mf.MeanfieldError) as caught:
        plotting.token_paths(ax, path, weights=weights)
    assert said in str(caught.value)


def test_training_curve_and_levels(ax):
    time, risk = np.arange(5.0), np.exp(-np.arange(5.0))
    line = plotting.training_curve(ax, time, risk, label="flow")
    assert np.array_equal(line.get_ydata(), risk)
    assert ax.get_yscale() == "log"
    assert ax.get_xlabel() == "training time $t$"
    levels = plotting.level_lines(ax, {"linear": 0.5, "kernel": 0.1})
    assert [float(np.asarray(level.get_ydata())[0]) for level in levels] == [0.5, 0.1]
    assert [text.get_text() for text in ax.texts] == ["linear", "kernel"]
    assert [text.xy[1] for text in ax.texts] == [0.5, 0.1]


def test_accuracy_keeps_a_linear_scale(ax):
    plotting.training_curve(
        ax, [0, 1], [0.1, 0.9], label="test", name="accuracy", logarithmic=False
    )
    assert ax.get_yscale() == "linear"
    assert ax.get_ylabel() == "accuracy"


def test_spectrum_falls_and_rests_on_its_floor(ax):
    line = plotting.spectrum(ax, [1e-3, 1.0, 0.0, -1e-20], label="V", threshold=1e-11)
    assert np.asarray(line.get_xdata()).tolist() == [1, 2, 3, 4]
    assert np.asarray(line.get_ydata()).tolist() == [1.0, 1e-3, 1e-18, 1e-18]
    assert float(np.asarray(ax.lines[1].get_ydata())[0]) == 1e-11


def test_spectrum_carries_each_values_interval_to_its_place(ax):
    interval = [[5e-4, 0.5, 0.0], [2e-3, 1.5, 1e-17]]
    plotting.spectrum(ax, [1e-3, 1.0, 0.0], label="V", interval=interval)
    bars = [segment.tolist() for segment in ax.collections[0].get_segments()]
    assert bars == [[[1, 0.5], [1, 1.5]], [[2, 5e-4], [2, 2e-3]], [[3, 1e-18], [3, 1e-17]]]
    ax.cla()
    line = plotting.spectrum(ax, [0.0, 2.0, 1e-30], label="V", interval=np.ones((2, 3)), num_zero=2)
    drawn = [np.asarray(one.get_xydata()).tolist() for one in (line, ax.lines[1])]
    assert drawn == [[[1, 2.0]], [[2, 0.03], [3, 0.03]]]  # fractions of the axis: at its bottom
    assert ax.lines[1].get_transform() == ax.get_xaxis_transform()
    assert ax.get_ylim()[0] < 2.0 / 30
    assert len(ax.collections[0].get_segments()) == 1
    plotting.spectrum(ax, [3.0, 0.0], label="A", num_zero=1)
    assert np.asarray(ax.lines[3].get_ydata())[0] > 0.05  # beside the others, said once
    assert [text.get_text() for text in ax.legend().get_texts()] == [
        "V",
        "zero to rounding (not to scale)",
        "A",
    ]
    with pytest.raises(mf.MeanfieldError, match="num_zero is 3 for 2"):
        plotting.spectrum(ax, [1.0, 2.0], label="V", num_zero=3)
    with pytest.raises(mf.MeanfieldError, match="lower and an upper end"):
        plotting.spectrum(ax, [1.0, 2.0], label="V", interval=[1.0, 2.0])


@pytest.mark.parametrize(("num", "ticks"), [(6, [1, 2, 3, 4, 5, 6]), (9, [1, 3, 5, 7, 9])])
def test_the_index_of_a_spectrum_begins_at_one(ax, num, ticks):
    plotting.spectrum(ax, 0.5 ** np.arange(num), label="V")
    low, high = ax.get_xlim()
    assert [tick for tick in ax.get_xticks() if low <= tick <= high] == ticks
    ax.cla()
    plotting.spectrum(ax, 0.9 ** np.arange(100), label="V")
    assert ax.get_xticks().tolist()[:3] == [1, 20, 40]


def test_null_directions_are_scaled_rows_over_the_pairs_of_each_context(ax):
    vectors = np.array([[1.0, 0.0], [-2.0, 0.0], [0.0, 0.1], [0.0, 0.1], [0.5, 0.0]])
    image = plotting.null_directions(ax, vectors, [1, 1, 2, 2, 3])
    expected = [[0.0, 0.0, 1.0, 1.0, 0.0], [0.5, -1.0, 0.0, 0.0, 0.25]]  # the first row on top
    assert np.asarray(image.get_array()).tolist() == expected
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "3"]
    assert ax.get_xticks().tolist() == [1.5, 3.5, 5.0]
    rows = [text.get_text() for text in ax.get_yticklabels()]
    assert (ax.get_yticks().tolist(), rows) == ([2.0, 1.0], ["1", "2"])
    borders = [line.get_xdata()[0] for line in ax.lines]
    assert borders == [2.5, 4.5]
    for bad in (np.zeros((5, 0)), np.zeros((4, 1)), np.zeros(5)):
        with pytest.raises(mf.MeanfieldError, match="k >= 1"):
            plotting.null_directions(ax, bad, [1, 1, 2, 2, 3])


def test_heat_strip_holds_its_matrix_and_centres_signs(ax):
    values = np.array([[0.0, 1.0], [-3.0, 2.0]])
    image = plotting.heat_strip(ax, values, name="gap", extent=(0.0, 1.0, 0.0, 2.0), signed=True)
    assert np.array_equal(np.asarray(image.get_array()), values)
    assert image.get_clim() == (-3.0, 3.0)
    assert image.get_extent() == [0, 1, 0, 2]
    assert ax.figure.axes[1].get_ylabel() == "gap"
    with pytest.raises(mf.MeanfieldError, match="reshape"):
        plotting.heat_strip(ax, np.zeros(3), name="gap")


def test_legend_below_is_the_figures_where_it_has_one_axis():
    with plotting.paper_style():
        figure, axes = plotting.new_figure()
        axes[0, 0].plot([0, 1], label="a")
        plotting.legend_below(axes[0, 0])
        assert len(figure.legends) == 1
        figure, axes = plotting.new_figure(1, 2)
        axes[0, 0].plot([0, 1], label="a")
        plotting.legend_below(axes[0, 0])
        assert len(figure.legends) == 0
        assert axes[0, 0].get_legend().get_texts()[0].get_text() == "a"
        plotting.panel_label(axes[0, 1], "b", "right")
        assert axes[0, 1].get_title(loc="left") == "(b) right"


DRAW = """
import sys
import numpy as np
from meanfield import plotting, rates
out = sys.argv[1]
sizes = np.array([4, 8, 16, 32])
errors = sizes**-0.5 * np.exp(0.1 * np.random.default_rng(0).standard_normal((9, 4)))
with plotting.paper_style():
    figure, axes = plotting.new_figure(1, 2)
    plotting.rate_plot(axes[0, 0], sizes, errors, label="a", rate=rates.fit_rate(sizes, errors))
    path = np.random.default_rng(1).standard_normal((4, 5, 3))
    plotting.token_paths(axes[0, 1], path)
print(*plotting.save_figure(figure, out + "/picture.png"))
plotting.animate_tokens(path, out + "/moving.gif")
assert not {"jax", "jaxlib", "equinox", "matplotlib.pyplot"} & set(sys.modules)
"""


def test_files_are_the_same_bytes_in_every_process_and_need_no_jax(tmp_path):
    digests = []
    for seed in ("1", "2"):
        out = tmp_path / seed
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed, "TZ": f"UTC+{seed}"}
        done = subprocess.run(
            [sys.executable, "-c", DRAW, str(out)],
            env=env,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == [str(out / "picture.png"), str(out / "picture.pdf")]
        names = sorted(path.name for path in out.iterdir())
        assert names == ["moving.gif", "picture.pdf", "picture.png"]
        digests.append([hashlib.sha256((out / name).read_bytes()).hexdigest() for name in names])
    assert digests[0] == digests[1]
    pdf = (tmp_path / "1" / "picture.pdf").read_bytes()
    assert b"Date" not in pdf
    with Image.open(tmp_path / "1" / "picture.png") as image:
        assert image.size == (2100, round(7.0 * plotting.GOLDEN / 2 * 300))
        assert "Software" not in image.info
    with Image.open(tmp_path / "1" / "moving.gif") as image:
        assert getattr(image, "n_frames", 1) == 4
        assert image.info["loop"] == 0


def test_a_picture_that_cannot_be_written_leaves_nothing(tmp_path):
    figure, _ = plotting.new_figure()
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(mf.MeanfieldError, match="cannot be written"):
        plotting.save_figure(figure, blocked / "picture")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_animation_that_fails_leaves_nothing(tmp_path):
    figure, _ = plotting.new_figure()

    def update(index):
        if index == 1:
            raise RuntimeError("no frame")

    with pytest.raises(RuntimeError, match="no frame"):
        plotting.save_animation(figure, update, 3, tmp_path / "moving.gif")
    assert not list(tmp_path.iterdir())
    with pytest.raises(mf.MeanfieldError, match="at least two dimensions"):
        plotting.animate_tokens(np.zeros((3, 2, 1)), tmp_path / "moving.gif")


def test_animated_tokens_move(tmp_path):
    file = plotting.animate_tokens(spiral(2), tmp_path / "moving.gif", fps=10)
    frames = []
    with Image.open(file) as image:
        for index in range(getattr(image, "n_frames", 1)):
            image.seek(index)
            assert image.info["duration"] == 100
            frames.append(np.asarray(image.convert("RGB"), int))
    assert len(frames) == 6
    changes = [np.abs(b - a).sum() for a, b in zip(frames, frames[1:], strict=False)]
    assert min(changes) > 0
