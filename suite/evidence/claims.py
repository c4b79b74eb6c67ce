"""Claims of the papers, read from `notebooks/claims`, and what measured rows say of them."""

import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from suite.errors import UsageError, expected
from suite.evidence.rules import (
    CANNOT,
    LEAST_UNITS,
    NOT_RUN,
    OPEN,
    RULES,
    UNIT_COLUMNS,
    WITHDRAWN,
    WORDS,
    Finding,
    Verdict,
    decide,
)
from suite.evidence.statistics import Interval, correlation, holm
from suite.evidence.tables import select
from suite.paths import KEPT_RESULTS, NOTEBOOKS, read_yaml

TIERS = ("headline", "supporting", "ours")
UNITS = (*UNIT_COLUMNS, "timing")
REQUIRED = """id tier says quote where section published unit smallest_effect data networks
data_of_paper stands_for written test""".split()
OPTIONAL = "published_effect quantity needs least_units withdrawn printed seen shown".split()
MEANS = ("level", "paired", "not_worse", "apart", "unequal_change")
NAN = float("nan")

Claim = Mapping[str, Any]


@functools.cache
def load_claims(chapter: str) -> list[dict[str, Any]]:
    """Read the claims of a chapter from `notebooks/claims`; one without that file has none.

    Raises:
        UsageError: a claim is not sound; it names the file, the claim and what was expected.
    """
    file = NOTEBOOKS / "claims" / f"{chapter}.yml"
    if not file.exists():
        return []
    claims = read_yaml(file)["claims"]
    check_claims(claims, file.name, _columns(chapter))
    return claims


@functools.cache
def load_words(chapter: str) -> dict[str, Any]:
    """Read what else the claims file of a chapter says: `names` of kinds, `advice`, `scale`.

    The last says at what scale the paper worked.

    Raises:
        UsageError: advice for a claim or a word that there is not.
    """
    file = NOTEBOOKS / "claims" / f"{chapter}.yml"
    words = read_yaml(file) if file.exists() else {}
    check_advice(words.get("advice", []), load_claims(chapter), file.name)
    return {"names": {}, "advice": [], "scale": ""} | {
        name: words[name] for name in ("names", "advice", "scale") if name in words
    }


UNDECIDED = "what was measured here cannot decide it"


def check_advice(advice: Sequence[Mapping[str, Any]], claims: Sequence[Claim], file: str) -> None:
    """Check that advice is given for claims and verdicts that there are.

    Args:
        advice: each with the id of a `claim` and, by verdict or "else", a sentence.
        claims: of the file.
        file: its name, for messages.

    Raises:
        UsageError: names the file and what was expected.
    """
    for part in advice:
        _one_of(f"{file}: advice: claim", part.get("claim"), [claim["id"] for claim in claims])
        for verdict in part.keys() - {"claim"}:
            _one_of(f"{file}: advice for {part['claim']}", verdict, [*WORDS, "else"])


@functools.cache
def load_published(chapter: str) -> dict[str, Any]:
    """Read what the paper published from `notebooks/published`."""
    return read_yaml(NOTEBOOKS / "published" / f"{chapter}.yml")


def _columns(chapter: str) -> set[str]:
    """Return the columns of the kept tables of a chapter; none where nothing was kept."""
    tables = KEPT_RESULTS.glob(f"*/{chapter}.csv")
    return {name for file in tables for name in pd.read_csv(file, nrows=0).columns}


def check_claims(claims: Sequence[Claim], file: str, columns: set[str]) -> None:
    """Check that claims say all that is needed, in the words that there are.

    Args:
        claims: of one file.
        file: its name, for messages.
        columns: that tests may select by; if empty, that is not checked.

    Raises:
        UsageError: names the file, the claim and what was expected.
    """
    seen: set[str] = set()
    for claim in claims:
        name = f"{file}: claim {claim.get('id', '(without id)')!r}"
        if claim.get("id") in seen:
            raise UsageError(f"{name}: two claims of that id")
        seen.add(claim.get("id", ""))
        if missing := [key for key in REQUIRED if key not in claim]:
            raise UsageError(f"{name}: expected {', '.join(missing)}")
        if claim["tier"] == "headline" and not claim.get("quantity"):
            raise UsageError(f"{name}: expected the quantity in words, as a headline needs it")
        if unknown := [key for key in claim if key not in (*REQUIRED, *OPTIONAL)]:
            known = ", ".join((*REQUIRED, *OPTIONAL))
            raise UsageError(f"{name}: unknown {', '.join(unknown)}; expected {known}")
        _one_of(f"{name}: tier", claim["tier"], TIERS)
        _one_of(f"{name}: unit", claim["unit"], UNITS)
        _one_of(f"{name}: rule", claim["test"].get("rule"), RULES)
        size = claim["smallest_effect"]
        if not isinstance(size, dict) or not size.get("why") or not size.get("size", 0) > 0:
            raise expected(f"{name}: smallest_effect", "a positive size, and why", size)
        effect = claim.get("published_effect")
        if effect is not None and _effect(effect) is None:
            what = "text with a sign ('+0.16', '-0.11') or a ratio ('x 0.05')"
            raise expected(f"{name}: published_effect", what, effect)
        _check_columns(name, claim, columns)


