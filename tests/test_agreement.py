import json

import numpy as np
import pandas as pd
import pytest

from suite.book import agreement, pages
from suite.store import Archive, Record, Store, archive_path

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
    keyed = {key(n): record for n, record in enumerate(records)}
    return Archive(keyed, {}, pd.DataFrame({"a": [1]}), {}, ABOUT_ALL)


def fill(store, *records):
    for number, record in enumerate(records):
        store.write(key(number), record)
    return store


@pytest.fixture
def kept():
    return archive(*(record(n + 1.0, seed=n) for n in range(4)))


COMPUTED = [record(value, seed=n) for n, value in enumerate(HERE)]


@pytest.fixture
def frame(kept, store):
    return agreement.compare(kept, fill(store, *COMPUTED))


def test_classes_of_agreement(frame):
    assert frame["agreement"].tolist() == FOUR
    assert frame["spread"].tolist() == pytest.approx([np.std([1, 2, 3, 4], ddof=1)] * 4)
    assert frame["difference"].tolist() == pytest.approx([0.0, 1e-6, 0.5, 5.0])
    assert frame["of"][1] == "mlp, mnist5k, cure 0.5, seed 1"
    assert agreement.count(frame) == [1, 1, 1, 0, 1]


def test_spread_is_of_seeds(store):
    fill(store, record(1.5), record(1.5))
    frame = agreement.compare(archive(record(1.0), record(5.0, network="lenet5")), store)
    assert frame["spread"].isna().all()
    assert set(frame["agreement"]) == {agreement.ALONE}
    more = archive(record(1.0), record(9.0, metric="other"), record(3.0, seed=2))
    (spread,) = agreement.compare(archive(record(1.0)), store, more)["spread"]
    assert spread == pytest.approx(np.std([1.0, 3.0], ddof=1))


def test_missing_values_and_status(store):
    fill(store, record(None), record(1.0, status="diverged"), record(None))
    frame = agreement.compare(archive(record(None), record(1.0), record(1.0)), store)
    assert frame["agreement"].tolist() == [agreement.EQUAL, agreement.OUTSIDE, agreement.OUTSIDE]


def test_last_loss_is_compared(store):
    unit = {"unit": "training", "network": "mlp", "data": "mnist5k", "seed": 0}
    here, kept = (Record(unit, "done", {"losses": [x, 1.0]}, ABOUT) for x in (9.0, 2.0))
    assert agreement.compare(archive(kept), store).empty
    (row,) = agreement.compare(archive(kept), fill(store, here)).to_dict("records")
    assert (row["metric"], row["agreement"]) == ("training loss", agreement.EQUAL)


def test_largest_differences(frame):
    assert agreement.largest(frame, 5)["here"].tolist() == [9.0, 3.5]
    assert agreement.largest(frame, 1)["here"].tolist() == [9.0]


@pytest.fixture
def executed(tmp_path, monkeypatch, kept):
    monkeypatch.setenv("REGLIB_EXECUTED", str(tmp_path / "executed"))
    monkeypatch.setattr("suite.store.kept.KEPT_RESULTS", tmp_path / "kept")
    path = archive_path(CHAPTER, "laptop", tmp_path / "kept")
    kept.write(path)
    verdicts = pd.DataFrame({"claim": ["lipschitz-falls"], "data": "mnist5k", "network": "mlp"})
    verdicts.assign(verdict="holds").to_csv(path.with_suffix(".verdicts.csv"))
    stem = tmp_path / "executed" / "results" / "laptop" / CHAPTER
    stem.parent.mkdir(parents=True)
    verdicts.assign(verdict="open").to_csv(stem.with_suffix(".verdicts.csv"))
    provenance = json.dumps(ABOUT_ALL | {"here": 4, "commit": ["def"]})
    stem.with_suffix(".provenance.json").write_text(provenance)
    return tmp_path


def write_page(folder):
    return pages._page("agreement", **agreement.contents(folder, pages.chapter_name))


def test_page(executed):
    page = write_page(executed)
    assert "`make rerun` computes the profile `laptop` on this machine" in page
    assert "agreement.png" not in page
    fill(Store(), *COMPUTED)
    page = write_page(executed)
    assert "**3 of 4 values agree with the kept ones (75.0%), and one verdict differs**" in page
    assert "| Gradient regularisation | 4 | 1 | 1 | 1 | 0 | 1 | 1 |" in page
    assert "| Gradient regularisation | lipschitz falls | MNIST (5,000), MLP | holds |" in page
    assert "cure 0.5, seed 3 | 4 | 9 | outside |" in page
    assert "at commit def" in page
    assert (executed / "agreement.png").stat().st_size > 1000
