"""Headlines: one row a claim, what stands in it, and its effect in units of the paper."""

import numpy as np
import pandas as pd
import pytest

from suite import plots
from suite.evidence import headlines, report, scale
from suite.store import Record

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
    "main": {"data": "mnist", "network": "mlp"},
    "test": {"rule": "paired", "settings": {"expected": "higher"}},
}
OTHER = CLAIM | {"id": "b", "says": "nothing ran"}


def verdict(data="mnist", profile="workstation", word="holds", **changes):
    numbers = {"estimate": 0.08, "low": 0.04, "high": 0.12, "n": 6, "p": 0.01, "p_holm": 0.02}
    about = {"chapter": "c", "claim": "a", "data": data, "network": "mlp", "profile": profile}
    about |= {"verdict": word, "detail": "", "statistic": "x − y", "needed": np.nan}
    about |= {"main": data == "mnist", "tier": "headline", "scale": "reduced", "looks": 1}
    about |= {"word": word, "unit": "network", "within": False, "accuracy": 0.81}
    about |= {"effect": 0.08, "effect_low": 0.04, "effect_high": 0.12, "effect_of_paper": 0.16}
    about |= {"smallest": 0.01, "published_effect": 0.16, "accuracy_of_paper": 0.95}
    return about | numbers | changes


@pytest.fixture
def claims(monkeypatch):
    for module in (headlines, report):
        monkeypatch.setattr(module, "load_claims", lambda chapter: [CLAIM, OTHER])


def test_a_claim_is_shown_at_the_best_profile_that_ran(claims):
    rows = [
        verdict(profile="laptop", word="contradicted"),
        verdict(profile="workstation"),
        verdict(profile="paper", word="not run"),
    ]
    best = report.best_profile(pd.DataFrame(rows))
    assert best[["profile", "verdict"]].to_numpy().tolist() == [["workstation", "holds"]]


def test_a_headline_is_its_main_panel_and_further_panels_change_nothing(claims):
    rows = [verdict("fashion_mnist", word="contradicted", n=60), verdict("mnist")]
    found = headlines.headlines("c", pd.DataFrame(rows))
    assert found["data"].tolist() == ["mnist", ""]
    assert found["verdict"].tolist() == ["holds", "not run"]
    assert found["scale"].tolist() == ["reduced", ""]


def test_in_short_has_claim_paper_here_verdict_and_scale(claims):
    rows = [verdict(detail="smaller than published", looks=3), verdict("kmnist")]
    text = headlines.in_short("c", pd.DataFrame(rows), {})
    assert text.splitlines()[2] == "Of 2 headline claims: at reduced scale 1 holds; 1 not run."
    assert (
        "| accuracy rises | by 0.16 | test accuracy: x − y: 0.080 [0.040, 0.120], p = 0.01, n = 6; "
        "MNIST; accuracy 0.81 (paper: 0.95); smaller than published, looked at 3 times "
        "| **holds** | reduced |"
    ) in text
    assert "| nothing ran | by 0.16 |  | **not run** |  |" in text
    assert "kmnist" not in text.lower()


def test_in_short_says_on_what_and_what_to_take_from_it(claims, monkeypatch):
    advice = [{"claim": CLAIM["id"], "holds": "Take it.", "else": "No."}]
    advice += [{"claim": "z", "inconclusive": "Nor more."}]
    words = {"names": {}, "advice": advice, "scale": "Two networks."}
    monkeypatch.setattr(headlines, "load_words", lambda chapter: words)
    training = {"data": "mnist", "network": "mlp", "epochs": 4, "n_train": 500}
    text = headlines.in_short("c", pd.DataFrame([verdict()]), {"workstation": [training]})
    here = "MLP, 4 epochs on 500 training images."
    assert f"*Measured on* MNIST (70,000 digits, 28 x 28), {here}" in text
    assert "*In the paper:* Two networks." in text
    assert text.splitlines()[4] == "**What to take from it:** Take it."
    other = verdict(claim="z", word="inconclusive", n=9, low=0.01)
    text = headlines.in_short("c", pd.DataFrame([verdict(), other]), {})
    assert "- Nor more (MNIST, x minus y: 0.080 [0.010, 0.120], n = 9)." in text.splitlines()
    text = headlines.in_short("c", pd.DataFrame([verdict(word="inconclusive")]), {})
    assert "**What to take from it:** No." in text


def test_a_tally_never_adds_scales_up():
    rows = [("holds", "reduced"), ("holds", "stand-in"), ("no effect", "stand-in")]
    rows = pd.DataFrame([*rows, ("not run", "")], columns=["verdict", "scale"])
    assert headlines.tally(rows, "the papers’ ") == (
        "Of the papers’ 4 headline claims: at reduced scale 1 holds; "
        "on stand-in data 1 holds, 1 no effect; 1 not run."
    )


