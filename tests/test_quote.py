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
    def test_forms(self):
        for form, text in {
            "": "0.0160 [0.0103, 0.0217]",
            "points": "+1.60 points [+1.03, +2.17]",
            "points~": "+1.6 points",
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
    def test_values_are_put_in(self):
        text = quote.sentence("gain {g:points~}, n = {g.n}", {"g": GAIN}, {})
        assert text == "gain +1.6 points, n = 12"

    def test_another_verdict_takes_its_place(self):
        for words in ("smaller than claimed", "holds or smaller than claimed"):
            assert quote.sentence("it gains", {"g": GAIN}, {"g": words}) == "it gains"
        text = quote.sentence("it holds", {"g": GAIN}, {"g": "holds"})
        assert "written for “holds”" in text
        assert "“smaller than claimed”" in text
        assert "it holds" not in text
        assert quote.sentence("it holds", {"g": Value()}, {"g": "holds"}) == "*On “g”: not run.*"

    def test_unknown_name_is_refused(self):
        for text, expects in (("{other}", {}), ("x", {"other": "holds"})):
            with pytest.raises(UsageError, match="expected some of g"):
                quote.sentence(text, {"g": GAIN}, expects)


def rows(profile="workstation", seeds=3):
    kinds = {"none": 0.0, "l1": 0.5}
    lines = [(kind, seed, kinds[kind] + 0.1 * seed) for kind in kinds for seed in range(seeds)]
    table = pd.DataFrame(lines, columns=["kind", "seed", "value"])
    return table.assign(profile=profile, data="mnist")


class TestMeans:
    def test_mean_over_seeds(self):
        twice = pd.concat([rows(), rows().assign(value=lambda r: r["value"] + 0.2)])
        value = quote.mean(twice[twice["kind"] == "none"])
        assert (value.estimate, value.n, value.on) == (pytest.approx(0.2), 3, "MNIST")
        assert not quote.mean(rows().iloc[:0])

    def test_pairs_of_a_seed_or_of_an_image(self):
        pair = "kind", "l1", "none"
        value = quote.paired(rows(), *pair)
        assert (value.estimate, value.n) == (pytest.approx(0.5), 3)
        assert not quote.paired(rows(), "kind", "l1", "pool")
        of_images = rows().rename(columns={"seed": "image"}).assign(seed=0)
        assert quote.paired(of_images, *pair) == value
        assert quote.mean(of_images).n == quote.mean(rows()).n

    def test_networks_of_their_own(self):
        table = rows().assign(seed=range(len(rows())))
        value = quote.unpaired(table, "kind", "l1", "none")
        assert value.estimate == pytest.approx(0.5)
        assert value.low < 0.5 < value.high  # pairs of a seed have no spread here
        assert f"{value:signed~}" == "+0.5"
        assert not quote.unpaired(table, "kind", "l1", "pool")

    def test_the_word_is_the_sign_of_the_interval(self):
        words = {"higher": [0.4, 0.5, 0.6], "lower": [-0.4, -0.5, -0.6]}
        words |= {"unclear": [-0.5, 0.1, 0.6]}
        for word, values in words.items():
            table = rows().assign(value=[0.0] * 3 + values)
            assert quote.paired(table, "kind", "l1", "none").word == word

    def test_own_run_goes_before_the_best_profile(self):
        both = pd.concat([rows("laptop"), rows("workstation", seeds=2)])
        assert quote.mean(both[both["kind"] == "l1"]).profile == "workstation"
        both = pd.concat([rows("workstation"), rows("laptop+n_images=64")])
        assert quote.mean(both).profile == "laptop+n_images=64"
