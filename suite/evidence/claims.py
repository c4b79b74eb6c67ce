"""Claims of the papers: read them from `notebooks/claims`, and judge them on measured rows."""

import functools
import math
import operator
import re
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pandas as pd

from suite.errors import UsageError, expected
from suite.evidence import rules, scale
from suite.evidence.rules import CONTRADICTED, HOLDS, NAN, NOT_RUN, NOT_TESTABLE, Verdict
from suite.evidence.statistics import Interval, correlation, holm
from suite.evidence.tables import select
from suite.paths import KEPT_RESULTS, NOTEBOOKS, read_yaml

TIERS = ("headline", "supporting", "ours")
REQUIRED = """id tier says quote where section published unit smallest_effect data networks
data_of_paper written test""".split()
OPTIONAL = """published_effect quantity needs least_units untestable printed seen looks main
trained elsewhere form paper beside""".split()
MEANS = ("level", "paired", "not_worse")
# Bounds of a precondition: in words, the statistic that is bounded, and the comparison.
BOUNDS: dict[str, tuple[str, str, Callable[[float, float], bool]]] = {
    "least": ("at least", "mean", operator.ge),
    "most": ("at most", "mean", operator.le),
    "some_above": ("some above", "max", operator.gt),
}
# The columns of `judge`, in order; its docstring describes them.
COLUMNS = """claim data network main tier scale verdict word detail looks statistic unit estimate
low high n p p_holm needed effect effect_low effect_high effect_of_paper smallest within
published_effect accuracy accuracy_of_paper""".split()

Claim = scale.Claim


@functools.cache
def load_claims(chapter: str) -> list[dict[str, Any]]:
    """Read the claims of a chapter from `notebooks/claims`; none where there is no file.

    The `defaults` of the file hold for each claim that does not override them.

    Raises:
        UsageError: a claim is invalid; it names the file, the claim and what was expected.
    """
    if not (contents := _read("claims", chapter)):
        return []
    claims = [contents.get("defaults", {}) | claim for claim in contents["claims"]]
    check_claims(claims, f"{chapter}.yml", _columns(chapter))
    return claims


@functools.cache
def load_words(chapter: str) -> dict[str, Any]:
    """Read the `names` of kinds, and the `scale` of the paper in words."""
    return {"names": {}, "scale": ""} | _read("claims", chapter)


@functools.cache
def load_settings(chapter: str) -> tuple[scale.Setting, ...]:
    """Read the data and the networks of the paper of a chapter.

    Raises:
        UsageError: a setting is invalid; it names the file and what was expected.
    """
    settings = load_published(chapter).get("settings", [])
    try:
        return tuple(scale.Setting(**setting) for setting in settings)
    except TypeError as error:
        what = f"settings of data, network, options, epochs and accuracy ({error})"
        raise expected(f"published/{chapter}.yml", what, settings) from error


@functools.cache
def load_published(chapter: str) -> dict[str, Any]:
    """Read the published numbers of the paper from `notebooks/published`."""
    return _read("published", chapter)


def _read(folder: str, chapter: str) -> dict[str, Any]:
    file = NOTEBOOKS / folder / f"{chapter}.yml"
    return read_yaml(file) if file.exists() else {}


def _columns(chapter: str) -> set[str]:
    """Return the columns of the kept tables of a chapter; none without kept results."""
    archives = [zipfile.ZipFile(file) for file in KEPT_RESULTS.glob(f"*/{chapter}.zip")]
    return {name for a in archives for name in pd.read_csv(a.open("rows.csv"), nrows=0).columns}


def check_claims(claims: Sequence[Claim], file: str, columns: set[str]) -> None:
    """Check that claims have all required keys, with known words.

    Args:
        claims: of one file.
        file: the name of the file, for messages.
        columns: the columns that tests may select by; an empty set allows all.

    Raises:
        UsageError: names the file, the claim and what was expected.
    """
    ids = [claim.get("id", "(without id)") for claim in claims]
    for name, claim in zip(ids, claims):
        for fault in _faults(claim, ids, columns):
            raise UsageError(f"{file}: claim {name!r}: {fault}")


