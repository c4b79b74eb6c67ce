"""Values that prose takes, and sentences that know the verdict they were written for."""

import json
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

from suite.errors import UsageError
from suite.evidence import quote
from suite.evidence.quote import Value

GAIN = Value(0.016, 0.0103, 0.0217, n=12, word="smaller than claimed")


class TestValue:
    @pytest.mark.parametrize(
        ("form", "text"),
        [
            ("", "0.0160 [0.0103, 0.0217]"),
            ("points", "+1.60 points [+1.03, +2.17]"),
            ("points~", "+1.6 points"),
            ("%~", "1.6%"),
            ("times~", "0.016 times"),
            (".3f", "0.016"),
        ],
    )
    def test_forms(self, form, text):
        assert format(GAIN, form) == text

    def test_negative_numbers_have_a_minus(self):
        assert f"{Value(-0.0042, -0.0074, -0.0011):points}" == "−0.42 points [−0.74, −0.11]"

    @pytest.mark.parametrize("form", ["", "points", "%~", ".2f"])
    def test_missing_value_says_so(self, form):
        assert format(Value(), form) == "not run"

    def test_json_round_trip(self):
        values = {"a": GAIN, "b": Value()}
        read = {name: Value(**entry) for name, entry in encoded(values).items()}
        assert read["a"] == GAIN
        assert not read["b"]
        assert np.isnan(read["b"].low)


def encoded(values):
    return json.loads(json.dumps({name: asdict(value) for name, value in values.items()}))


class TestSentence:
    def test_values_are_put_in(self):
        text = quote.sentence("gain {g:points~}, n = {g.n}", {"g": GAIN}, {})
        assert text == "gain +1.6 points, n = 12"

    @pytest.mark.parametrize("words", ["smaller than claimed", "holds or smaller than claimed"])
    def test_expected_verdict(self, words):
        assert quote.sentence("it gains", {"g": GAIN}, {"g": words}) == "it gains"

    def test_other_verdict_takes_its_place(self):
        text = quote.sentence("it holds", {"g": GAIN}, {"g": "holds"})
        assert "written for “holds”" in text
        assert "“smaller than claimed”" in text
        assert "it holds" not in text

    def test_missing_verdict_is_not_run(self):
        assert quote.sentence("it holds", {"g": Value()}, {"g": "holds"}) == "*On “g”: not run.*"

    @pytest.mark.parametrize(("text", "expects"), [("{other}", {}), ("x", {"other": "holds"})])
    def test_unknown_name_is_refused(self, text, expects):
        with pytest.raises(UsageError, match="expected some of g"):
            quote.sentence(text, {"g": GAIN}, expects)


def rows(profile="workstation", seeds=3):
    kinds = {"none": 0.0, "l1": 0.5}
    return pd.DataFrame(
        [
            {"kind": kind, "seed": seed, "value": base + 0.1 * seed}
            for kind, base in kinds.items()
            for seed in range(seeds)
        ]
    ).assign(profile=profile, data="mnist")


class TestMeans:
    def test_mean_over_seeds(self):
        twice = pd.concat([rows(), rows().assign(value=lambda r: r["value"] + 0.2)])
        value = quote.mean(twice[twice["kind"] == "none"])
        assert value.n == 3
        assert value.estimate == pytest.approx(0.2)
        assert value.on == "MNIST"

    def test_images_stand_where_there_are_no_seeds(self):
        of_images = rows().rename(columns={"seed": "image"}).assign(seed=0)
        assert quote.mean(of_images).n == quote.mean(rows()).n
        pair = "kind", "l1", "none"
        assert quote.paired(of_images, *pair) == quote.paired(rows(), *pair)

    def test_pairs_of_a_seed(self):
        value = quote.paired(rows(), "kind", "l1", "none")
        assert (value.estimate, value.n) == (pytest.approx(0.5), 3)

    def test_networks_of_their_own(self):
        table = rows().assign(seed=range(len(rows())))
        value = quote.unpaired(table, "kind", "l1", "none")
        assert value.estimate == pytest.approx(0.5)
        assert value.low < 0.5 < value.high  # pairs of a seed have no spread here
        assert f"{value:signed~}" == "+0.5"
        assert not quote.unpaired(table, "kind", "l1", "pool")

    @pytest.mark.parametrize(
        ("values", "word"),
        [([0.4, 0.5, 0.6], "higher"), ([-0.4, -0.5, -0.6], "lower"), ([-0.5, 0.1, 0.6], "unclear")],
    )
    def test_the_word_is_the_sign_of_the_interval(self, values, word):
        table = rows()
        table.loc[table["kind"] == "l1", "value"] = values
        table.loc[table["kind"] == "none", "value"] = 0.0
        assert quote.paired(table, "kind", "l1", "none").word == word

    def test_nothing_measured(self):
        assert not quote.mean(rows().iloc[:0])
        assert not quote.paired(rows(), "kind", "l1", "pool")

    def test_best_profile_wins(self):
        both = pd.concat([rows("laptop"), rows("workstation", seeds=2)])
        assert quote.mean(both[both["kind"] == "l1"]).profile == "workstation"

    def test_own_run_goes_before_profiles(self):
        both = pd.concat([rows("workstation"), rows("laptop+n_images=64")])
        assert quote.mean(both).profile == "laptop+n_images=64"
