import json
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

from suite.errors import UsageError
from suite.evidence import answers, quote
from suite.evidence.claims import load_claims
from suite.evidence.quote import Value
from suite.evidence.rules import NOT_RUN
from suite.evidence.statistics import Interval, mean_interval
from suite.evidence.tables import interval_text, mean_text, means, select

LAPTOP = [("laptop", 0, "none", 0.5), ("laptop", 1, "none", 0.7), ("laptop", 0, "fpn", 0.25)]
COLUMNS = ["profile", "seed", "variant", "value"]
ROWS = pd.DataFrame([*LAPTOP, ("paper", 0, "none", 1.0)], columns=COLUMNS)


def test_select_takes_values_and_lists():
    assert select(ROWS, variant="none", seed=0)["value"].tolist() == [0.5, 1.0]
    assert select(ROWS, variant=["fpn", "l1"])["value"].tolist() == [0.25]
    assert select(ROWS).equals(ROWS)
    with pytest.raises(UsageError, match="expected a column 'varient'"):
        select(ROWS, varient="none")


def test_mean_text_skips_undefined_values():
    half = mean_interval([0.5, 0.7]).high - 0.6
    assert mean_text([0.5, np.nan, 0.7]) == f"0.600 ± {half:.3f}"
    assert mean_text([0.5, 0.7], ".1f", ".2g") == f"0.6 ± {half:.2g}"
    assert mean_text([np.nan], empty="–") == "–"


def test_means_average_seeds():
    rows = pd.concat([ROWS, ROWS[:1].assign(value=0.3)]).assign(k=0.5, chosen=[True] * 4 + [False])
    mean = f"0.550 ± {mean_interval([0.4, 0.7]).high - 0.55:.3f}"
    table = means(rows, ["profile", "k"], "variant", {"none": "no part", "laptop": "small"})
    assert table.to_dict("records") == [
        {"profile": "small", "k": "0.5", "no part": mean, "fpn": "0.250", "n": "1 to 2"},
        {"profile": "paper", "k": "0.5", "no part": "1.000", "fpn": "–", "n": "1"},
    ]
    assert means(rows, ["chosen"], "variant")["chosen"].tolist() == ["yes", ""]
    assert means(rows[:0], ["k"]).values.tolist() == [["not run at the profiles that are shown"]]


def test_interval_text_without_ends():
    assert interval_text(Interval(0.5, 0.25, 0.75, 2), "+.2f") == "+0.50 [+0.25, +0.75]"
    assert interval_text(mean_interval([0.5])) == "0.5"


GAIN = Value(0.016, 0.0103, 0.0217, n=12, word="smaller than claimed")


class TestValue:
    def test_forms(self):
        for form, text in {
            "": "0.0160 [0.0103, 0.0217]",
            "%~": "1.6%",
            "times~": "0.016 times",
            ".3f": "0.016",
        }.items():
            assert (format(GAIN, form), format(Value(), form)) == (text, "not run")
        assert f"{Value(-0.0042, -0.0074, -0.0011):points}" == "−0.42 points [−0.74, −0.11]"

    def test_json_round_trip(self):
        read, missing = (Value(**json.loads(json.dumps(asdict(v)))) for v in (GAIN, Value()))
        assert read == GAIN
        assert not missing
        assert np.isnan(missing.low)


class TestSentence:
    def test_one_of_several_verdicts(self):
        words = {"g": "holds or smaller than claimed"}
        assert quote.sentence("n = {g.n}", {"g": GAIN}, words) == "n = 12"
        assert quote.sentence("it holds", {"g": Value()}, words) == "*On “g”: not run.*"

    def test_unknown_name_is_refused(self):
        for text, expects in (("{other}", {}), ("x", {"other": "holds"})):
            with pytest.raises(UsageError, match="expected some of g"):
                quote.sentence(text, {"g": GAIN}, expects)


def rows(profile="workstation", seeds=3):
    kinds = {"none": 0.0, "l1": 0.5}
    values = [(k, seed, kinds[k] + 0.1 * seed) for k in kinds for seed in range(seeds)]
    table = pd.DataFrame(values, columns=["kind", "seed", "value"])
    return table.assign(profile=profile, data="mnist")


PAIR = "kind", "l1", "none"