def _faults(claim: Claim, ids: Sequence[str], columns: set[str]) -> Iterator[str]:
    """Yield the faults of a claim; each check assumes that the earlier ones passed.

    Args:
        claim: the claim.
        ids: of all claims of the file.
        columns: see `check_claims`.
    """
    known = (*REQUIRED, *OPTIONAL)
    if missing := [key for key in REQUIRED if key not in claim]:
        yield f"expected {', '.join(missing)}"
    if ids.count(claim["id"]) > 1:
        yield "two claims of that id"
    if claim["tier"] == "headline" and not claim.get("quantity"):
        yield "expected the quantity in words, as a headline needs it"
    if unknown := [key for key in claim if key not in known]:
        yield f"unknown {', '.join(unknown)}; expected {', '.join(known)}"
    test, needs = claim["test"], claim.get("needs", [])
    words: list[tuple[str, Any, Collection[str]]] = [("tier", claim["tier"], TIERS)]
    words += [("unit", claim["unit"], rules.UNIT_COLUMNS), ("rule", test.get("rule"), rules.RULES)]
    words += [("beside", other, ids) for other in claim.get("beside", {})]
    for key, word, choices in words:
        if word not in choices:
            yield f"{key}: expected one of {', '.join(choices)}, got {word}"
    for need in (need for need in needs if _is_outcome(need["where"], test)):
        yield f"needs: expected a precondition that is not the outcome, got {need}"
    size = claim["smallest_effect"]
    if not isinstance(size, dict) or not size.get("why") or not size.get("size", 0) > 0:
        yield f"smallest_effect: expected a positive size, and why, got {size}"
    if "published_effect" in claim and math.isnan(published_effect(claim)):
        form = "text with a sign ('+0.16', '-0.11') or a ratio ('x 0.05')"
        yield f"published_effect: expected {form}, got {claim['published_effect']}"
    settings = test.get("settings", {})
    used = {settings[key] for key in ("x", "between", "over") if key in settings}
    used |= {*settings.get("match", [])}.union(*(rows.get("where", {}) for rows in (test, *needs)))
    if columns and (wrong := sorted(used - columns)):
        yield f"columns: expected some of {', '.join(sorted(columns))}, got {wrong}"


def _is_outcome(where: Claim, test: Claim) -> bool:
    """Whether a precondition reads the outcome: the rows of the test on the claimed side."""
    settings = test.get("settings", {})
    side = {settings["between"]: settings["first"]} if "first" in settings else {}
    outcome = test.get("where", {}) | side
    shared = outcome.keys() & where.keys()
    overlap = [{*_as_list(outcome[name])} & {*_as_list(where[name])} for name in shared]
    return "metric" in shared and all(overlap) and (bool(side) or where.keys() <= outcome.keys())


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def published_effect(claim: Claim) -> float:
    """Return the printed effect of the paper, on the scale of the rule; NaN without one.

    >>> [published_effect({"published_effect": text}) for text in ("-0.16", "x 0.05", 0.16)]
    [-0.16, 0.05, nan]
    """
    text = claim.get("published_effect")
    pattern = r"([+\-−]|x |× )(\d+\.?\d*(?:e[+\-]?\d+)?)"  # a YAML number would lose its "+"
    match = re.fullmatch(pattern, text) if isinstance(text, str) else None
    return float(match[2]) * (-1 if match[1] in "-−" else 1) if match else NAN


def judge(
    claims: Sequence[Claim],
    frame: pd.DataFrame,
    settings: Sequence[scale.Setting] = (),
    trainings: scale.Trainings = (),
) -> pd.DataFrame:
    """Decide each claim for each of its data sets and networks.

    Args:
        claims: from `load_claims`.
        frame: the rows of one profile, one for each unit and metric, with the columns data,
            network, metric, value, status, profile, and those that the claims select by.
        settings: of the paper, from `load_settings`.
        trainings: of the networks of the profile, from `scale.trainings_of`.

    Returns:
        One row for each verdict, with the columns `COLUMNS`:

        - claim, data, network, tier, unit;
        - main: whether this panel decides the claim: the named one, else the largest tested one;
        - scale: one of `scale.SCALES`;
        - verdict: one of `rules.WORDS`; word: the same, with the scale of *no effect*; detail;
        - looks: the number of looks at the data, this one included;
        - statistic, estimate, low, high, n, p;
        - p_holm: p of a headline's main panel, adjusted for the number of headlines;
        - needed: the number of units that would settle an inconclusive verdict;
        - effect, effect_low, effect_high, effect_of_paper, smallest: the estimate, its interval,
          the published and the smallest effect, as distances from no effect in the claimed
          direction (logarithms for ratios);
        - within: whether the claim is that a value stays within ± `smallest`;
        - published_effect: as printed, on the scale of the estimate;
        - accuracy: the mean here, of the networks that a claim compares with; accuracy_of_paper.
    """
    rows: list[dict[str, Any]] = []
    for claim in claims:
        chosen = frame["network"].isin(claim["networks"]) & frame["data"].isin(claim["data"])
        groups: Any = frame[chosen].groupby(["data", "network"], sort=False)
        panels: dict[Any, pd.DataFrame] = dict(iter(groups))
        verdicts = {where: judge_panel(claim, panel, frame) for where, panel in panels.items()}
        tested = {data for data, _ in panels}
        for data in claim["data_of_paper"]:
            if not tested & {data, *scale.copies_of(settings, data)}:
                why = claim.get("elsewhere", "the data or the machine are not available")
                of_paper = {s.network for s in settings if data in s.data}
                names = [n for n in claim["networks"] if n in of_paper] or claim["networks"]
                verdicts[data, " or ".join(names)] = Verdict(NOT_RUN, why)
        main = _main_panel(claim, verdicts)
        for where, verdict in verdicts.items():
            row = {"claim": claim["id"], "data": where[0], "network": where[1]}
            row |= {"main": where == main, "tier": claim["tier"], "unit": claim["unit"]}
            row["looks"] = _count_looks(claim, where[0])
            row["accuracy"] = _accuracy(claim, panels.get(where))
            at, row["accuracy_of_paper"] = scale.scale_of(claim, settings, where, trainings)
            row["scale"] = "" if verdict.word == NOT_RUN else at
            rows.append(row | _numbers(claim, verdict))
    table = _adjust_by_holm(pd.DataFrame(rows, columns=COLUMNS))
    return table.assign(word=list(map(scale.word_at, table["verdict"], table["scale"])))


