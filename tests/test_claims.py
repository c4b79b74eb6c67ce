import numpy as np
import pandas as pd
import pytest

from suite import notebooks
from suite.errors import UsageError
from suite.evidence import claims
from suite.evidence.rules import NOT_TESTABLE, WORDS
from suite.evidence.scale import Setting, drop_interpolated
from suite.papers.measure import METRICS
from suite.papers.names import NAMES
from suite.paths import KEPT_RESULTS, NOTEBOOKS, ROOT, read_yaml

ALPHAS = np.logspace(2, 10, 17)
CHAPTERS = [chapter for chapter in notebooks.chapters() if claims.load_claims(chapter)]


def frame_of(values, alphas=ALPHAS, **columns):
    rows = {"data": "mnist", "network": "lenet5", "metric": "entropy", "seed": 0, "status": "done"}
    rows["profile"] = "laptop"
    return pd.DataFrame({**rows, "alpha": alphas, "value": values, **columns})


def claim(**changes):
    words = {"id": "c", "tier": "supporting", "says": "it rises", "quote": "it rises"}
    words |= {"where": "Section 1", "section": "one", "published": "rises", "unit": "network"}
    on = {"data": ["mnist"], "networks": ["lenet5"], "data_of_paper": ["mnist", "kmnist"]}
    settings = {"x": "alpha", "expected": "rise"}
    test = {"rule": "trend", "where": {"metric": "entropy"}, "settings": settings}
    size = {"size": 0.3, "why": "less is nothing"}
    return words | on | {"smallest_effect": size, "written": "2026-11-22", "test": test} | changes


def paired(**changes):
    settings = {"between": "model", "first": "a", "second": "b", "expected": "higher"}
    size = {"size": 0.01, "why": "a point"}
    test = {"rule": "paired", "settings": settings}
    return claim(**{"test": test, "smallest_effect": size} | changes)


def two_models(n, shift=1.0):
    values = np.arange(n) + np.linspace(0, 0.1, n)
    first = frame_of(values + shift, range(n), seed=range(n), model="a")
    return pd.concat([first, frame_of(np.arange(n), range(n), seed=range(n), model="b")])


RISING = frame_of(np.arange(17))
INACCURATE = pd.concat([RISING, frame_of(0.57, metric="accuracy")])
LOW = "accuracy: 0.57, expected"
ONE_PIXEL = {"profiles": ["laptop"], "why": "the map has one pixel"}
HOLDS = "holds", ""


def needing(**bounds):
    return claim(needs=[{"where": {"metric": "accuracy"}, "why": "accuracy"} | bounds])


def judge(entry, frame=RISING):
    return tuple(claims.judge([entry], frame).iloc[0][["verdict", "detail"]])


