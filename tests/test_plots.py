import io
import re

import matplotlib as mpl
import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest
from nbclient import NotebookClient

from suite import plots


@pytest.fixture(autouse=True)
def _style():
    mpl.use("Agg")
    with mpl.rc_context():
        plots.set_style()
        yield
    plt.close("all")


def models(network="lenet5", profile="laptop"):
    where = {"profile": profile, "data": "mnist", "network": network, "status": "done"}
    values = {"alpha": np.logspace(2, 10, 9), "value": np.arange(9.0), "std": 0.5, "n": 100}
    return pd.DataFrame(where | values | {"over_regularised": np.arange(9) > 6})


def draw(frame):
    labels = {"x": "alpha", "x_label": "α", "y_label": "entropy (nats)", "log": "x"}
    return plots.scatter(frame, **labels, hollow="over_regularised")


def test_panels_have_labels():
    frame = pd.concat([models(), models("resnet"), models(profile="paper"), models("convnet")])
    figure = draw(frame)
    axes = [axis for axis in figure.axes if axis.axison]
    assert len(axes) == 4
    assert [axis.get_ylabel() for axis in axes] == ["entropy (nats)", ""] * 2  # two in a row
    for axis in axes:
        assert (axis.get_xlabel(), axis.get_xscale()) == ("α", "log")
    assert axes[0].get_title().startswith("MNIST, LeNet-5, laptop\nρ = 1.00, n = 7")
    assert figure.get_size_inches()[0] <= 7.2


class TestMedians:
    ROWS = pd.DataFrame({"alpha": [1, 2, 3, 20, 30], "value": [1.0, 2.0, 6.0, 4.0, 8.0]})
    LABELS = {"x": "alpha", "x_label": "α", "y_label": "share"}

    def test_line_of_decades(self):
        figure = plots.medians(self.ROWS.assign(line="a", panel=""), **self.LABELS)
        (axis,) = figure.axes
        assert axis.lines[0].get_xydata().tolist() == [[2, 2], [25, 6]]
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a"]
        assert not axis.patches

    def test_cut_off_is_shaded(self):
        panels = [self.ROWS.assign(line="a", panel=p, t=t) for p, t in (("b", 10), ("c", np.inf))]
        figure = plots.medians(pd.concat(panels), {"a": {"color": "k"}}, beyond="t", **self.LABELS)
        assert [len(axis.patches) for axis in figure.axes] == [1, 0]
        assert figure.axes[0].patches[0].get_extents().width > 0


def hexes(colours):
    return [mpl.colors.to_hex(colour) for colour in colours]


def test_over_regularised_models_are_hollow():
    axis = draw(models()).axes[0]
    filled, hollow = axis.collections[:2]
    assert [len(dots.get_offsets()) for dots in (filled, hollow)] == [7, 2]
    colours = {*hexes(filled.get_facecolors())}, {*hexes(hollow.get_edgecolors())}
    assert colours == ({plots.COLOURS["laptop"]},) * 2
    assert {*hexes(hollow.get_facecolors())} == {"#ffffff"}
    assert "n = 7" in axis.get_title()
    workstation = draw(models(profile="workstation")).axes[0].collections[0]
    assert hexes(workstation.get_facecolors())[0] != plots.COLOURS["laptop"]


def seeds(method, values, profile="laptop"):
    """Three networks of a method at each of two x, whose means are `values`."""
    rows = [(x, m + step) for x, m in zip((0.01, 0.1), values) for step in (-0.1, 0.0, 0.1)]
    return pd.DataFrame(rows, columns=["epsilon", "value"]).assign(profile=profile, method=method)


def draw_lines(frame, **options):
    labels = {"x": "epsilon", "x_label": "ε", "y_label": "accuracy"}
    return plots.lines(frame, **labels, hue="method", panels=["profile"], **options)


def test_lines_are_means_with_intervals():
    figure = draw_lines(pd.concat([seeds("density", (0.8, 0.5)), seeds("standard", (0.7, 0.2))]))
    lines = figure.axes[0].lines[::2]  # between them those of the intervals
    means = np.array([line.get_ydata() for line in lines], float)
    np.testing.assert_allclose(means, [[0.8, 0.5], [0.7, 0.2]])
    assert hexes(line.get_color() for line in lines) == [plots.BLUE, plots.GREY]
    bars = [bar for bar in figure.axes[0].collections if len(bar.get_segments())]
    low, high = bars[0].get_segments()[0][:, 1]
    # t(0.975, 2 degrees of freedom) = 4.303, standard deviation 0.1, three networks
    assert high - low == pytest.approx(2 * 4.3027 * 0.1 / np.sqrt(3), rel=1e-4)


def test_lines_follow_the_order_of_names():
    frame = pd.concat([seeds("standard", (1, 2)), seeds("density", (3, 4), profile="paper")])
    names = {"density": "smooth density", "standard": "plain"}
    figure = draw_lines(frame, names=names, dots=True)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [*names.values()]
    assert [axis.get_title() for axis in figure.axes] == ["laptop", "paper"]


def test_notice_without_rows():
    for figure in (draw_lines(seeds("standard", (1, 2))[:0]), draw(models()[:0])):
        assert figure.axes[0].texts[0].get_text() == "not run at the profiles that are shown"


def test_long_curves_have_bands():
    x = np.linspace(0.01, 1, 40)
    curve = pd.DataFrame({"profile": "p", "method": "density", "epsilon": x, "value": x})
    figure = draw_lines(pd.concat([curve, curve.assign(value=x + 1)]), log="")
    assert len(figure.axes[0].lines[0].get_xdata()) == 40
    assert (len(figure.axes[0].collections), figure.axes[0].get_xscale()) == (1, "linear")


