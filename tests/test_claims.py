import numpy as np
import pandas as pd
import pytest

from suite import notebooks
from suite.errors import UsageError
from suite.evidence import claims
from suite.papers.measure import METRICS
from suite.paths import NOTEBOOKS, ROOT

ALPHAS = np.logspace(2, 10, 17)


def frame_of(values, alphas=ALPHAS, **columns):
    rows = {"data": "mnist", "network": "lenet5", "metric": "entropy", "seed": 0, "status": "done"}
    return pd.DataFrame({**rows, "alpha": alphas, "value": values, **columns})


def noise(scale=1.0):
    return np.random.default_rng(0).normal(scale=scale, size=len(ALPHAS))


def test_trend_is_reproduced_or_not_by_its_sign():
    rising = frame_of(np.arange(17) + noise())
    assert claims.trend(rising, x="alpha", expected="rise")[0] == "reproduced"
    assert claims.trend(rising, x="alpha", expected="fall")[0] == "not reproduced"


def test_trend_of_few_noisy_models_is_underpowered():
    few = frame_of([1.0, 0.2, 0.9, 1.1, 0.7, 1.2], ALPHAS[:6])
    assert claims.trend(few, x="alpha", expected="rise")[0] == "underpowered"


def test_trend_is_not_reproduced_where_the_interval_excludes_a_clear_one():
    alphas = np.repeat(ALPHAS, 12)
    values = np.random.default_rng(3).normal(size=len(alphas))
    verdict, _, interval, p = claims.trend(frame_of(values, alphas), x="alpha", expected="rise")
    assert p > 0.05
    assert interval.high < claims.WEAK
    assert verdict == "not reproduced"


def test_no_trend_asks_for_an_interval_within_the_margin():
    alphas = np.repeat(ALPHAS, 6)
    flat = np.random.default_rng(3).normal(size=len(alphas))
    assert claims.no_trend(frame_of(flat, alphas), x="alpha")[0] == "reproduced"
    assert claims.no_trend(frame_of(np.arange(17)), x="alpha")[0] == "not reproduced"
    few = frame_of([1.0, 0.2, 0.9, 1.1, 0.7, 1.2], ALPHAS[:6])
    assert claims.no_trend(few, x="alpha")[0] == "underpowered"


def test_same_trend_compares_the_two_values_of_a_column():
    def both(a, b):
        return pd.concat([frame_of(a, saliency="deeplift"), frame_of(b, saliency="gradient")])

    rising = np.arange(17.0)
    rule = {"x": "alpha", "between": "saliency"}
    assert claims.same_trend(both(rising, rising**2), **rule)[0] == "reproduced"
    assert claims.same_trend(both(rising, -rising), **rule)[0] == "not reproduced"
    with pytest.raises(UsageError, match="two values of 'saliency'"):
        claims.same_trend(frame_of(rising, saliency="deeplift"), **rule)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        (np.where(ALPHAS < 1e8, 0.9, 0.1), "reproduced"),
        (np.full(17, 0.9), "not reproduced"),
        (np.linspace(0.9, 0.1, 17), "not reproduced"),  # falls, but over many decades
        (np.where(ALPHAS < 1e8, 0.9, 0.6), "underpowered"),  # falls, but not to half
    ],
)
def test_cut_off(values, verdict):
    assert claims.cut_off(frame_of(values), x="alpha", plateau_below=1e5)[0] == verdict


def claim(**changes):
    return {
        "id": "c",
        "data": ["mnist"],
        "networks": ["lenet5"],
        "data_of_paper": ["mnist", "kmnist"],
        "stands_for": {},
        "test": {
            "rule": "trend",
            "where": {"metric": "entropy"},
            "settings": {"x": "alpha", "expected": "rise"},
        },
    } | changes


def test_judge_decides_what_was_run_and_lists_what_was_not():
    verdicts = claims.judge([claim()], frame_of(np.arange(17)))
    assert list(zip(verdicts["data"], verdicts["verdict"])) == [
        ("mnist", "reproduced"),
        ("kmnist", "untested"),
    ]


def test_judge_counts_a_data_set_that_stands_for_another():
    frame = frame_of(np.arange(17), data="mnist5k")
    stands = claim(data=["mnist5k"], stands_for={"mnist": ["mnist5k"]}, data_of_paper=["mnist"])
    assert list(claims.judge([stands], frame)["verdict"]) == ["reproduced"]


def test_judge_leaves_out_diverged_models():
    values = np.arange(17.0)
    status = ["diverged" if index < 12 else "done" for index in range(17)]
    verdict = claims.judge([claim()], frame_of(values, status=status)).iloc[0]
    assert verdict["verdict"] == "underpowered"
    assert verdict["n"] == 5


def test_judge_counts_models_not_rows():
    three = frame_of(np.arange(3), ALPHAS[:3])
    frame = pd.concat([three.assign(saliency="deeplift"), three.assign(saliency="gradient")])
    test = {"rule": "same_trend", "settings": {"x": "alpha", "between": "saliency"}}
    verdict = claims.judge([claim(test=test)], frame).iloc[0]
    assert (verdict["verdict"], verdict["n"]) == ("underpowered", 3)


