"""Whether this machine agrees: compare the values that it computed with the kept ones."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from suite.store import Archive, Reader

EQUAL, ROUNDED, WITHIN, ALONE, OUTSIDE = KINDS = (
    "equal to the digit",
    "equal within rounding",
    "within the spread of seeds",
    "differs, one seed only",
    "outside",
)
ROUNDING = 1e-5  # relative: the effect of another order of sums in float32
SPREADS = 2.0  # standard deviations of the kept values over seeds


def compare(archive: Archive, here: Reader, *others: Archive) -> pd.DataFrame:
    r"""Compare each kept value with the value that was computed here.

    Args:
        archive: the kept results.
        here: the results of this machine.
        others: further kept results, which may have more seeds.

    Returns:
        One row for each unit that both have: `metric`, `of` (network, data and settings), `kept`,
        `here`, `difference`, `spread` (the standard deviation of all kept values of units that
        differ in their seed alone; NaN for a single one) and `agreement`, one of `KINDS`. Two
        values agree within rounding if :math:`|a - b| \le 10^{-5} \max(|a|, |b|)`, and within the
        spread of seeds if :math:`|a - b|` is at most twice the spread. One seed has no spread.
    """
    rows = []
    for key, computed in here.read_all(archive.records).items():
        kept = archive.records[key]
        unit, same = kept.unit, kept.status == computed.status
        metric = unit.get("metric", "training loss")
        rows.append((metric, _describe(unit), _group(unit), kept.value, computed.value, same))
    frame = pd.DataFrame(rows, columns="metric of group kept here same_status".split())
    records = {key: record for a in (archive, *others) for key, record in a.records.items()}
    values = pd.Series([record.value for record in records.values()], dtype=float)
    spreads = values.groupby([_group(record.unit) for record in records.values()]).std()
    frame["spread"] = frame["group"].map(spreads)
    frame["difference"] = frame["here"] - frame["kept"]
    return frame.assign(agreement=_classify(frame)).drop(columns=["group", "same_status"])


def _classify(frame: pd.DataFrame) -> Any:
    kept, here, spread = (frame[name].to_numpy(float) for name in ("kept", "here", "spread"))
    distance = np.abs(here - kept)
    equal = (here == kept) | (np.isnan(here) & np.isnan(kept))
    rounded = distance <= ROUNDING * np.maximum(np.abs(kept), np.abs(here))
    alone = np.isfinite(distance) & np.isnan(spread)
    differs = ~frame["same_status"].to_numpy(bool)
    conditions = [differs, equal, rounded, distance <= SPREADS * spread, alone]
    return np.select(conditions, [OUTSIDE, *KINDS[:4]], OUTSIDE)


def _group(unit: Mapping[str, Any]) -> str:
    """Return the identity of a unit without its seed and the seed of its network."""
    return str({n: _group(v) if isinstance(v, dict) else v for n, v in unit.items() if n != "seed"})


def _describe(unit: Any) -> str:
    """Describe a unit in a few words."""
    network = unit.get("training", unit)
    parts = [network["network"], network["data"]]
    for name, settings in network.get("penalties", {}).items():
        parts.append(f"{name} {settings['strength']:.3g}")
    parts += [f"{name} {value}" for name, value in unit.get("settings", {}).items()]
    return ", ".join([*parts, f"seed {network.get('seed', '–')}"]).replace("_", " ")


def counts(frame: pd.DataFrame) -> dict[str, int]:
    """Count the values of each of `KINDS`, in their order."""
    return {kind: int((frame["agreement"] == kind).sum()) for kind in KINDS}


def largest(frame: pd.DataFrame, n: int) -> pd.DataFrame:
    """Return the `n` largest differences: those outside first, in units of the spread.

    One seed has no spread: its difference is relative to the kept value.
    """
    frame = frame[frame["agreement"].isin([WITHIN, ALONE, OUTSIDE])]
    scale = frame["spread"].where(frame["spread"] > 0, frame["kept"].abs())
    size = (frame["difference"].abs() / scale).fillna(np.inf)
    order = np.lexsort((-size, frame["agreement"] != OUTSIDE))
    return frame.iloc[order[:n]]


def changed_verdicts(kept: pd.DataFrame, here: pd.DataFrame) -> pd.DataFrame:
    """Return the claims whose verdict differs here: claim, data, network, both verdicts."""
    on = ["claim", "data", "network"]
    pairs = kept[[*on, "verdict"]].merge(here[[*on, "verdict"]], on=on, suffixes=("_kept", "_here"))
    return pairs[pairs["verdict_kept"] != pairs["verdict_here"]].reset_index(drop=True)
