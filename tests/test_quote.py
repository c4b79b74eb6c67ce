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
