import math

import numpy as np
import pandas as pd
import pytest

from suite import notebooks
from suite.data import image_shape
from suite.errors import UsageError
from suite.evidence.quote import sentence
from suite.evidence.results import load_results
from suite.notebooks import source
from suite.papers import gradient_regularisation as paper
from suite.papers import gradient_regularisation_tables as tables
from suite.papers.design import panels_of
from suite.units import Measurement, Training
from tests.small_batches import n_parameters

PANEL = {"data": "mnist5k", "network": "lenet5", "epochs": 1, "n_alphas": 3}
PARAMETERS = {"panels": [PANEL], "repetitions": 2, "batch_size": 128, "alpha_min": 1e2}
PARAMETERS |= {"alpha_max": 1e6, "n_images": 4, "n_samples": 2, "map_alphas": [1e2, 2e2]}
PARAMETERS |= {"n_maps": 1, "patch": 4}


def resolve(panel):
    (parameters,) = panels_of(PARAMETERS | {"panels": [panel]}, paper.OF_PANEL)
    return parameters


def trainings(panel):
    return paper.trainings(resolve(panel))


class TestPanel:
    def test_networks_have_own_seeds(self):
        units = trainings(PANEL)
        assert [*units] == [(alpha, number) for number in (0, 1) for alpha in (1e2, 1e4, 1e6)]
        assert [unit.seed for unit in units.values()] == [*range(6)]
        later = trainings(PANEL | {"first_seed": 6}).values()
        assert [unit.seed for unit in later] == [*range(6, 12)]
        first = units[1e2, 0]
        assert (first.pixel_range, first.batch_size) == ((-1.0, 1.0), 128)
        units = paper.plan(PARAMETERS).units()
        measurements = [unit for unit in units if isinstance(unit, Measurement)]
        assert len(units) == 6 * (1 + 1 + 2 * 8) + 1
        assert [(u.metric, u.training) for u in measurements[-1:]] == [("saliency_maps", first)]
        names = [item.keep for item in paper.maps(resolve(PANEL | {"maps_of": "mnist"}))]
        assert names == [f"mnist5k|lenet5|{images}|100" for images in ("mnist5k", "mnist")]

    def test_missing_alphas_are_refused(self):
        with pytest.raises(UsageError, match="panels: expected n_alphas or paired_alphas"):
            trainings(PANEL | {"n_alphas": 0})


class TestPairedPanel:
    PANEL = {"data": "mnist5k", "network": "lenet5", "epochs": 2, "paired_alphas": [1e2, 1e6, 1e7]}

    def test_each_seed_goes_through_all_alphas(self):
        units = trainings(self.PANEL)
        assert [*units] == [(alpha, seed) for seed in (0, 1) for alpha in (1e2, 1e6, 1e7)]
        assert [unit.seed for unit in units.values()] == [0, 0, 0, 1, 1, 1]

    def test_faithfulness_of_three_maps_two_scores(self):
        items = paper.plan(PARAMETERS | {"panels": [self.PANEL], "map_alphas": []})
        units = [unit for unit in items.units() if isinstance(unit, Measurement)]
        settings = [u.settings for u in units if u.metric == "faithfulness_estimate"]
        pairs = {(s["saliency"], s["score"]) for s in settings}
        maps = ("logit_gradient", "absolute_gradient", "deeplift")
        assert pairs == {(name, score) for name in maps for score in ("confidence", "logit")}
        assert {u.metric for u in units} == paper.PAIRED.keys() - {"training_loss"}

    def test_separate_names_and_cut_offs(self):
        parts = [rows({1e2: 0.9, 1e6: 0.9, 1e7: low}) for low in (0.1, 0.9)]
        table = pd.concat([t.assign(paired=paired) for t, paired in zip(parts, (True, False))])
        derived, _ = paper.derive({}, table, {})
        cut_offs = derived.groupby("metric")["t_alpha"].unique().map(list).to_dict()
        assert cut_offs == {"accuracy": [math.inf], "paired_accuracy": [1e7]}
        alone, _ = paper.derive({}, parts[0].assign(paired=True), {})
        assert set(alone["metric"]) == {"accuracy"}  # claims are judged on them
        table = paper.prefer_paired(pd.concat([derived, rows({1e2: 0.5}, network="resnet")]))
        assert table["metric"].tolist() == ["accuracy"] * 4
        assert set(table.loc[table["network"] == "lenet5", "t_alpha"]) == {1e7}

    def test_changes_are_within_seeds(self):
        places = ["plateau", "before"]
        parts = [rows({1e2: s, 1e7: s + 0.5}).assign(seed=s, place=places) for s in range(3)]
        change = paper.change(pd.concat(parts), "before", "plateau")
        assert (change.estimate, change.low, change.n) == (0.5, 0.5, 3)


