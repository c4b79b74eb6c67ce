"""Headlines: one row a claim, what stands in it, and its effect in units of the paper."""

import numpy as np
import pandas as pd
import pytest

from suite import plots
from suite.evidence import headlines, power, report, scale
from suite.evidence.results import Results
from suite.units import Measurement, Training

CLAIM = {
    "id": "a",
    "tier": "headline",
    "says": "accuracy rises",
    "section": "one",
    "published": "by 0.16",
    "published_effect": "+0.16",
    "quantity": "test accuracy",
    "unit": "network",
    "smallest_effect": {"size": 0.01, "why": "a point"},
    "shown": {"data": "mnist", "network": "mlp"},
    "test": {"rule": "paired", "settings": {"expected": "higher"}},
}
OTHER = CLAIM | {"id": "b", "says": "nothing ran"}


def verdict(data="mnist", profile="workstation", word="holds", **changes):
    numbers = {"estimate": 0.08, "low": 0.04, "high": 0.12, "n": 6, "p": 0.01, "p_holm": 0.02}
    about = {"chapter": "c", "claim": "a", "data": data, "network": "mlp", "profile": profile}
    about |= {"verdict": word, "detail": "", "statistic": "x − y", "needed": np.nan}
    return about | numbers | changes


@pytest.fixture
def claims(monkeypatch):
    for module in (headlines, report):
        monkeypatch.setattr(module, "load_claims", lambda chapter: [CLAIM, OTHER])


def test_a_claim_is_shown_at_the_best_profile_that_ran(claims):
    rows = [
        verdict(profile="laptop", word="opposite"),
        verdict(profile="workstation"),
        verdict(profile="paper", word="not run"),
    ]
    best = report.best_profile(pd.DataFrame(rows))
    assert best[["profile", "verdict"]].to_numpy().tolist() == [["workstation", "holds"]]


def test_a_headline_shows_the_data_it_names_and_lists_the_others(claims):
    rows = [
        verdict("fashion_mnist", word="opposite", n=60),
        verdict("mnist"),
        verdict("kmnist", word="opposite"),
    ]
    found = headlines.headlines("c", pd.DataFrame(rows))
    assert found["data"].tolist() == ["mnist", ""]
    each = "with MLP (0.080 [0.040, 0.120], n = {})"
    assert found["others"][0] == (
        f"opposite on Fashion-MNIST {each.format(60)}, KMNIST {each.format(6)}"
    )
    assert found["verdict"].tolist() == ["holds", "not run"]


def test_in_short_says_claim_word_published_measured_and_where(claims):
    rows = [verdict(detail="smaller than published"), verdict("kmnist", word="open")]
    text = headlines.in_short("c", pd.DataFrame(rows))
    assert text.splitlines()[2].startswith("Of 2 headline claims: 1 held, 1 not run.")
    assert next(line for line in text.splitlines() if line.startswith("- **A")) == (
        "- **Accuracy rises: holds.** The effect is smaller than published. "
        "*Here* test accuracy: x − y: 0.080 [0.040, 0.120], n = 6 networks of each kind "
        "(at least 0.01 would matter); MNIST, MLP. *Paper:* by 0.16. "
        "On other data: open on KMNIST with MLP (0.080 [0.040, 0.120], n = 6)."
    )
    assert "- **Not run:** nothing ran." in text


def test_in_short_says_at_what_scale_and_what_to_take_from_it(claims, monkeypatch):
    advice = [{"claim": CLAIM["id"], "holds": "Take it.", "else": "No."}]
    advice += [{"claim": "z", "open": "Nor more."}]
    words = {"names": {}, "advice": advice, "scale": "Two networks."}
    monkeypatch.setattr(headlines, "load_words", lambda chapter: words)
    where = {"profile": "workstation", "data": "mnist", "network": "mlp", "metric": "accuracy"}
    table = pd.DataFrame([where | {"value": 0.9}])
    training = Training(
        data="mnist", network="mlp", epochs=4, learning_rate=0.1, seed=0, n_train=500
    )
    text = headlines.in_short(
        "c", pd.DataFrame([verdict()]), table, {"workstation": [training], "laptop": []}
    )
    here = "MLP, 4 epochs on 500 training images, accuracy 0.90."
    assert f"*Measured on* MNIST (70,000 digits, 28 x 28), {here}" in text
    assert "*In the paper:* Two networks." in text
    assert text.splitlines()[4] == "**To take from it:** Take it."
    supporting = [verdict(claim="z", word="open", n=n, low=low) for n, low in ((9, 0.01), (3, 0.0))]
    text = headlines.in_short("c", pd.DataFrame([verdict(), *supporting]))
    assert text.splitlines()[6] == "- Nor more (MNIST, x minus y: 0.080 [0.010, 0.120], n = 9)."
    text = headlines.in_short("c", pd.DataFrame([verdict(word="open")]), table)
    assert "MLP, accuracy 0.90" in text
    assert "**To take from it:** No." in text


