import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from suite import plots


@pytest.fixture(autouse=True)
def _no_window():
    mpl.use("Agg")
    yield
    plt.close("all")


def models(network="lenet5", profile="laptop"):
    return pd.DataFrame(
        {
            "profile": profile,
            "data": "mnist",
            "network": network,
            "status": "done",
            "n": 100,
            "std": 0.5,
            "alpha": np.logspace(2, 10, 9),
            "value": np.arange(9.0),
            "over_regularised": np.arange(9) > 6,
        }
    )


def draw(frame, **options):
    labels = {"x": "alpha", "x_label": "α", "y_label": "entropy (nats)"}
    return plots.panels_against(frame, **labels, hollow="over_regularised", **options)


def test_one_panel_for_each_data_set_network_and_profile_with_labels():
    frame = pd.concat([models(), models("resnet"), models(profile="paper"), models("convnet")])
    figure = draw(frame)
    shown = [axis for axis in figure.axes if axis.axison]
    assert len(shown) == 4
    for axis in shown:
        assert (axis.get_xlabel(), axis.get_ylabel()) == ("α", "entropy (nats)")
        assert axis.get_xscale() == "log"
    assert shown[0].get_title().startswith("MNIST, LeNet-5, laptop\nρ = 1.00, p = ")


def test_over_regularised_models_are_hollow_and_out_of_the_trend():
    axis = draw(models()).axes[0]
    filled, hollow = axis.collections[-2:]
    assert len(filled.get_offsets()) == 7
    assert len(hollow.get_offsets()) == 2
    assert mpl.colors.to_hex(hollow.get_facecolor()[0]) == "#ffffff"
    assert "n = 7" in axis.get_title()


def test_error_bars_are_95_percent_intervals():
    axis = draw(models()).axes[0]
    low, high = axis.collections[0].get_segments()[0][:, 1]
    assert high - low == pytest.approx(2 * 1.96 * 0.5 / 10)


def test_diverged_models_are_not_drawn():
    frame = models()
    frame.loc[0, "status"] = "diverged"
    assert len(draw(frame).axes[0].collections[-2].get_offsets()) == 6


def test_without_models_the_figure_says_so():
    text = draw(models().iloc[:0]).axes[0].texts[0]
    assert text.get_text() == "not run at the profiles that are shown"


def test_saliency_grid_scales_each_map_to_its_largest_value():
    images = np.random.default_rng(0).random((2, 3, 4, 4), dtype=np.float32)
    maps = np.stack([np.full((1, 4, 4), 2.0), np.full((1, 4, 4), -8.0)])
    figure = plots.saliency_grid(images, {"α = 1": maps, "α = 2": maps / 10}, ["a", "b"])
    axes = np.array(figure.axes).reshape(2, 3)
    assert [axis.get_title() for axis in axes[0]] == ["image", "α = 1", "α = 2"]
    assert [axis.get_ylabel() for axis in axes[:, 0]] == ["a", "b"]
    assert axes[1, 1].images[0].get_clim() == (-8.0, 8.0)
    assert axes[0, 2].images[0].get_clim() == (-0.2, 0.2)


def test_kept_profiles_have_colours_of_their_own():
    shades = {
        profile: mpl.colors.to_hex(draw(models(profile=profile)).axes[0].collections[1].get_fc()[0])
        for profile in ("laptop", "workstation", "workstation, Lipschitz")
    }
    assert shades["workstation"] == shades["workstation, Lipschitz"] != shades["laptop"]


def photographs(n=40, profile="laptop"):
    x = np.linspace(0, 1, n)
    return pd.DataFrame(
        {
            "profile": profile,
            "data": "imagenet",
            "network": "resnet50",
            "confidence": x,
            "value": 1 - x,
        }
    )


def test_dots_have_means_of_bins_with_equally_many_images():
    frame = pd.concat([photographs(), photographs(profile="paper")]).sample(frac=1, random_state=0)
    figure = plots.dots_with_bins(
        frame, x="confidence", x_label="top probability", y_label="difference", n_bins=4
    )
    assert len(figure.axes) == 2
    axis = figure.axes[0]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("top probability", "difference")
    assert len(axis.collections[0].get_offsets()) == 40
    centres = sorted(container.lines[0].get_xdata()[0] for container in axis.containers)
    assert centres == pytest.approx(
        [photographs().confidence[k : k + 10].mean() for k in range(0, 40, 10)]
    )
    assert "ρ = -1.00" in axis.get_title()
    assert "n = 40" in axis.get_title()


def test_dots_of_nothing_say_so():
    figure = plots.dots_with_bins(photographs()[:0], x="confidence", x_label="", y_label="")
    assert figure.axes[0].texts[0].get_text().startswith("not run")


def test_pictures_are_drawn_where_they_are_at_hand():
    photograph = np.zeros((3, 8, 8), np.uint8)
    figure = plots.picture_grid(
        [[photograph, photograph[0]], [None, photograph[0]]],
        titles=["photograph", "map"],
        labels=["cat", "dog"],
        notes=[["", "zeros 50%"]],
        marked={(1, 1)},
    )
    axes = np.array(figure.axes).reshape(2, 2)
    assert [axis.get_title() for axis in axes[0]] == ["photograph", "map"]
    assert [axis.get_ylabel() for axis in axes[:, 0]] == ["cat", "dog"]
    assert axes[0, 1].get_xlabel() == "zeros 50%"
    assert len(axes[0, 0].images) == len(axes[1, 1].images) == 1
    assert axes[1, 0].texts[0].get_text() == "image not\nat hand"
    assert axes[1, 1].spines["left"].get_linewidth() > axes[0, 1].spines["left"].get_linewidth()