def rows(accuracies, metric="accuracy", **more):
    common = {"profile": "laptop", "data": "mnist", "network": "lenet5", "metric": metric}
    common |= {"normalised": False, "batch_size": 128, "n": 4, "saliency": "logit_gradient"} | more
    lines = [{"alpha": a, "seed": n, "value": v} for n, (a, v) in enumerate(accuracies.items())]
    return pd.DataFrame(lines).assign(**common)


class TestCutOff:
    ACCURACIES = {1e2: 0.9, 1e4: 1.0, 1e6: 0.8, 1e7: 0.7, 1e8: 0.1}

    def test_starts_at_first_low_accuracy(self):
        marked = paper.mark_cut_off(rows(self.ACCURACIES))
        assert set(marked["t_alpha"]) == {1e7}
        assert marked["over_regularised"].tolist() == [False] * 3 + [True] * 2
        assert marked["beyond_t_alpha"].tolist() == [False] * 4 + [True]
        assert marked["place"].tolist() == ["plateau", "plateau", "before", "past", "past"]
        cells = ["0.950", "0.100", "1e+07", "0.78", "1e+02", "1.3e+04"]  # times 128, and again
        assert paper.cut_offs(marked).iloc[0, 1:].tolist() == cells

    def test_not_reached(self):
        flat = paper.mark_cut_off(rows({1e2: 0.9, 1e6: 0.8}))
        assert set(flat["t_alpha"]) == {math.inf}
        assert flat["place"].tolist() == ["plateau", "between"]
        assert set(paper.cut_offs(flat).iloc[0, 3:]) == {"not reached"}

    def test_values_divided_by_plateau(self):
        shares = paper.divide_by_plateau(paper.mark_cut_off(rows(self.ACCURACIES)))
        assert shares["value"].tolist() == pytest.approx([0.9 / 0.95, 1 / 0.95, 0.8 / 0.95])
        assert set(shares["line"]) == {"MNIST, LeNet-5"}


class TestFaithfulness:
    """Estimates that fall in the printed sign, and so rise in that of Quantus."""

    def table(self):
        values = {10.0**k: -0.1 * k for k in range(2, 9)}
        parts = [
            rows({a: sign * v for a, v in values.items()}, "faithfulness_estimate", **reading)
            for score in paper.SCORES
            for changed, sign in (("pixels", 1), ("squares", -1))
            for reading in [{"score": score, "changed": changed}]
        ]
        accuracy = rows(dict.fromkeys(values, 0.9) | {1e7: 0.5, 1e8: 0.1})
        return paper.mark_cut_off(pd.concat([accuracy, *parts]))

    def test_size_table_has_both_signs(self):
        table = paper.tabulate(paper.faithfulness(self.table())).set_index("map")
        gradient, printed = "gradient, sign of Quantus", "gradient, printed sign"
        assert table.loc[gradient, "α < 10⁵"].startswith("0.30 ± ")
        assert table.loc[printed, "before the cut-off"] == "−0.60"
        assert [table.loc[n, "change"][:4] for n in (gradient, printed)] == ["+0.3", "−0.3"]
        assert set(table.loc["absolute gradient"]) == {"all", "not run"}


@pytest.fixture(scope="module")
def kept():
    frame = load_results("gradient_regularisation", "workstation").frame
    return frame[frame["status"] == "done"]


