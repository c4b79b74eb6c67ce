"""Each rule can reach *holds* with the number of units of its profile."""

import numpy as np
import pandas as pd
import pytest

from suite import notebooks
from suite.evidence import rules
from suite.evidence.claims import judge_panel, load_claims, published_effect
from suite.evidence.rules import HOLDS, NOT_RUN, NOT_TESTABLE
from suite.paths import KEPT_RESULTS
from suite.store import archive_path, read_archive

KEPT = [
    (path.parent.name, path.name.partition(".")[0])
    for path in sorted(KEPT_RESULTS.glob("*/*.verdicts.csv"))
    if load_claims(path.name.partition(".")[0])
]


def favourable(claim, frame):
    rule, test = claim["test"]["rule"], claim["test"]
    settings, size = test["settings"], claim["smallest_effect"]["size"]
    sign = -1 if settings.get("expected") in ("fall", "lower", "below") else 1
    sign *= -1 if test.get("negated") else 1
    noise = np.random.default_rng(0).uniform(0, 1e-3 * size, len(frame))
    x = frame[settings["x"]] if "x" in settings else None
    if "over" in settings:  # a kind of networks is one point at its mean
        kinds = ["data", "network", settings["over"]]
        x = frame.assign(x=x).groupby(kinds, dropna=False)["x"].transform("mean")
    x = None if x is None else x.rank()
    if rule == "trend" and settings["expected"] != "none":
        values = sign * x
    elif rule == "trend":
        values = frame.groupby(["data", "network"])[settings["x"]].rank(method="dense") % 2
    elif rule == "trend_against" and settings["expected"] == "alike":
        values = x
    elif rule == "trend_against":
        against = test["against"]
        is_reference = (frame[[*against]] == pd.Series(against)).all(axis=1)
        values = sign * x.where(~is_reference, -x)
    elif rule == "level":
        values = pd.Series(size + sign * (0.5 * size + 1e-3), frame.index) + noise
    else:
        first = frame[settings["between"]] == settings["first"]
        printed = abs(np.nan_to_num(published_effect(claim)))  # or it would be smaller than claimed
        gap = 0 if rule == "not_worse" else sign * max(9 * size, printed)
        values = first * gap + 1 + noise
        if settings.get("ratio"):
            gap = max(9 * np.log(size), abs(np.log(printed or 1.0)))
            values = np.exp(first * sign * gap + noise)
    return frame.assign(value=values.where(frame["value"].notna()))


@pytest.mark.parametrize(("profile", "chapter"), KEPT)
def test_each_rule_can_hold(profile, chapter, monkeypatch):
    # Words depend on intervals alone.
    monkeypatch.setattr(rules.statistics, "permutation_p", lambda *given: 1.0)
    frame = read_archive(archive_path(chapter, profile)).rows.assign(profile=profile)
    hopeless = []
    for claim in load_claims(chapter):
        bare = {name: value for name, value in claim.items() if name not in ("needs", "untestable")}
        if "elsewhere" in claim:
            continue
        best = favourable(claim, frame)
        about = frame["network"].isin(claim["networks"]) & frame["data"].isin(claim["data"])
        for where, _ in frame[about].groupby(["data", "network"], sort=False):
            panel = about & (frame["data"] == where[0]) & (frame["network"] == where[1])
            verdict = judge_panel(bare, best[panel], best)
            if verdict.word == HOLDS:
                continue
            if judge_panel(bare, frame[panel], frame).word not in (NOT_TESTABLE, NOT_RUN):
                hopeless.append((claim["id"], *where, verdict))
    assert not hopeless


def test_every_chapter_has_kept_results():
    assert {chapter for _, chapter in KEPT} == {c for c in notebooks.chapters() if load_claims(c)}