def test_the_scale_says_what_trainings_share_and_how_good_each_kind_is():
    where = {"profile": "laptop", "data": "cifar10-jpeg-cropped", "network": "resnet"}
    table = pd.DataFrame(
        where | {"metric": "accuracy", "model": model, "value": value, "t_alpha": t}
        for model, value, t in (("none", 0.5, 1e6), ("none", 0.7, 1e6), ("target 1", 0.25, np.nan))
    )
    plain, *cropped = (
        Training(
            data="cifar10-jpeg",
            network="resnet",
            epochs=epochs,
            learning_rate=0.1,
            seed=0,
            network_options={"blocks": [1, 2], "width": width, "backbone_options": {"stem": "s"}},
            crop_padding=padding,
        )
        for epochs, width, padding in ((9, 4, 0), (2, 8, 4), (3, 16, 4))
    )
    names = {"none": "no penalty", "target 1": "target penalty", "target 2": "another"}
    said = scale.scale(table, where, [plain, *cropped], names)
    assert "ResNet (blocks 1 + 2), 3 epochs on all training images, " in said
    assert "mean accuracy 0.60 (no penalty), 0.25 (target penalty)" in said
    badly = "without networks of α ≥ 1.0e6, which classify too badly"
    assert said.endswith(f"{badly}, besides short trainings of 2 epochs")
    accuracy = where | {"model": "none", "metric": "accuracy", "method": "standard"}
    panels = {"strength": 0.95, "groups": 0.25}
    swept = pd.DataFrame([accuracy | {"panel": n, "value": v} for n, v in panels.items()])
    there = "besides short trainings of 2 epochs (standard training there: 0.95)"
    assert there in scale.scale(pd.concat([table, swept]), where, [plain, *cropped], names)
    assert "(blocks 1 + 2, width 4), 9 epochs" in scale.scale(
        table, where | {"data": "cifar10-jpeg"}, [plain, *cropped], names
    )
    grouped = scale.scale(table.assign(metric="usual_accuracy"), where, cropped, names)
    assert "mean accuracy 0.60 (no penalty), 0.25 (target penalty)" in grouped
    unit = Measurement(training=cropped[0], metric="accuracy")
    assert scale.trainings_of([plain, plain, unit]) == [plain, cropped[0]]


def test_what_came_out_opposite_elsewhere_does_not_hold_everywhere(claims):
    rows = pd.DataFrame([verdict(), verdict("kmnist", word="opposite")])
    assert headlines.headlines("c", rows)["mixed"].tolist() == [True, False]
    text = headlines.in_short("c", rows)
    assert "**Accuracy rises: holds, but not everywhere.**" in text
    assert "1 held (1 of them not on all data), 1 not run." in text
    rows = pd.DataFrame([verdict(), verdict("kmnist", word="open")])
    assert not headlines.headlines("c", rows)["mixed"].any()


def test_a_trend_is_said_in_plain_numbers():
    trend = CLAIM | {"test": {"rule": "trend", "negated": True, "settings": {"x": "alpha"}}}
    where = {"profile": "workstation", "data": "mnist", "network": "mlp", "status": "done"}
    table = pd.DataFrame([where | {"alpha": 10.0**k, "value": -float(k)} for k in range(9)])
    row = pd.Series(verdict(statistic="Spearman's ρ with α"))
    said = headlines._plainly(row, trend, table)
    assert said == "Its mean goes from 1 (lowest third of α) to 7 (highest)."
    assert headlines._plainly(row, CLAIM, table) == ""
    twice = pd.concat([table.assign(seed=seed) for seed in (0, 1)])
    said = headlines._plainly(row, trend, twice)
    assert said.endswith(" The interval is over the 2 seeds of each α.")


def test_in_short_says_why_something_cannot_be_said(claims):
    nothing = dict.fromkeys(("estimate", "low", "high", "p"), np.nan) | {"n": 0}
    row = verdict(word="cannot be measured here", detail="accuracy: 0.5", **nothing)
    assert "**Cannot be measured here:** accuracy rises. Accuracy: 0.5." in headlines.in_short(
        "c", pd.DataFrame([row])
    )
    row = verdict(word="open", needed=31.0)
    text = headlines.in_short("c", pd.DataFrame([row]))
    assert "open.** About 31 networks of each kind would settle it. *Here* test accuracy: x" in text
    weak = verdict("kmnist", word="open", detail="alone it would hold, but not")
    text = headlines.in_short("c", pd.DataFrame([verdict(), weak]))
    assert "open (alone it would hold) on KMNIST" in text


