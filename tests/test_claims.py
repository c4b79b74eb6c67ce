"""Claims: their format, and what is made of rows."""

import copy

import numpy as np
import pandas as pd
import pytest

from suite import notebooks
from suite.errors import UsageError
from suite.evidence import claims
from suite.evidence.rules import CANNOT, RULES
from suite.papers.measure import METRICS
from suite.paths import NOTEBOOKS, ROOT

ALPHAS = np.logspace(2, 10, 17)
CHAPTERS = [chapter for chapter in notebooks.chapters() if claims.load_claims(chapter)]


def frame_of(values, alphas=ALPHAS, **columns):
    rows = {"data": "mnist", "network": "lenet5", "metric": "entropy", "seed": 0, "status": "done"}
    rows["profile"] = "laptop"
    return pd.DataFrame({**rows, "alpha": alphas, "value": values, **columns})


def claim(**changes):
    return {
        "id": "c",
        "tier": "supporting",
        "says": "it rises",
        "quote": "it rises",
        "where": "Section 1",
        "section": "one",
        "published": "rises",
        "unit": "network",
        "smallest_effect": {"size": 0.3, "why": "less is nothing"},
        "data": ["mnist"],
        "networks": ["lenet5"],
        "data_of_paper": ["mnist", "kmnist"],
        "stands_for": {},
        "written": "2026-11-22",
        "test": {
            "rule": "trend",
            "where": {"metric": "entropy"},
            "settings": {"x": "alpha", "expected": "rise"},
        },
    } | changes


def paired(**changes):
    settings = {"between": "model", "first": "a", "second": "b", "expected": "higher"}
    size = {"size": 0.01, "why": "a point"}
    test = {"rule": "paired", "settings": settings}
    return claim(**{"test": test, "smallest_effect": size} | changes)


def two_models(n, shift=1.0):
    values = np.arange(n) + np.linspace(0, 0.1, n)
    first = frame_of(values + shift, range(n), seed=range(n), model="a")
    return pd.concat([first, frame_of(np.arange(n), range(n), seed=range(n), model="b")])


def words(found):
    return list(zip(found["data"], found["verdict"], strict=True))


@pytest.mark.parametrize(
    "advice", [{"claim": "another", "else": "Do."}, {"claim": "c", "perhaps": "Do."}]
)
def test_advice_is_for_claims_and_words_that_there_are(advice):
    claims.check_advice([{"claim": "c", "holds": "Do.", "else": "Wait."}], [claim()], "c.yml")
    with pytest.raises(UsageError, match=r"c\.yml: advice"):
        claims.check_advice([advice], [claim()], "c.yml")


def test_a_headline_names_its_quantity():
    headline = claim(tier="headline")
    with pytest.raises(UsageError, match="expected the quantity in words"):
        claims.check_claims([headline], "c.yml", set())
    claims.check_claims([headline | {"quantity": "entropy"}], "c.yml", set())


def test_judge_decides_what_was_run_and_lists_what_was_not():
    verdicts = claims.judge([claim()], frame_of(np.arange(17)))
    assert words(verdicts) == [("mnist", "holds"), ("kmnist", "not run")]


def test_judge_counts_a_data_set_that_stands_for_another():
    frame = frame_of(np.arange(17), data="mnist5k")
    stands = claim(data=["mnist5k"], stands_for={"mnist": ["mnist5k"]}, data_of_paper=["mnist"])
    assert list(claims.judge([stands], frame)["verdict"]) == ["holds"]


def test_judge_leaves_out_diverged_models():
    status = ["diverged" if index < 14 else "done" for index in range(17)]
    verdict = claims.judge([claim()], frame_of(np.arange(17.0), status=status)).iloc[0]
    assert (verdict["verdict"], verdict["n"]) == ("cannot be measured here", 3)


def test_a_mean_of_fewer_than_three_networks_decides_nothing():
    few, enough = (claims.judge([paired()], two_models(n)).iloc[0] for n in (2, 3))
    assert (few["verdict"], few["detail"]) == (CANNOT, "2 of at least 3 networks")
    asked = claims.judge([paired(least_units=4)], two_models(3)).iloc[0]
    assert (asked["verdict"], asked["detail"]) == (CANNOT, "3 of at least 4 networks")
    assert enough["verdict"] == "holds"