class TestMeans:
    def test_mean_over_seeds(self):
        twice = pd.concat([rows(), rows().assign(value=lambda r: r["value"] + 0.2)])
        value = quote.mean(twice[twice["kind"] == "none"])
        assert (value.estimate, value.n, value.on) == (pytest.approx(0.2), 3, "MNIST")
        assert not quote.mean(rows().iloc[:0])

    def test_pairs_of_seeds_or_images(self):
        value = quote.paired(rows(), *PAIR)
        assert (value.estimate, value.n) == (pytest.approx(0.5), 3)
        assert not quote.paired(rows(), "kind", "l1", "pool")
        images = rows().rename(columns={"seed": "image"}).assign(seed=0)
        assert quote.paired(images, *PAIR) == value
        assert quote.mean(images).n == quote.mean(rows()).n

    def test_unpaired_networks(self):
        table = rows().assign(seed=range(len(rows())))
        value = quote.paired(table, *PAIR, within=False)
        assert value.estimate == pytest.approx(0.5)
        assert value.low < 0.5 < value.high  # pairs of a seed have no spread here
        assert f"{value:signed~}" == "+0.5"
        assert not quote.paired(table, "kind", "l1", "pool", within=False)
        assert quote.paired(table.iloc[[0, 1, 5]], *PAIR, within=False).word == "unclear"

    @pytest.mark.parametrize(
        ("word", "values"),
        [("higher", [0.4, 0.5, 0.6]), ("lower", [-0.4, -0.5, -0.6]), ("unclear", [-0.5, 0.1, 0.6])],
    )
    def test_word_is_the_sign(self, word, values):
        assert quote.paired(rows().assign(value=[0.0] * 3 + values), *PAIR).word == word

    @pytest.mark.parametrize("best", ["workstation", "laptop+n_images=64"])
    def test_best_profile_or_own_run(self, best):
        assert quote.mean(pd.concat([rows("laptop"), rows(best, seeds=2)])).n == 2


NAME = "pgd-accuracy-rises"


@pytest.fixture(scope="module")
def verdicts(kept_verdicts):
    return kept_verdicts[kept_verdicts["chapter"] == "top_gap"]


class TestClaimValue:
    def test_main_panel(self, verdicts):
        value = answers.claim_value("top_gap", verdicts, NAME)
        main = verdicts[(verdicts["claim"] == NAME) & verdicts["main"]]
        (row,) = main[main["profile"] == "workstation"].to_dict("records")
        assert (value.estimate, value.word, value.n) == (row["estimate"], row["verdict"], row["n"])
        assert value.scale.startswith(row["scale"])

    def test_other_panel(self, verdicts):
        assert answers.claim_value("top_gap", verdicts, NAME, "fashion_mnist").on == "Fashion-MNIST"

    def test_panel_that_was_not_run(self, verdicts):
        assert not answers.claim_value("top_gap", verdicts, NAME, "cub")

    def test_unknown_claim_is_refused(self, verdicts):
        with pytest.raises(UsageError, match=NAME):
            answers.claim_value("top_gap", verdicts, "pgd-accuracy-rise")


def test_names_of_values(verdicts):
    values = answers.values_of("top_gap", verdicts)
    assert {claim["id"] for claim in load_claims("top_gap")} <= values.keys()
    assert values[f"{NAME}@cifar10-jpeg"] == values[f"{NAME}@cifar10-jpeg/top_gap"]
    assert values[NAME] == values[f"{NAME}@cifar10-jpeg-enlarged"]


class TestHeadlineCells:
    def test_row_for_each_headline(self, verdicts):
        cells = answers.headline_cells("top_gap", verdicts)
        claims = [c for c in load_claims("top_gap") if c["tier"] == "headline"]
        assert len(cells) == len(claims)
        for claim, (_, row) in zip(claims, cells.iterrows(), strict=True):
            assert f"top_gap_record.html#top-gap-{claim['id']}" in row.iloc[0]
            assert 'class="verdict' in row["Verdict and scale"]

    def test_nothing_run(self, verdicts):
        cells = answers.headline_cells("top_gap", verdicts.iloc[:0])["Verdict and scale"]
        assert cells.str.contains(NOT_RUN).all()


@pytest.mark.parametrize(
    ("claim", "text"),
    [
        ({"published_effect": "+0.517", "form": "points"}, "+51.7 points"),
        ({"published_effect": "x 0.68", "form": "times"}, "0.68 times"),
        ({"published_effect": "+0.333"}, "0.33"),
        ({"paper": "a plot"}, "a plot"),
        ({}, "no number"),
    ],
)
def test_paper_text(claim, text):
    assert answers.paper_text(claim) == text