class TestScale:
    TRAINING = {"data": "cifar10-jpeg", "network": "resnet", "epochs": 9, "seed": 0}
    OPTIONS = {"blocks": [1, 2], "backbone_options": {"stem": "s"}}

    def test_trainings_are_described_the_longest_first(self):
        plain = self.TRAINING | {"network_options": self.OPTIONS | {"width": 4}}
        crops = {"epochs": 3, "crop_padding": 4, "network_options": self.OPTIONS | {"width": 8}}
        cropped = [self.TRAINING | crops, self.TRAINING | crops | {"epochs": 5, "n_train": 2560}]
        where = {"data": "cifar10-jpeg-cropped", "network": "resnet"}
        said = scale.described(where, [plain, *cropped])
        assert said.endswith(
            "ResNet (blocks 1 + 2, width 8), 5 epochs on 2,560 training images, "
            "3 epochs on all training images"
        )
        said = scale.described(where | {"data": "cifar10-jpeg"}, [plain, *cropped])
        assert said.endswith("(blocks 1 + 2, width 4), 9 epochs on all training images")

    def test_networks_without_data_have_their_name(self):
        where = {"data": "initialisation", "network": "resnet"}
        assert scale.described(where, []) == "initialisation, ResNet"

    def test_all_images_are_more_than_any_number(self):
        trainings = [self.TRAINING, self.TRAINING | {"n_train": 2560}]
        said = scale.described({"data": "cifar10-jpeg", "network": "resnet"}, trainings)
        assert said.endswith("9 epochs on all training images, 9 epochs on 2,560 training images")

    def test_each_network_is_counted_once_with_its_accuracy(self):
        early = self.TRAINING | {"epochs": 2, "cosine_epochs": 9}
        last = self.TRAINING | {"cosine_epochs": 9}
        units = [
            *({"metric": name, "training": last} for name in ("accuracy", "tv")),
            {"metric": "accuracy", "training": early},
            early,
            last,
            {"metric": "tv", "training": last | {"seed": 1}},
        ]
        values = [0.9, 0.1, 0.4, None, None, 0.2]
        records = [Record(u, "done", {"mean": v}, {}) for u, v in zip(units, values)]
        found = scale.trainings_of(records)
        assert [(t["seed"], t["epochs"], t.get("accuracy")) for t in found] == [
            (0, 9, 0.9),
            (1, 9, None),
        ]

    @pytest.mark.parametrize(
        ("training", "met"),
        [
            ({"epochs": 9, "network_options": {"width": 64}}, True),
            ({"epochs": 9}, True),  # by default the network is as large
            ({"epochs": 9, "network_options": {"backbone_options": {"width": 64}}}, True),
            ({"epochs": 8}, False),
            ({"epochs": 9, "n_train": 5000}, False),
            ({"epochs": 9, "network_options": {"width": 16}}, False),
            ({"epochs": 9, "network_options": {"blocks": [1, 1]}}, False),
        ],
    )
    def test_a_setting_is_met_by_size_length_and_images(self, training, met):
        options = {"blocks": [2, 2, 2, 2], "width": 64}
        setting = scale.Setting(["cifar10"], "resnet", options, epochs=9)
        assert setting.met_by(training) == met


def test_in_short_says_why_something_is_not_testable(claims):
    nothing = dict.fromkeys(("estimate", "low", "high", "p"), np.nan) | {"n": 0}
    row = verdict(word="not testable here", detail="accuracy: 0.5", **nothing)
    text = headlines.in_short("c", pd.DataFrame([row]), {})
    assert "| accuracy: 0.5; MNIST; accuracy 0.81 (paper: 0.95) | **not testable here** |" in text
    row = verdict(word="inconclusive", needed=31.0)
    text = headlines.in_short("c", pd.DataFrame([row]), {})
    assert "; about 31 networks would settle it | **inconclusive** | reduced |" in text


@pytest.mark.parametrize(
    ("changes", "expected", "unit"),
    [
        ({}, (0.5, 0.25, 0.75), "published"),
        # What a paper's own table tells against its claim is no unit: left is against the claim.
        ({"effect_of_paper": -0.16}, (8, 4, 12), "of interest"),
        ({"effect_of_paper": np.nan}, (8, 4, 12), "of interest"),
        ({"within": True, "smallest": 0.16}, (0.5, 0.25, 0.75), "of interest"),
    ],
)
def test_effects_are_in_units_of_the_paper(changes, expected, unit):
    *values, found = headlines.relative(pd.Series(verdict(**changes)))
    assert values == pytest.approx(list(expected))
    assert found == unit


def test_the_picture_draws_what_was_measured_and_what_leaves_the_axis():
    effects = [(0.5, 0.2, 0.8), (np.nan, np.nan, np.nan), (-9.0, -10.0, -8.0), (9.0, 1.0, 12.0)]
    rows = pd.DataFrame(effects, columns=["middle", "low", "high"])
    rows = rows.assign(
        paper="P", says="it rises", verdict="holds", setting="MNIST", unit="published"
    )
    rows = rows.assign(word=["no effect at reduced scale", *["holds"] * 3])
    figure = plots.forest(rows.assign(within=False))
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts.count("no effect at reduced scale") == 1
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