def _main_panel(claim: Claim, verdicts: Mapping[Any, Verdict]) -> tuple[str, str] | None:
    """Return the data and network that decide a claim: the named ones, else those of most units."""
    named = claim.get("main", {})
    where = named.get("data", ""), named.get("network", "")
    if where in verdicts and verdicts[where].word != NOT_RUN:
        return where

    def count_units(where: tuple[str, str]) -> int:
        word, *_, finding = verdicts[where]
        return finding.interval.n if finding else -(word == NOT_RUN)

    return max(verdicts, key=count_units, default=None)


def _count_looks(claim: Claim, data: str) -> int:
    """Return the number of looks at the data: two for a rule that was written after it was `seen`.

    The `looks` of a claim, for all data or by data set, override this.
    """
    looks, default = claim.get("looks", {}), 2 if "seen" in claim else 1
    return int(looks.get(data, default)) if isinstance(looks, Mapping) else int(looks)


def _numbers(claim: Claim, verdict: Verdict) -> dict[str, Any]:
    printed = published_effect(claim)
    row = {"verdict": verdict.word, "detail": verdict.detail, "needed": verdict.needed}
    row |= {"published_effect": printed, "p_holm": NAN}
    if (finding := verdict.finding) is None:
        return row | {"statistic": "", **Interval(NAN)._asdict(), "p": NAN, "within": False}
    estimate, *ends, _ = interval = finding.interval
    row |= {"statistic": finding.statistic, **interval._asdict(), "p": finding.p}
    row |= dict(zip(("effect_low", "effect_high"), sorted(map(finding.effect, ends))))
    row |= {"effect": finding.effect(estimate), "effect_of_paper": finding.effect(printed)}
    size = finding.least or abs(finding.effect(finding.bound)) or abs(finding.bound)
    return row | {"smallest": size, "within": finding.sign == 0}


def _accuracy(claim: Claim, rows: pd.DataFrame | None) -> float:
    """Return the mean accuracy of the plain networks of a panel, else of all its networks.

    A precondition on accuracy names the networks itself.
    """
    if rows is None:
        return NAN
    metrics = ["accuracy", "usual_accuracy", "paired_accuracy"]
    needs = [n["where"] for n in claim.get("needs", []) if n["where"].get("metric") in metrics]
    where = next(iter(needs), claim["test"].get("where", {}) | {"metric": metrics[:2]})
    rows = scale.drop_interpolated(rows[rows["metric"].isin(_as_list(where["metric"]))])
    where = where | {"main": True, "test": "own", "over_regularised": False}
    for column, value in (where | {kind: ["none", "standard"] for kind in scale.KINDS}).items():
        if column != "metric" and column in rows:
            chosen = select(rows, **{column: value})
            rows = chosen if len(chosen) else rows
    return float(rows["value"].mean())