class TestJudge:
    @pytest.mark.parametrize(
        ("entry", "frame", "verdict"),
        [
            (paired(), two_models(2), (NOT_TESTABLE, "2 of at least 3 networks")),
            (paired(least_units=4), two_models(3), (NOT_TESTABLE, "3 of at least 4 networks")),
            (paired(), two_models(3), HOLDS),
            (paired(), two_models(6)[:6], ("not run", "not measured at this profile")),
            (claim(elsewhere="a time"), RISING, ("not run", "a time")),
            (claim(untestable=ONE_PIXEL), RISING, (NOT_TESTABLE, "the map has one pixel")),
            (claim(untestable=ONE_PIXEL | {"profiles": ["gpu"]}), RISING, HOLDS),
            (needing(least=0.85), INACCURATE, (NOT_TESTABLE, f"{LOW} at least 0.85")),
            (needing(some_above=0.6), INACCURATE, (NOT_TESTABLE, f"{LOW} some above 0.6")),
            (needing(least=0.85, data=["cifar10"]), INACCURATE, HOLDS),
        ],
    )
    def test_restrictions_and_preconditions(self, entry, frame, verdict):
        assert judge(entry, frame) == verdict

    def test_unmeasured_data_are_not_run(self):
        words = claims.judge([claim()], RISING).set_index("data")["verdict"]
        assert words.to_dict() == {"mnist": "holds", "kmnist": "not run"}

    def test_copy_counts_as_data_of_paper(self):
        frame = frame_of(np.arange(17), data="mnist5k")
        entry = claim(data=["mnist5k"], data_of_paper=["mnist"])
        assert list(claims.judge([entry], frame)["verdict"]) == ["holds", "not run"]
        settings = [Setting(["mnist", "mnist5k"], "lenet5")]
        assert list(claims.judge([entry], frame, settings)["verdict"]) == ["holds"]

    def test_diverged_networks_are_left_out(self):
        status = ["diverged" if index < 14 else "done" for index in range(17)]
        verdict = claims.judge([claim()], frame_of(np.arange(17.0), status=status)).iloc[0]
        assert (verdict["verdict"], verdict["n"]) == (NOT_TESTABLE, 3)

    def test_absolute_values(self):
        rows = two_models(6)
        rows = rows.assign(value=rows["value"].where(rows["model"] == "b", -9 - rows["value"]))
        absolute = paired(test=paired()["test"] | {"absolute": True})
        assert [judge(entry, rows)[0] for entry in (paired(), absolute)] == [
            "contradicted",
            "holds",
        ]

    def test_weaker_rise_needs_a_rise(self):
        settings = {"x": "alpha", "expected": "lower", "named": "MNIST"}
        test = {"rule": "trend_against", "against": {"data": "mnist"}, "settings": settings}
        weaker = claim(data=["kmnist"], data_of_paper=["kmnist"], test=test)
        falling = frame_of(-np.arange(17.0), data="kmnist")
        flat = frame_of([0.0, 1.0, 0.0, -1.0] * 4 + [0.0])
        assert judge(weaker, pd.concat([falling, RISING])) == HOLDS
        verdict, detail = judge(weaker, pd.concat([falling, flat]))
        assert verdict == NOT_TESTABLE
        assert "MNIST shows no clear rise" in detail
        assert judge(weaker, falling)[0] == "not run"


class TestNeeds:
    """A precondition is not the outcome: the rows of the test on the claimed side."""

    SETTINGS = {"between": "model", "first": "a", "second": "b", "expected": "higher"}
    TEST = {"rule": "paired", "where": {"metric": "accuracy"}, "settings": SETTINGS}

    def check(self, where, **changes):
        needs = [{"where": where, "least": 0.5, "why": "it learnt"}]
        claims.check_claims([claim(needs=needs, **changes)], "c.yml", set())

    @pytest.mark.parametrize("model", [None, "a", ["a", "b"]])
    def test_outcome_is_refused(self, model):
        where = {"metric": "accuracy"} | ({"model": model} if model else {})
        with pytest.raises(UsageError, match="needs: expected a precondition that is not the out"):
            self.check(where, test=self.TEST)

    def test_comparator_and_other_measures_are_accepted(self):
        self.check({"metric": "accuracy", "model": "b"}, test=self.TEST)
        self.check({"metric": "loss", "model": "a"}, test=self.TEST)

    def test_trend_may_need_some_rows(self):
        self.check({"metric": "entropy", "alpha": 0.0})
        with pytest.raises(UsageError, match="not the outcome"):
            self.check({"metric": "entropy"})


class TestJudgedFrame:
    SETTINGS = [Setting(["mnist", "mnist5k"], "lenet5", {}, 6, 0.99)]
    TRAINED = {"data": "mnist", "network": "lenet5", "epochs": 6}

    def row(self, trainings=(), **changes):
        frame = pd.concat([two_models(6), frame_of(0.9, metric="accuracy", model="none")])
        entry = paired(published_effect="+2", data_of_paper=["mnist"], **changes)
        entry["test"] = entry["test"] | {"where": {"metric": "entropy"}}
        verdicts = claims.judge([entry], frame, self.SETTINGS, trainings)
        assert list(verdicts) == claims.COLUMNS
        return verdicts.iloc[0]

    def test_effects_are_in_the_claimed_direction(self):
        row = self.row()
        effects = row["effect"], row["effect_of_paper"], row["smallest"]
        assert effects == (row["estimate"], 2, 0.01)
        settings = {"between": "model", "first": "a", "second": "b", "expected": "lower"}
        row = self.row(test={"rule": "paired", "settings": settings})
        assert row["effect"] == -row["estimate"] < 0
        assert row["effect_low"] < row["effect"] < row["effect_high"]
        assert row["verdict"] == "contradicted"

    def test_scale(self):
        assert self.row([self.TRAINED])["scale"] == "paper's"
        for trainings in ([self.TRAINED | {"epochs": 5}], [self.TRAINED | {"n_train": 500}], ()):
            assert self.row(trainings)["scale"] == "reduced"
        assert self.row([self.TRAINED])[["accuracy", "accuracy_of_paper"]].tolist() == [0.9, 0.99]
        trainings = [self.TRAINED, self.TRAINED | {"epochs": 2}]
        assert self.row(trainings)["scale"] == "reduced"
        assert self.row(trainings, trained={"epochs": 6})["scale"] == "paper's"

    def test_no_effect_has_its_scale(self):
        rows = two_models(6, 0.0).reset_index(drop=True)
        rows = pd.concat([rows, rows.assign(data="kmnist")], ignore_index=True)
        rows["value"] += (rows["model"] == "a") * (rows["seed"] % 2 - 0.55) / 9
        size = {"size": 0.2, "why": "it is so"}
        entry = paired(data=["mnist", "kmnist"], data_of_paper=["mnist"], smallest_effect=size)
        verdicts = claims.judge([entry], rows, self.SETTINGS)
        scales = ["at reduced scale", "on stand-in data"]
        assert verdicts["word"].tolist() == [f"no effect {scale}" for scale in scales]
        assert set(verdicts["verdict"]) == {"no effect"}
        assert claims.judge([entry], rows)["word"].tolist() == ["no effect"] * 2

    def test_looks_are_counted(self):
        assert self.row()["looks"] == 1
        assert self.row(seen="2026-11-21")["looks"] == 2
        assert self.row(looks={"mnist": 3})["looks"] == 3