def test_sizes_may_be_compared_whatever_their_sign():
    rows = two_models(6)
    rows = rows.assign(value=rows["value"].where(rows["model"] == "b", -9 - rows["value"]))
    signed, sized = paired(), paired()
    sized["test"] = sized["test"] | {"absolute": True}
    verdicts = [claims.judge([one], rows).iloc[0]["verdict"] for one in (signed, sized)]
    assert verdicts == ["opposite", "holds"]


def test_a_weaker_rise_needs_a_rise_that_could_be_missing():
    weaker = claim(data=["kmnist"], data_of_paper=["kmnist"])
    weaker["test"] = {
        "rule": "stronger_trend",
        "against": {"data": "mnist"},
        "settings": {"x": "alpha", "expected": "lower", "named": "MNIST"},
    }
    falling = frame_of(-np.arange(17.0), data="kmnist")
    rising, flat = frame_of(np.arange(17.0)), frame_of([0.0, 1.0, 0.0, -1.0] * 4 + [0.0])
    verdicts = [
        claims.judge([weaker], pd.concat([falling, reference])).iloc[0]
        for reference in (rising, flat)
    ]
    assert [verdict["verdict"] for verdict in verdicts] == ["holds", CANNOT]
    assert "MNIST shows no clear rise" in verdicts[1]["detail"]


def test_a_side_that_was_not_measured_is_not_run():
    rows = two_models(6)
    verdict = claims.judge([paired()], rows[rows["model"] == "a"]).iloc[0]
    assert (verdict["verdict"], verdict["detail"]) == ("not run", "not measured at this profile")


def test_a_precondition_that_fails_says_which_and_by_how_much():
    why = "clean accuracy of the networks"
    needs = [{"where": {"metric": "accuracy"}, "least": 0.85, "why": why}]
    rows = pd.concat([frame_of(np.arange(17)), frame_of(0.57, metric="accuracy")])
    verdict = claims.judge([claim(needs=needs)], rows).iloc[0]
    assert verdict["verdict"] == "cannot be measured here"
    assert verdict["detail"] == f"{why}: 0.57, expected at least 0.85"
    elsewhere = [needs[0] | {"data": ["cifar10"]}]
    assert claims.judge([claim(needs=elsewhere)], rows).iloc[0]["verdict"] == "holds"
    floor = [{"where": {"metric": "accuracy"}, "some_above": 0.6, "why": "the floor"}]
    verdict = claims.judge([claim(needs=floor)], rows).iloc[0]
    assert verdict["detail"] == "the floor: 0.57, expected some above 0.6"


def test_what_is_withdrawn_has_no_other_word():
    wrong = {"profiles": ["laptop"], "why": "the map has one pixel"}
    verdict = claims.judge([claim(withdrawn=wrong)], frame_of(np.arange(17))).iloc[0]
    assert verdict["verdict"] == "withdrawn"
    assert verdict["detail"].endswith("cannot decide it: the map has one pixel")
    elsewhere = claim(withdrawn=wrong | {"profiles": ["workstation"]})
    assert claims.judge([elsewhere], frame_of(np.arange(17))).iloc[0]["verdict"] == "holds"


def test_times_are_left_to_the_benchmarks():
    verdict = claims.judge([claim(unit="timing")], frame_of(np.arange(17))).iloc[0]
    assert (verdict["verdict"], verdict["detail"]) == ("not run", "a time: the benchmarks decide")


def test_headlines_are_adjusted_for_their_number():
    one = paired(tier="headline", data_of_paper=["mnist"])
    rng = np.random.default_rng(0)
    rows = two_models(12, 0)
    rows.loc[rows["model"] == "a", "value"] += 0.06 + 0.2 * rng.normal(size=12)
    alone = claims.judge([one], rows).iloc[0]
    assert alone["verdict"] == "holds"
    assert 0.005 < alone["p"] == alone["p_holm"] < 0.05
    many = claims.judge([one | {"id": f"c{n}"} for n in range(20)], rows).iloc[0]
    assert many["p_holm"] == pytest.approx(min(1, 20 * alone["p"]))
    assert many["verdict"] == "open"
    assert "alone it would hold, but not after" in many["detail"]


