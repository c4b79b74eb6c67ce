from typing import Any

import numpy as np
import pandas as pd
import pytest

from suite.evidence import report, scale
from suite.store import Record

CLAIM: dict[str, Any] = {"id": "a", "tier": "headline", "says": "accuracy rises", "section": "one"}
CLAIM |= {"published": "by 0.16", "published_effect": "+0.16", "quantity": "test accuracy"}
CLAIM |= {"unit": "network", "smallest_effect": {"size": 0.01, "why": "a point"}}
CLAIM |= {"main": {"data": "mnist", "network": "mlp"}}
CLAIM |= {"test": {"rule": "paired", "settings": {"expected": "higher"}}}
OTHER = CLAIM | {"id": "b", "says": "nothing ran"}


def verdict(data="mnist", profile="workstation", word="holds", **changes):
    numbers = {"estimate": 0.08, "low": 0.04, "high": 0.12, "n": 6, "p": 0.01, "p_holm": 0.02}
    about = {"chapter": "c", "claim": "a", "data": data, "network": "mlp", "profile": profile}
    about |= {"verdict": word, "detail": "", "statistic": "x − y", "needed": np.nan}
    about |= {"main": data == "mnist", "tier": "headline", "scale": "reduced", "looks": 1}
    about |= {"word": word, "unit": "network", "within": False, "accuracy": 0.81}
    about |= {"effect": 0.08, "effect_low": 0.04, "effect_high": 0.12, "effect_of_paper": 0.16}
    about |= {"smallest": 0.01, "published_effect": 0.16, "accuracy_of_paper": 0.95}
    return about | numbers | changes


@pytest.fixture
def claims(monkeypatch):
    monkeypatch.setattr(report, "load_claims", lambda chapter: [CLAIM, OTHER])


def test_best_profile_that_ran(claims):
    words = {"laptop": "contradicted", "workstation": "holds", "paper": "not run"}
    rows = [verdict(profile=profile, word=word) for profile, word in words.items()]
    best = report.best_verdicts(pd.DataFrame(rows))
    assert best[["profile", "verdict"]].to_numpy().tolist() == [["workstation", "holds"]]
    best = report.best_verdicts(pd.DataFrame([*rows, verdict(profile="workstation+n_images=9")]))
    assert best["profile"].tolist() == ["workstation+n_images=9"]


def test_headline_is_its_main_panel(claims):
    rows = [verdict("fashion_mnist", word="contradicted", n=60), verdict("mnist")]
    table = report.headlines("c", pd.DataFrame(rows))
    assert table["data"].tolist() == ["mnist", ""]
    assert table["verdict"].tolist() == ["holds", "not run"]
    assert table["scale"].tolist() == ["reduced", ""]


def test_tally_separates_scales():
    rows = [("holds", "reduced"), ("holds", "stand-in"), ("no effect", "stand-in")]
    rows = pd.DataFrame([*rows, ("not run", "")], columns=["verdict", "scale"])
    assert report.tally(rows, "the papers’ ") == (
        "The papers’ headline claims that held: 1 of 1 at reduced scale, 1 of 2 on stand-in data, "
        "1 not run."
    )


class TestScale:
    TRAINING = {"data": "cifar10-jpeg", "network": "resnet", "epochs": 9, "seed": 0}
    OPTIONS = {"blocks": [1, 2], "backbone_options": {"stem": "s"}}

    def test_each_network_counts_once(self):
        early = self.TRAINING | {"epochs": 2, "cosine_epochs": 9}
        last = self.TRAINING | {"cosine_epochs": 9}
        units = [
            *({"metric": name, "training": last} for name in ("accuracy", "tv")),
            {"metric": "accuracy", "training": early},
            {"metric": "accuracy", "training": last, "settings": {"data": "other"}},
            early,
            last,
            {"metric": "tv", "training": last | {"seed": 1}},
        ]
        values = [0.9, 0.1, 0.4, 0.3, None, None, 0.2]
        records = [Record(u, "done", {"mean": v}, {}) for u, v in zip(units, values)]
        networks = scale.trainings_of(records)
        numbers = [(t["seed"], t["epochs"], t.get("accuracy")) for t in networks]
        assert numbers == [(0, 9, 0.9), (1, 9, None)]

    @pytest.mark.parametrize(
        ("changes", "met"),
        [
            ({}, True),  # by default the network is as large
            ({"network_options": {"width": 64}}, True),
            ({"network_options": {"backbone_options": {"width": 64}}}, True),
            ({"epochs": 8}, False),
            ({"n_train": 5000}, False),
            ({"network_options": {"width": 16}}, False),
            ({"network_options": {"blocks": [1, 1]}}, False),
        ],
    )
    def test_setting_is_met(self, changes, met):
        options = {"blocks": [2, 2, 2, 2], "width": 64}
        setting = scale.Setting(["cifar10"], "resnet", options, epochs=9)
        assert setting.is_met_by({"epochs": 9} | changes) == met