@pytest.mark.parametrize(
    ("changes", "ends", "expected", "unit"),
    [
        ({}, (0.08, 0.04, 0.12), (0.5, 0.25, 0.75), "published"),
        # What a paper's own table tells against its claim is no unit: left is against the claim.
        ({"published_effect": "-0.16"}, (-0.08, -0.12, -0.04), (-8, -12, -4), "of interest"),
        ({"published_effect": None}, (0.08, 0.04, 0.12), (8, 4, 12), "of interest"),
    ],
)
def test_effects_are_in_units_of_the_paper(changes, ends, expected, unit):
    claim = {name: value for name, value in (CLAIM | changes).items() if value is not None}
    row = pd.Series(dict(zip(("claim", "estimate", "low", "high"), ("a", *ends))))
    *values, found = headlines.relative([claim], row)
    assert values == pytest.approx(list(expected))
    assert found == unit


def test_ratios_are_relative_by_their_logarithms():
    settings = {"rule": "paired", "settings": {"expected": "lower", "ratio": True}}
    claim = CLAIM | {"test": settings, "published_effect": "x 0.25"}
    row = pd.Series({"claim": "a", "estimate": 0.5, "low": 0.25, "high": 1.0})
    assert headlines.relative([claim], row)[:3] == pytest.approx((0.5, 0.0, 1.0))
    claim["smallest_effect"] = {"size": 2.0, "why": "half"}
    against = claim | {"published_effect": "x 4"}
    assert headlines.relative([against], row)[:3] == pytest.approx((1.0, 0.0, 2.0))
    del claim["published_effect"]
    assert headlines.relative([claim], row)[:3] == pytest.approx((1.0, 0.0, 2.0))


def test_the_power_page_plans_what_is_open(claims, monkeypatch):
    frame = pd.DataFrame({"data": ["mnist"] * 3 + ["kmnist"], "network": "mlp"})
    results = Results(frame, pd.DataFrame(), {}, {"seconds": 4000.0})
    monkeypatch.setattr(power, "load_results", lambda chapter, profile: results)
    rows = [verdict(word="open", needed=12.0), verdict("kmnist", word="open")]
    found = power.power_rows(pd.DataFrame(rows), str.upper)
    assert found[0][0] == "C"
    assert found[0][-3:] == ["6 networks", "12", "50 min"]
    assert found[1][-2:] == ["no number: see the page Evidence", "–"]


def test_the_picture_draws_what_was_measured_and_what_leaves_the_axis():
    effects = [(0.5, 0.2, 0.8), (np.nan, np.nan, np.nan), (-9.0, -10.0, -8.0), (9.0, 1.0, 12.0)]
    rows = pd.DataFrame(effects, columns=["middle", "low", "high"])
    rows = rows.assign(
        paper="P", says="it rises", verdict="holds", setting="MNIST", unit="published"
    )
    rows = rows.assign(mixed=[True, False, False, False])
    figure = plots.forest(rows.assign(within=False))
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts.count("holds (not everywhere)") == 1
    markers = [line.get_marker() for line in figure.axes[0].lines]
    assert markers.count("D") == 3
    banded = plots.forest(rows.assign(within=[True, False, False, False])).axes[0].lines
    assert [line.get_marker() for line in banded].count("D") == 2
    assert [list(line.get_xdata()) for line in banded if line.get_linewidth() == 8] == [[-1, 1]]
    assert {"o", "<", ">"} <= set(markers)


def test_figures_of_methods_and_of_measures_have_what_they_are_given():
    rows = pd.DataFrame(
        {
            "profile": "laptop",
            "data": "mnist",
            "network": "mlp",
            "method": ["a", "b"] * 3,
            "value": [1.0, 2.0, 1.1, 2.1, 1.2, 2.2],
        }
    )
    figure = plots.by_method(rows, "method", "accuracy", {"b": "second", "a": "first", "c": "no"})
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == ["second", "first"]
    rows = rows.assign(alpha=range(1, 7), measure=rows["method"], panel="MNIST", line="network")
    figure = plots.key_figure(rows.assign(t=4.0), x="alpha", x_label="α", beyond="t")
    assert [axis.get_ylabel() for axis in figure.axes] == ["a", "b"]
    assert len(plots.by_method(rows[:0], "method", "accuracy", {}).axes) == 1