def test_trends_are_compared_with_another_data_set():
    test = {
        "rule": "stronger_trend",
        "where": {"metric": "entropy"},
        "against": {"data": "mnist"},
        "settings": {"x": "alpha", "expected": "lower", "named": "MNIST"},
    }
    about = claim(data=["cifar10"], data_of_paper=["cifar10"], test=test)
    falling = frame_of(-np.arange(17.0), data="cifar10")
    both = pd.concat([frame_of(np.arange(17.0)), falling])
    assert list(claims.judge([about], both)["verdict"]) == ["holds"]
    assert list(claims.judge([about], falling)["verdict"]) == ["not run"]


def test_a_rule_runs_on_the_numbers_that_the_paper_prints():
    printed = {"model": ["a", "b"] * 4, "seed": [0, 0, 1, 1, 2, 2, 3, 3]}
    printed["value"] = [0.9, 0.8, 0.8, 0.71, 0.7, 0.6, 0.9, 0.79]
    verdict, finding = claims.on_printed_numbers(paired(printed=printed))
    assert verdict.word == "holds"
    assert finding.interval.n == 4
    assert claims.on_printed_numbers(paired()) is None


BAD = {
    "tier: expected one of headline, supporting, ours, got main": {"tier": "main"},
    "unit: expected one of network, image, timing, got model": {"unit": "model"},
    "rule: expected one of trend": {"test": {"rule": "trends"}},
    "unknown pubished": {"pubished": "rises"},
    "smallest_effect: expected a positive size, and why": {"smallest_effect": 0.3},
    "published_effect: expected text with a sign": {"published_effect": 0.16},
    r"columns: expected some of alpha, metric, got \['aplha'\]": {
        "test": {"rule": "no_trend", "where": {"metric": "entropy"}, "settings": {"x": "aplha"}}
    },
}


@pytest.mark.parametrize("message", BAD)
def test_a_claim_that_is_not_sound_is_refused(message):
    with pytest.raises(UsageError, match=f"file.yml: claim 'c': {message}"):
        claims.check_claims([claim(**BAD[message])], "file.yml", {"alpha", "metric"})


def test_two_claims_of_one_id_and_missing_words_are_refused():
    with pytest.raises(UsageError, match="claim 'c': two claims of that id"):
        claims.check_claims([claim(), claim()], "file.yml", set())
    part = copy.copy(claim())
    del part["tier"], part["says"]
    with pytest.raises(UsageError, match="claim 'c': expected tier, says"):
        claims.check_claims([part], "file.yml", set())


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_claims_of_a_chapter_are_complete(chapter):
    files = [NOTEBOOKS / f"{chapter}.ipynb", *(ROOT / "suite" / "papers").glob("*.py")]
    code = "".join(file.read_text() for file in files).replace('\\"', '"')
    every = claims.load_claims(chapter)
    for entry in every:
        metrics = entry["test"].get("where", {}).get("metric", [])
        for metric in [metrics] if isinstance(metrics, str) else metrics:
            assert metric in METRICS or f'"{metric}"' in code, (entry["id"], metric)
        assert len(entry["says"]) <= 64, entry["id"]
        if entry["tier"] != "ours":
            assert entry["data_of_paper"], entry["id"]
    assert 3 <= sum(entry["tier"] == "headline" for entry in every) <= 6


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_rule_that_a_claim_names_is_there(chapter):
    assert {entry["test"]["rule"] for entry in claims.load_claims(chapter)} <= set(RULES)


def test_published_lists_every_figure_of_the_paper():
    figures = claims.load_published("gradient_regularisation")["figures"]
    assert [figure["number"] for figure in figures] == list(range(1, 20))