def test_judge_refuses_a_rule_that_does_not_exist():
    with pytest.raises(UsageError, match="did you mean 'trend'"):
        claims.judge([claim(test={"rule": "trends"})], frame_of(np.arange(17)))


@pytest.mark.parametrize("chapter", notebooks.chapters())
def test_claims_of_a_chapter_are_complete(chapter):
    files = [NOTEBOOKS / f"{chapter}.ipynb", *(ROOT / "suite" / "papers").glob("*.py")]
    code = "".join(file.read_text() for file in files).replace('\\"', '"')
    for entry in claims.load_claims(chapter):
        assert entry["test"]["rule"] in claims.RULES
        metric = entry["test"]["where"]["metric"]
        assert metric in METRICS or f'"{metric}"' in code
        for name in ("id", "quote", "where", "section", "published", "data_of_paper"):
            assert entry[name], (entry["id"], name)
    ids = [entry["id"] for entry in claims.load_claims(chapter)]
    assert len(ids) == len(set(ids))


def test_published_lists_every_figure_of_the_paper():
    figures = claims.load_published("gradient_regularisation")["figures"]
    assert [figure["number"] for figure in figures] == list(range(1, 20))


IMAGES = np.linspace(0.0, 1.0, 40)


def images_of(values, confidence=IMAGES, **columns):
    return frame_of(values, confidence, **columns).rename(columns={"alpha": "confidence"})


def test_level_asks_for_an_interval_on_one_side_of_the_limit():
    values = images_of(
        np.where(IMAGES > 0.5, 0.05, 0.8) + np.random.default_rng(0).normal(0, 0.01, 40)
    )
    rule = {"x": "confidence", "limit": 0.14}
    high, low = {"at_least": 0.6}, {"at_most": 0.4}
    assert claims.level(values, **rule, **high, expected="below")[0] == "reproduced"
    assert claims.level(values, **rule, **high, expected="above")[0] == "not reproduced"
    assert claims.level(values, **rule, **low, expected="above")[0] == "reproduced"
    assert claims.level(values, **rule, **low, expected="below")[0] == "not reproduced"
    _, statistic, interval, _ = claims.level(values, **rule, **high, expected="below")
    assert statistic == "mean, confidence from 0.6 (limit 0.14)"
    assert interval.n == int((IMAGES >= 0.6).sum())
    assert interval.estimate == pytest.approx(0.05, abs=0.01)
    noisy = images_of(np.random.default_rng(1).normal(0.14, 0.5, 40))
    assert claims.level(noisy, **rule, expected="below")[0] == "underpowered"


def test_level_of_few_rows_is_underpowered():
    found = claims.level(images_of(IMAGES), x="confidence", at_least=0.9, expected="above", limit=0)
    assert found[:2] == ("underpowered", "mean, confidence from 0.9: only 4 rows")


@pytest.mark.parametrize(
    ("shift", "expected", "margin", "verdict"),
    [
        (-0.2, "lower", 0.0, "reproduced"),
        (0.2, "lower", 0.0, "not reproduced"),
        (0.2, "higher", 0.0, "reproduced"),
        (-0.2, "higher", 0.0, "not reproduced"),
        (-0.02, "higher", 0.05, "reproduced"),
        (-0.08, "higher", 0.05, "not reproduced"),
        (0.02, "lower", 0.05, "reproduced"),
        (0.08, "lower", 0.05, "not reproduced"),
        (0.0, "higher", 0.0, "underpowered"),
    ],
)
def test_paired_compares_two_methods_on_the_same_images(shift, expected, margin, verdict):
    level = np.random.default_rng(2).normal(0, 5, 40)  # far larger than the differences
    noise = np.random.default_rng(3).normal(0, 0.01, 40)
    noise -= noise.mean()
    both = pd.concat(
        [images_of(level + shift + noise, saliency="caso"), images_of(level, saliency="gradient")]
    ).sample(frac=1, random_state=0)
    rule = {"x": "confidence", "between": "saliency", "first": "caso", "second": "gradient"}
    found = claims.paired(both, **rule, expected=expected, margin=margin)
    assert found[0] == verdict
    assert found[2].estimate == pytest.approx(shift, abs=1e-6)


@pytest.mark.parametrize(("pairs", "verdict"), [(5, "underpowered"), (6, "reproduced")])
def test_paired_needs_pairs_and_not_only_models(pairs, verdict):
    level = np.random.default_rng(2).normal(0, 5, 40)
    noise = np.random.default_rng(3).normal(0, 0.01, 40)
    more = images_of(level + 1 + noise, saliency="caso")[:pairs]
    both = pd.concat([more, images_of(level, saliency="gradient")])
    rule = {"x": "confidence", "between": "saliency", "first": "caso", "second": "gradient"}
    found = claims.paired(both, **rule, expected="higher")
    assert (found[0], found[2].n) == (verdict, pairs)


def test_paired_names_what_is_missing():
    with pytest.raises(UsageError, match=r"expected saliency \['cafo'\], got \['caso'\]"):
        claims.paired(
            images_of(IMAGES, saliency="caso"),
            x="confidence",
            between="saliency",
            first="caso",
            second="cafo",
            expected="lower",
        )