def _adjust_by_holm(verdicts: pd.DataFrame) -> pd.DataFrame:
    """Adjust the p-values of a paper's headlines, at their main panels, by Holm's method.

    A headline that holds or is contradicted before the adjustment alone becomes inconclusive.
    """
    counted = (verdicts["tier"] == "headline") & verdicts["main"].astype(bool)
    counted &= ~verdicts["verdict"].isin([NOT_TESTABLE, NOT_RUN]) & verdicts["p"].notna()
    verdicts.loc[counted, "p_holm"] = holm(verdicts.loc[counted, "p"].tolist())
    weak = counted & verdicts["verdict"].isin([HOLDS, CONTRADICTED]) & (verdicts["p_holm"] >= 0.05)
    would = verdicts["verdict"].replace({HOLDS: "hold", CONTRADICTED: "be contradicted"})[weak]
    after = ", but not after correction for several tests (Holm's)"
    verdicts.loc[weak, "detail"] = "alone it would " + would + after
    verdicts.loc[weak, "verdict"] = rules.INCONCLUSIVE
    return verdicts


def judge_panel(claim: Claim, rows: pd.DataFrame, frame: pd.DataFrame) -> Verdict:
    """Judge a claim on one data set and network.

    Args:
        claim: the claim.
        rows: of the data set and network.
        frame: all rows of the profile, for rules that compare data sets.
    """
    if "elsewhere" in claim:
        return Verdict(NOT_RUN, claim["elsewhere"])
    if "untestable" in claim and _applies(claim["untestable"], rows):
        return Verdict(NOT_TESTABLE, claim["untestable"]["why"])
    test, settings = claim["test"], dict(claim["test"]["settings"])
    chosen = _test_rows(rows, test)
    sides = {settings[key] for key in ("first", "second") if key in settings}
    if chosen.empty or (sides and not sides <= set(chosen[settings["between"]])):
        return Verdict(NOT_RUN, "not measured at this profile")
    if unmet := _unmet_precondition(claim, rows):
        return Verdict(NOT_TESTABLE, unmet)
    if "against" in test:
        pool = frame if "data" in test["against"] else rows
        settings["reference"] = pairs = _test_rows(pool, test, test["against"])
        if pairs.empty:
            return Verdict(NOT_RUN, "what it is compared with was not measured")
        trend = correlation(pairs[settings["x"]], pairs["value"])
        if settings["expected"] == "lower" and not trend.low > 0:
            return Verdict(NOT_TESTABLE, f"{settings['named']} shows no clear rise to compare with")
    return _run_rule(claim, chosen, settings)


def _test_rows(rows: pd.DataFrame, test: Claim, also: Claim = MappingProxyType({})) -> pd.DataFrame:
    """Return the rows that a test reads, of completed units, in the direction of its claim."""
    done = rows[(rows["status"] == "done") & rows["value"].notna()]
    chosen = select(done, **{**test.get("where", {}), **also})
    values = (-1 if test.get("negated") else 1) * chosen["value"]
    return chosen.assign(value=values.abs() if test.get("absolute") else values)


def _applies(restriction: Claim, rows: pd.DataFrame) -> bool:
    """Whether a restriction of a claim applies to the data and the profile of rows."""
    columns = {"data": "data", "profiles": "profile"}
    return all({*rows[name]} & {*restriction.get(key, rows[name])} for key, name in columns.items())


def _run_rule(claim: Claim, rows: pd.DataFrame, settings: Mapping[str, Any]) -> Verdict:
    """Run the rule of a claim, which needs a least number of units: three for a mean."""
    rule, size = claim["test"]["rule"], claim["smallest_effect"]["size"]
    finding = rules.RULES[rule](rows, unit=claim["unit"], size=size, **settings)
    least = claim.get("least_units", rules.LEAST_UNITS if rule in MEANS else 0)
    if (n := finding.interval.n) < least:
        return Verdict(NOT_TESTABLE, f"{n} of at least {least} {claim['unit']}s", finding=finding)
    return rules.decide(finding, published_effect(claim))._replace(finding=finding)


def _unmet_precondition(claim: Claim, rows: pd.DataFrame) -> str:
    """Describe the first precondition of a claim that fails; return "" if all hold."""
    for need in (need for need in claim.get("needs", []) if _applies(need, rows)):
        values = _test_rows(rows, need)["value"].astype(float)
        for kind, (words, statistic, is_met) in BOUNDS.items():
            measured = values.agg(statistic)  # NaN without values, which meets no bound
            if kind in need and not is_met(measured, need[kind]):
                return f"{need['why']}: {measured:.3g}, expected {words} {need[kind]:g}"
    return ""


def judge_printed(claim: Claim) -> Verdict | None:
    """Run the rule of a claim on the printed numbers of the paper; None without such numbers."""
    if "printed" not in claim:
        return None
    rows = pd.DataFrame(claim["printed"])
    missing = set(rules.UNIT_COLUMNS.values()) - set(rows)
    rows = rows.assign(**dict.fromkeys(missing, range(len(rows))))
    return _run_rule(claim, rows, claim["test"]["settings"])