def _check_columns(name: str, claim: Claim, columns: set[str]) -> None:
    test = claim["test"]
    settings = test.get("settings", {})
    used = {*test.get("where", {}), *settings.get("match", [])}
    used |= {settings[key] for key in ("x", "between", "over") if key in settings}
    for need in claim.get("needs", []):
        used |= {*need.get("where", {})}
    if columns and (wrong := sorted(used - columns)):
        raise expected(f"{name}: columns", f"some of {', '.join(sorted(columns))}", wrong)


def _one_of(what: str, value: Any, choices: Sequence[str] | Mapping[str, Any]) -> None:
    if value not in choices:
        raise expected(what, f"one of {', '.join(choices)}", value)


def _effect(text: Any) -> float | None:
    """Return the number of a published effect; None if it has no sign.

    >>> _effect("+0.16"), _effect("x 0.05"), _effect(0.16)
    (0.16, 0.05, None)
    """
    found = re.fullmatch(r"([+\-−]|x |× )(\d+\.?\d*(?:e[+\-]?\d+)?)", str(text))
    if found is None or not isinstance(text, str):
        return None
    return float(found[2]) * (-1 if found[1] in "-−" else 1)


def published_effect(claim: Claim) -> float | None:
    """Return the effect that the paper prints, on the scale of the rule; None if it prints none."""
    return _effect(claim["published_effect"]) if "published_effect" in claim else None


def judge(claims: Sequence[Claim], frame: pd.DataFrame) -> pd.DataFrame:
    """Decide each claim for each data set and network that it speaks of.

    Args:
        claims: from `load_claims`.
        frame: of one profile: one row a unit and metric, with the columns data, network, metric,
            value, status, profile, and those that the claims select by.

    Returns:
        One row a verdict: claim, data, network, verdict (a word of `rules.WORDS`), detail,
        statistic, estimate, low, high, n, p, p_holm (headlines: adjusted for their number),
        needed (units that would settle what is open).
    """
    rows = []
    for claim in claims:
        about = frame[frame["network"].isin(claim["networks"]) & frame["data"].isin(claim["data"])]
        panels = about.groupby(["data", "network"], sort=False)
        verdicts = {where: decided(claim, panel, frame) for where, panel in panels}
        tested = {data for data, _ in verdicts}
        for data in claim["data_of_paper"]:
            if not tested & set(claim["stands_for"].get(data, [data])):
                missing = Verdict(NOT_RUN, "the data or the machine are not at hand")
                verdicts[data, " or ".join(claim["networks"])] = missing, None
        for (data, network), (verdict, finding) in verdicts.items():
            row = {"claim": claim["id"], "data": data, "network": network}
            row |= {"verdict": verdict.word, "detail": verdict.detail, "needed": verdict.needed}
            interval = finding.interval if finding else Interval(NAN)
            row |= {"statistic": finding.statistic if finding else "", **interval._asdict()}
            rows.append(row | {"p": finding.p if finding else NAN})
    return _with_holm(claims, pd.DataFrame(rows))


def _with_holm(claims: Sequence[Claim], verdicts: pd.DataFrame) -> pd.DataFrame:
    """Adjust the p-values of headlines for their number; one that does not bear it is open."""
    if verdicts.empty:
        return verdicts
    headlines = {claim["id"] for claim in claims if claim["tier"] == "headline"}
    decisive = ~verdicts["verdict"].isin([CANNOT, NOT_RUN, WITHDRAWN])
    counted = verdicts["claim"].isin(headlines) & decisive & verdicts["p"].notna()
    verdicts["p_holm"] = NAN
    verdicts.loc[counted, "p_holm"] = holm(verdicts.loc[counted, "p"].tolist())
    weak = counted & verdicts["verdict"].isin(["holds", "opposite"]) & (verdicts["p_holm"] >= 0.05)
    would = verdicts["verdict"].replace({"holds": "hold", "opposite": "be opposite"})[weak]
    after = ", but not after correction for several tests (Holm's)"
    verdicts.loc[weak, "detail"] = "alone it would " + would + after
    verdicts.loc[weak, "verdict"] = OPEN
    return verdicts