def test_colours_of_methods_differ():
    for methods in (
        ["standard", "at_pgd", "hessian", "score_matching", "input_gradient", "cure", "density"],
        ["none", "target 10", "curvature 10"],
        ["none", "fpn+l1", "fpn+l1+pool", "adversarial"],
        ["none", "target 3", "target 10"],
        ["ReLU", "SiLU", "density"],
    ):
        palette = plots.palette_of(pd.Series(methods), {})
        assert len(set(palette.values())) == len(methods)
        if "target 10" in methods:  # the last strength has the method's colour
            assert palette["target 10"] == plots.BLUE
    assert plots.palette_of(pd.Series(["target 100"]), {}) == {"target 100": plots.BLUE}


def test_ticks_within_two_decades():
    assert draw_lines(seeds("density", (1, 2))).axes[0].get_xticks().tolist() == [0.01, 0.1]
    figure = draw(models().assign(alpha=np.linspace(0.02, 0.9, 9)))
    figure.draw_without_rendering()
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert {"0.02", "0.05", "0.1", "0.2", "0.5"} <= set(labels)


def test_maps_share_a_colour_bar():
    maps = [np.full((4, 4), value) for value in (0.5, 2.0)]
    figure = plots.pictures([maps, [None, maps[0]]], scale=(0, 3), scale_label="importance")
    assert [axis.images[0].get_clim() for axis in figure.axes[:2]] == [(0, 3)] * 2
    assert figure.axes[-1].get_ylabel() == "importance"
    assert len(plots.pictures([[None, None]], scale=(0, 3)).axes) == 2  # no bar


def photographs(profile="laptop"):
    frame = pd.DataFrame({"confidence": np.linspace(0, 1, 40), "value": np.linspace(1, 0, 40)})
    return frame.assign(profile=profile, data="imagenet", network="resnet50")


def test_scatter_draws_means_and_medians():
    frame = pd.concat([photographs(), photographs("paper")]).sample(frac=1, random_state=0)
    labels = {"x": "confidence", "x_label": "top probability", "y_label": "difference"}
    axis, _ = plots.scatter(frame, **labels, n_bins=4).axes
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("top probability", "difference")
    assert len(axis.collections[0].get_offsets()) == 40
    means = photographs().confidence.to_numpy().reshape(4, 10).mean(1)
    assert axis.lines[0].get_xdata() == pytest.approx(means)
    assert "ρ = -1.00" in axis.get_title()
    assert "n = 40" in axis.get_title()
    frame = photographs().assign(most=lambda rows: 2 * rows["value"])
    (axis,) = plots.scatter(frame, **labels, panels=(), bound="most", n_bins=1).axes
    assert axis.lines[-1].get_ydata() == pytest.approx([frame["most"].median()])
    assert axis.get_title() == "ρ = -1.00, n = 40"


def test_columns_become_pictures():
    words = {"titles": ["a", "b"], "notes": [["x", "y"]] * 2, "alt": "maps"}
    text = plots.columns_as_html([[np.zeros((4, 4), np.uint8), None]] * 2, **words)
    assert text.count("<img") == 2
    assert 'alt="maps (2)"' in text


def test_missing_pictures_are_said():
    photograph = np.zeros((3, 8, 8), np.uint8)
    words = {"titles": ["photograph", "map"], "labels": ["cat", "dog"]}
    rows = [[photograph, photograph[0]], [None, photograph[0]]]
    axes = np.array(plots.pictures(rows, **words, notes=[["", "zeros 50%"]]).axes).reshape(2, 2)
    assert [axis.get_title() for axis in axes[0]] == ["photograph", "map"]
    assert [axis.get_ylabel() for axis in axes[:, 0]] == ["cat", "dog"]
    assert axes[0, 1].get_xlabel() == "zeros 50%"
    assert len(axes[0, 0].images) == len(axes[1, 1].images) == 1
    assert axes[1, 0].texts[0].get_text() == "not\nkept"


def test_figures_are_reproducible_and_legible():
    files = io.StringIO(), io.StringIO()
    frame = pd.concat([seeds("density", (1, 2)), seeds("standard", (1, 2))])
    for file in files:
        draw_lines(frame).savefig(file, format="svg", metadata={"Date": None})
    first, second = (file.getvalue() for file in files)
    assert first == second
    assert min(map(float, re.findall(r"font(?:-size)?: (?:\d+ )?([\d.]+)px", first))) >= 9


@pytest.mark.parametrize(
    ("published", "texts"),
    [
        (0.6, {"50.0 ± 2.5%": "right"}),  # left of a diamond that is close
        (0.4, {"50.0 ± 2.5%": "left"}),
        (0.95, {"50.0 ± 2.5%": "left", "paper 95.0%": "left"}),
    ],
)
def test_labels_of_dots_do_not_meet(published, texts):
    rows = pd.DataFrame({"method": "l1", "seed": range(3), "value": [0.49, 0.5, 0.51]})
    shown = {"method": "method", "x_label": "accuracy", "published": {"": {"l1": published}}}
    (axis,) = plots.dots({"": rows}, {"l1": "L1"}, **shown).axes
    assert {text.get_text(): text.get_ha() for text in axis.texts} == texts


CELLS = """
from suite import plots
plots.set_style()
import numpy as np
for figure in ("plots.draw_notice('lines')", "plots.pictures([[np.eye(3)]])"):
    eval(figure)
"""


def test_notebook_formats_are_svg_and_png():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELLS)])
    NotebookClient(notebook, timeout=120).execute()
    outputs = [output["data"] for output in notebook.cells[0].outputs]
    assert [set(data) - {"text/plain"} for data in outputs] == [{"image/svg+xml"}, {"image/png"}]
    assert "<dc:date>" not in outputs[0]["image/svg+xml"]
