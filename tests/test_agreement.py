"""Does this machine agree? Values in each of the five ways, verdicts, and the page."""

import json

import numpy as np
import pandas as pd
import pytest

from suite.book import pages
from suite.evidence import agreement
from suite.store import Archive, Record, Store, archive_path, write_archive

ABOUT = {"seconds": 1.0, "device": "a CPU", "threads": 1, "commit": "abc"}
ABOUT_ALL = {"units": 4, "seconds": 4.0, "device": ["a CPU"], "threads": [1], "commit": ["abc"]}
CHAPTER = "gradient_regularisation"
HERE = [1.0, 2.0 + 1e-6, 3.5, 9.0]  # kept are 1, 2, 3, 4: equal, rounded, within, outside
FOUR = [k for k in agreement.KINDS if k != agreement.ALONE]


def record(value, seed=0, metric="entropy", network="mlp", status="done"):
    training = {"unit": "training", "network": network, "data": "mnist5k"}
    training |= {"seed": seed, "penalties": {"cure": {"strength": 0.5}}}
    unit = {"unit": "measurement", "metric": metric, "training": training}
    return Record(unit, status, {"mean": value}, ABOUT)


def key(number):
    return f"{number:032d}"


def archive(*records):
    keyed = {key(n): one for n, one in enumerate(records)}
    return Archive(keyed, {}, pd.DataFrame({"a": [1]}), {}, ABOUT_ALL)


@pytest.fixture
def kept():
    return archive(*(record(n + 1.0, seed=n) for n in range(4)))


@pytest.fixture
def here(store):
    for number, value in enumerate(HERE):
        store.write(key(number), record(value, seed=number))
    return store


def test_each_value_agrees_in_one_of_five_ways(kept, here):
    frame = agreement.compare(kept, here)
    assert frame["agreement"].tolist() == FOUR
    assert frame["spread"].tolist() == pytest.approx([np.std([1, 2, 3, 4], ddof=1)] * 4)
    assert frame["difference"].tolist() == pytest.approx([0.0, 1e-6, 0.5, 5.0])
    assert frame["of"][1] == "mlp, mnist5k, cure 0.5, seed 1"
    assert list(agreement.counts(frame).values()) == [1, 1, 1, 0, 1]


def test_the_spread_is_of_units_that_differ_in_their_seed_alone(store):
    for n in range(2):
        store.write(key(n), record(1.5))
    frame = agreement.compare(archive(record(1.0), record(5.0, network="lenet5")), store)
    assert frame["spread"].isna().all()
    assert set(frame["agreement"]) == {agreement.ALONE}
    more = archive(record(1.0), record(9.0, metric="other"), record(3.0, seed=2))
    (spread,) = agreement.compare(archive(record(1.0)), store, more)["spread"]
    assert spread == pytest.approx(np.std([1.0, 3.0], ddof=1))


def test_values_that_are_not_finite_agree_and_another_status_does_not(store):
    for n, one in enumerate((record(None), record(1.0, status="diverged"), record(None))):
        store.write(key(n), one)
    frame = agreement.compare(archive(record(None), record(1.0), record(1.0)), store)
    assert frame["agreement"].tolist() == [agreement.EQUAL, agreement.OUTSIDE, agreement.OUTSIDE]


def test_losses_are_compared_by_the_last_one(store):
    unit = {"unit": "training", "network": "mlp", "data": "mnist5k", "seed": 0}
    here, kept = (Record(unit, "done", {"losses": [x, 1.0]}, ABOUT) for x in (9.0, 2.0))
    store.write(key(0), here)
    (row,) = agreement.compare(archive(kept), store)[["metric", "agreement"]].to_numpy().tolist()
    assert row == ["training loss", "equal to the digit"]


def test_largest_differences_come_first_those_outside_before_all(kept, here):
    frame = agreement.compare(kept, here)
    assert agreement.largest(frame, 5)["here"].tolist() == [9.0, 3.5]
    assert agreement.largest(frame, 1)["here"].tolist() == [9.0]


def test_nothing_was_computed_here(kept, store):
    assert agreement.compare(kept, store).empty


def test_verdicts_are_compared_by_claim_data_and_network():
    same = {"data": "d", "network": "n"}
    kept = pd.DataFrame({"claim": ["a", "b"], "verdict": ["holds", "not run"]}).assign(**same)
    assert agreement.changed_verdicts(kept, kept).empty
    changed = agreement.changed_verdicts(kept, kept.assign(verdict="open"))
    assert changed["verdict_kept"].tolist() == ["holds", "not run"]
    assert set(changed["verdict_here"]) == {"open"}


@pytest.fixture
def executed(tmp_path, monkeypatch, kept):
    """An executed chapter that computed its units here, beside kept results."""
    monkeypatch.setenv("REGLIB_EXECUTED", str(tmp_path / "executed"))
    monkeypatch.setattr("suite.store.kept.KEPT_RESULTS", tmp_path / "kept")
    path = archive_path(CHAPTER, "laptop", tmp_path / "kept")
    write_archive(path, kept)
    verdicts = pd.DataFrame({"claim": ["lipschitz-falls"], "data": "mnist5k", "network": "mlp"})
    verdicts.assign(verdict="holds").to_csv(path.with_suffix(".verdicts.csv"))
    stem = tmp_path / "executed" / "results" / "laptop" / CHAPTER
    stem.parent.mkdir(parents=True)
    verdicts.assign(verdict="open").to_csv(stem.with_suffix(".verdicts.csv"))
    provenance = json.dumps(ABOUT_ALL | {"here": 4, "commit": ["def"]})
    stem.with_suffix(".provenance.json").write_text(provenance)
    return tmp_path


def test_the_page_counts_names_and_draws(executed):
    page = pages.agreement_page(executed)
    assert "`make rerun` computes the profile `laptop` on this machine" in page
    assert "agreement.png" not in page
    here = Store()
    for number, value in enumerate(HERE):
        here.write(key(number), record(value, seed=number))
    page = pages.agreement_page(executed)
    assert "**3 of 4 values agree with the kept ones (75.0%), and one verdict differs**" in page
    assert "| Gradient regularisation | 4 | 1 | 1 | 1 | 0 | 1 | 1 |" in page
    assert "| Gradient regularisation | lipschitz falls | MNIST (5,000), MLP | holds |" in page
    assert "cure 0.5, seed 3 | 4 | 9 | outside |" in page
    assert "at commit def" in page
    assert (executed / "agreement.png").stat().st_size > 1000