def decided(
    claim: Claim, rows: pd.DataFrame, frame: pd.DataFrame
) -> tuple[Verdict, Finding | None]:
    """Decide a claim on one data set and network.

    Args:
        claim: which.
        rows: of the data set and network.
        frame: all rows of the profile, for rules that compare data sets.
    """
    if claim["unit"] == "timing":
        return Verdict(NOT_RUN, "a time: the benchmarks decide"), None
    sound = rows[(rows["status"] == "done") & rows["value"].notna()]
    withdrawn = claim.get("withdrawn")
    profiles = set(rows["profile"]) if "profile" in rows else set()
    if (
        withdrawn
        and profiles & {*withdrawn.get("profiles", profiles)}
        and {*rows["data"]} & {*withdrawn.get("data", rows["data"])}
    ):
        why = f"{UNDECIDED}: {withdrawn['why']}"
        return Verdict(WITHDRAWN, why), None
    test = claim["test"]
    chosen = select(sound, **test.get("where", {}))
    if test.get("negated"):
        chosen = chosen.assign(value=-chosen["value"])
    if test.get("absolute"):
        chosen = chosen.assign(value=chosen["value"].abs())
    settings = dict(test["settings"])
    sides = {settings[key] for key in ("first", "second") if key in settings}
    if chosen.empty or (sides and not sides <= set(chosen[settings["between"]])):
        return Verdict(NOT_RUN, "not measured at this profile"), None
    if unmet := _unmet(claim, sound):
        return Verdict(CANNOT, unmet), None
    if "against" in test:
        reference = select(frame[frame["status"] == "done"], **test.get("where", {}))
        reference = select(reference, **test["against"]).dropna(subset="value")
        sign = -1 if test.get("negated") else 1
        settings["reference"] = reference.assign(value=sign * reference["value"])
        if settings["reference"].empty:
            return Verdict(NOT_RUN, "what it is compared with was not measured"), None
        if test["rule"] == "stronger_trend" and settings["expected"] == "lower":
            pairs = settings["reference"]
            if not correlation(pairs[settings["x"]], pairs["value"]).low > 0:
                missing = f"{settings['named']} shows no clear rise, so none can be missing here"
                return Verdict(CANNOT, missing), None
    return _found(claim, chosen, settings)


def _found(
    claim: Claim, rows: pd.DataFrame, settings: Mapping[str, Any]
) -> tuple[Verdict, Finding]:
    """Run the rule of a claim; fewer units than it needs, three for a mean, cannot decide it."""
    rule, size = claim["test"]["rule"], claim["smallest_effect"]["size"]
    finding = RULES[rule](rows, unit=claim["unit"], size=size, **settings)
    least = claim.get("least_units", LEAST_UNITS if rule in MEANS else 0)
    if (n := finding.interval.n) < least:
        few = f"{n} of at least {least} {claim['unit']}s"
        return Verdict(CANNOT, few), finding
    return decide(finding, published_effect(claim)), finding


def _unmet(claim: Claim, rows: pd.DataFrame) -> str:
    """Say which precondition of a claim fails, if one does."""
    for need in claim.get("needs", []):
        if not {*need.get("data", rows["data"])} & {*rows["data"]}:
            continue
        values = select(rows, **need["where"])["value"]
        mean = float(values.mean()) if len(values) else NAN
        most = float(values.max()) if len(values) else NAN
        checks = {
            "least": mean >= need.get("least", -math.inf),
            "most": mean <= need.get("most", math.inf),
            "some_above": most > need.get("some_above", -math.inf),
        }
        if failed := [kind for kind, met in checks.items() if kind in need and not met]:
            seen = most if failed[0] == "some_above" else mean
            return f"{need['why']}: {seen:.3g}, expected {_bound(need, failed[0])}"
    return ""


def _bound(need: Mapping[str, Any], kind: str) -> str:
    words = {"least": "at least", "most": "at most", "some_above": "some above"}
    return f"{words[kind]} {need[kind]:g}"


def on_printed_numbers(claim: Claim) -> tuple[Verdict, Finding] | None:
    """Run the rule of a claim on the numbers that the paper prints; None where it prints none."""
    if "printed" not in claim:
        return None
    rows = pd.DataFrame(claim["printed"])
    rows = rows.assign(**{c: range(len(rows)) for c in UNIT_COLUMNS.values() if c not in rows})
    return _found(claim, rows, claim["test"]["settings"])