class TestHolm:
    """The headlines of a paper are corrected for their number at their main panels."""

    def rows(self, data="mnist"):
        rng = np.random.default_rng(0)
        rows = two_models(12, 0).assign(data=data)
        rows.loc[rows["model"] == "a", "value"] += 0.06 + 0.2 * rng.normal(size=12)
        return rows

    def headline(self, **changes):
        data = ["mnist", "kmnist", "fashion_mnist"]
        return paired(tier="headline", data=data, data_of_paper=["mnist"], **changes)

    def test_further_panels_change_no_verdict(self):
        entry = self.headline(main={"data": "mnist", "network": "lenet5"})
        panels = pd.concat([self.rows(), self.rows("kmnist"), self.rows("fashion_mnist")])
        alone = claims.judge([entry], self.rows()).iloc[0]
        among = claims.judge([entry], panels)
        assert alone["p_holm"] == among["p_holm"][0] == alone["p"]
        assert among["main"].tolist() == [True, False, False]
        assert among["p_holm"].isna().tolist() == [False, True, True]
        assert among["verdict"].tolist() == ["holds"] * 3

    @pytest.mark.parametrize(("expected", "word"), [("higher", "holds"), ("lower", "contradicted")])
    def test_weak_headline_becomes_inconclusive(self, expected, word):
        entry = self.headline()
        entry["test"]["settings"] = entry["test"]["settings"] | {"expected": expected}
        assert judge(entry, self.rows())[0] == word
        many = claims.judge([entry | {"id": f"c{n}"} for n in range(20)], self.rows()).iloc[0]
        assert many["verdict"] == "inconclusive"
        assert many["p_holm"] == pytest.approx(min(1, 20 * many["p"]))
        assert 0.005 < many["p"] < 0.05
        assert "alone it would" in many["detail"]
        assert "but not after correction" in many["detail"]

    def test_largest_panel_replaces_missing_main(self):
        entry = self.headline(main={"data": "cifar10", "network": "resnet"})
        few = self.rows("kmnist").query("seed < 6")
        panels = pd.concat([few, self.rows("fashion_mnist")])
        verdicts = claims.judge([entry], panels).set_index("data")
        main = {"kmnist": False, "fashion_mnist": True, "mnist": False}
        assert verdicts["main"].to_dict() == main


def test_rule_on_printed_numbers():
    printed = {"model": ["a", "b"] * 4, "seed": [0, 0, 1, 1, 2, 2, 3, 3]}
    printed["value"] = [0.9, 0.8, 0.8, 0.71, 0.7, 0.6, 0.9, 0.79]
    verdict = claims.judge_printed(paired(printed=printed))
    assert verdict.word == "holds"
    assert verdict.finding.interval.n == 4
    assert claims.judge_printed(paired()) is None