class TestRecord:
    def test_sentences_hold_for_kept_results(self, kept):
        values = {"within": tables.verdicts(tables.trends(kept, "seeds"))}
        values |= {"depends": tables.compare_changes(kept)}
        values |= {"best": {"gain": tables.best_alpha_gain(kept)}}
        for name, given in values.items():
            assert "this run" not in sentence(**paper.NAMED["say"][name], values=given)

    def test_readings_agree_unless_a_strength_is_wrong(self, monkeypatch):
        table = paper.mark_cut_off(rows({1e2: 0.9, 1e6: 0.8, 1e7: 0.1}))
        lines = tables.readings(table)
        assert set(lines["agrees"]) == {"yes"}
        assert lines.iloc[:, -1].tolist() == ["0.78", "1e+02", "1.3e+04", "1e+07"]
        monkeypatch.setattr(paper, "strength", lambda alpha, data, size: alpha / (size * 784))
        assert tables.readings(table)["agrees"].tolist() == ["yes"] * 3 + ["no"]

    def test_trends_under_both_exclusions(self):
        table = rows({10.0**k: k if k < 7 else -4 for k in range(2, 9)}, "entropy", score="logit")
        table = table.assign(over_regularised=table["alpha"] > 9e6, changed="pixels")
        table = table.assign(beyond_t_alpha=table["alpha"] > 9e7)
        line = tables.trends(table, "networks").iloc[0].tolist()
        assert line[2:5] == ["+1.00 (0.017)", "+0.76 (0.017)", "+1.00 (0.017)"]  # 2 of 120 orders
        assert line[5:] == ["[+0.13, +1.00]", 5, "rises"]
        assert tables.trends(table, "networks", "beyond_t_alpha").iloc[0, 4] == "+0.14 (0.8)"

    def test_trends_within_seeds(self):
        signs, common = (1, 1, 1, -1), {"score": "logit", "over_regularised": False}
        parts = [
            rows({10.0**k: -sign * k for k in range(6)}, metric, **common).assign(seed=seed)
            for seed, sign in enumerate(signs)
            for metric in ("paired_faithfulness_estimate", "paired_max_sensitivity")
        ]
        lines = tables.trends(pd.concat(parts), "seeds")
        assert lines["metric"].tolist() == ["faithfulness (logit), gradient", "max-sensitivity"]
        assert lines["Spearman"].str[:5].tolist() == ["+0.50", "−0.50"]  # sign of Quantus
        assert lines["seeds that fall"].tolist() == ["3", "0, 1, 2"]
        words = [value.word for value in tables.verdicts(lines).values()]
        assert (words[0], words[1], words[6]) == ("rises", "not run", "falls")

    def test_digits_compared_with_items(self):
        parts = []
        for data, before in (("mnist", 1), ("fashion_mnist", 2)):
            values = {1e2: 4, 1e3: 4, 5e6: before, 1e7: before, 1e8: 0}
            accuracies = rows({1e2: 1, 1e3: 1, 5e6: 0.9, 1e7: 0.9, 1e8: 0.1}, data=data)
            parts += [accuracies, rows(values, "max_sensitivity", data=data)]
        table = tables.compare_with_items(pd.concat(parts))
        table = table[table["measure"] == "max-sensitivity, gradient"].to_numpy()[:, 2:].tolist()
        assert table[0] == ["0.25 [0.25, 0.25]", "0.50 [0.50, 0.50]", "2.00 [2.00, 2.00]"]
        assert table[1] == ["not run"] * 3  # none before the cut-off keeps 95%

    def test_kept_comparison_supports_the_record(self, kept):
        table = tables.compare_with_items(kept)
        high = table.set_index([*table.columns[:2]]).iloc[:, -1].str.extract(r", ([\d.]+)\]")[0]
        of_gradient = [name for name in paper.NAMED["steady"] if name.endswith("gradient")]
        assert (high["80%"][["accuracy", *of_gradient]].astype(float) < 1).all()
        assert float(high["95%"][of_gradient[0]]) > 1

    def test_best_alpha_is_chosen_by_other_seeds(self):
        levels = {1: 0, 5: 0.1, 7: 0, 9: 0}  # and each seed is best at an α of its own
        parts = [rows(levels | {a: 0.3}, "paired_accuracy").assign(seed=a) for a in (5, 7, 9)]
        gain = tables.best_alpha_gain(pd.concat(parts))
        assert (gain.estimate, gain.n, gain.word) == (pytest.approx(0.2 / 3), 3, "unclear")
        assert not tables.best_alpha_gain(parts[0])

    def test_faithfulness_changes_more_in_other_networks(self):
        networks, labels = ("lenet5", "resnet"), {"score": "logit", "changed": "pixels"}
        parts = [rows({1e2: 1, 5e6: 0.9, 1e7: 0.9, 1e8: 0.1}, network=n) for n in networks]
        for network, rise in zip(networks, (0.1, 0.5)):
            values = {1e2: 0, 1e3: 0, 5e6: -rise, 1e7: -rise}
            labels |= {"network": network, "saliency": "deeplift"}
            parts += [rows(values, "faithfulness_estimate", **labels)]
        values = tables.compare_changes(paper.mark_cut_off(pd.concat(parts)))
        assert values["DeepLIFT, resnet, logit"].estimate == pytest.approx(0.4)
        assert not values["DeepLIFT, fashion, logit"]

    def test_likeness_ignores_sign(self):
        image = np.array([[0.0, 1], [0, 1]])[None, None].repeat(2, 0)
        values = tables.likeness(image, {"α = 1": image.swapaxes(2, 3), "α = 2": -image})
        assert [values[end].estimate for end in ("low", "high", "gap")] == pytest.approx([0, 1, 1])


def test_network_sizes_match_the_page():
    values = notebooks.profiles("gradient_regularisation")["workstation"]
    units = notebooks.units_of("gradient_regularisation", values)
    counts = {}
    for t in (unit for unit in units if isinstance(unit, Training)):
        if t.network == "resnet" and t.data not in counts:
            count = n_parameters("resnet", image_shape(t.data), **t.network_options)
            counts[t.data] = round(count, -3)
    text = source("gradient_regularisation").read_text()
    for count, name in zip(sorted(counts.values()), ("MNIST", "CIFAR-10", "Imagenette")):
        assert f"{count:,} ({name})" in text