BAD = {
    "tier: expected one of headline, supporting, ours, got main": {"tier": "main"},
    "expected the quantity in words, as a headline needs it": {"tier": "headline"},
    "unit: expected one of network, seed, image, scene, got model": {"unit": "model"},
    "rule: expected one of trend": {"test": {"rule": "trends"}},
    "unknown pubished": {"pubished": "rises"},
    "smallest_effect: expected a positive size, and why": {"smallest_effect": 0.3},
    "published_effect: expected text with a sign": {"published_effect": 0.16},
    r"columns: expected some of alpha, metric, got \['aplha'\]": {
        "test": {"rule": "trend", "where": {"metric": "entropy"}, "settings": {"x": "aplha"}}
    },
}


@pytest.mark.parametrize("message", BAD)
def test_invalid_claim_is_refused(message):
    with pytest.raises(UsageError, match=f"file.yml: claim 'c': {message}"):
        claims.check_claims([claim(**BAD[message])], "file.yml", {"alpha", "metric"})


def test_repeated_id_and_missing_keys():
    claims.check_claims([claim(tier="headline", quantity="entropy")], "file.yml", set())
    with pytest.raises(UsageError, match="claim 'c': two claims of that id"):
        claims.check_claims([claim(), claim()], "file.yml", set())
    with pytest.raises(UsageError, match="claim 'c': expected tier, says"):
        claims.check_claims([{"id": "c"}], "file.yml", set())


class TestFiles:
    @pytest.mark.parametrize("chapter", CHAPTERS)
    def test_claims_of_a_chapter_are_complete(self, chapter):
        files = [NOTEBOOKS / f"{chapter}.ipynb", *(ROOT / "suite" / "papers").glob("*.py")]
        code = "".join(file.read_text() for file in files).replace('\\"', '"')
        entries = claims.load_claims(chapter)
        known = METRICS.keys() | NAMES.get(chapter, {}).get("shares", [])
        for entry in entries:
            metrics = entry["test"].get("where", {}).get("metric", [])
            for metric in [metrics] if isinstance(metrics, str) else metrics:
                base = metric.removeprefix("paired_").removesuffix("_ratio").removesuffix("_early")
                assert base in known or f'"{base}"' in code, (entry["id"], metric)
                assert f'{metric.rpartition(base)[2]}"' in code, (entry["id"], metric)
            assert len(entry["says"]) <= 84, entry["id"]
            if entry["tier"] != "ours":
                assert entry["data_of_paper"], entry["id"]
        assert 3 <= sum(entry["tier"] == "headline" for entry in entries) <= 8

    def test_claims_are_few(self):
        files = [NOTEBOOKS / "claims" / f"{chapter}.yml" for chapter in CHAPTERS]
        assert sum(len(claims.load_claims(chapter)) for chapter in CHAPTERS) <= 150
        assert sum(len(file.read_text().splitlines()) for file in files) <= 3_000

    def test_history_of_rules(self):
        history = read_yaml(NOTEBOOKS / "claims" / "history.yml")
        assert {*history} == {*CHAPTERS, "all"}
        for entries in history.values():
            dates = [entry["when"] for entry in entries]
            assert dates == sorted(dates, reverse=entries is history["all"])
            assert all(entry["what"] for entry in entries)

    def test_changed_verdicts_have_a_reason(self):
        changed = pd.read_csv(KEPT_RESULTS / "verdicts_changed.csv", keep_default_na=False)
        assert set(changed["new"]) <= {*WORDS, ""}
        assert changed["reason"].str.len().min() > 10
        for (profile, chapter), rows in changed.groupby(["profile", "chapter"]):
            kept = pd.read_csv(KEPT_RESULTS / profile / f"{chapter}.verdicts.csv")
            on = ["claim", "data", "network"]
            rows = rows.merge(kept[[*on, "verdict"]], on=on, how="left")
            assert (rows["verdict"].fillna("") == rows["new"]).all()  # "" for a removed claim

    def test_published_lists_every_figure(self):
        figures = claims.load_published("gradient_regularisation")["figures"]
        assert [figure["number"] for figure in figures] == list(range(1, 20))


def test_interpolated_rows_are_dropped():
    """Rows of a chapter have "" where rows of a file have NaN."""
    for empty in ("", np.nan):
        rows = pd.DataFrame({"against": [empty, "cure"], "value": [0.9, 0.8]})
        assert drop_interpolated(rows)["value"].tolist() == [0.9]
    assert len(drop_interpolated(pd.DataFrame({"value": [0.9]}))) == 1
