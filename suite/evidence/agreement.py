"""Does this machine agree? Compare what it computed with what is kept, value by value."""

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
ROUNDING = 1e-5  # relative: what another order of sums in float32 brings
SPREADS = 2.0  # standard deviations of the kept values over seeds


def compare(archive: Archive, here: Reader, *others: Archive) -> pd.DataFrame:
    r"""Compare each kept value with the one that was computed here.

    Args:
        archive: the kept results.
        here: what this machine has computed.
        others: further kept results, which may have more seeds of the same.

    Returns:
        One row a unit that both have, apart from those that are times: `metric`, `of` (network,
        data and what else tells it apart), `kept`, `here`, `difference`, `spread` (the standard
        deviation of all kept values of units that differ in their seed alone; NaN for a
        single one) and `agreement`, one of `KINDS`: two values agree within rounding if
        :math:`|a - b| \le 10^{-5} \max(|a|, |b|)`, within the spread of seeds if
        :math:`|a - b|` is at most twice that. Where there is one seed, nothing says how far
        values of other seeds lie from it.
    """
    rows = []
    for key, found in here.read_all(archive.records).items():
        record = archive.records[key]
        about = key, record.unit.get("metric", "training loss"), _words(record.unit)
        both = record.value, found.value, record.status == found.status
        rows.append((*about, _group(record.unit), *both))
    frame = pd.DataFrame(rows, columns="key metric of group kept here status".split())
    every = {key: record for one in (archive, *others) for key, record in one.records.items()}
    values = pd.Series([record.value for record in every.values()], dtype=float)
    spreads = values.groupby([_group(record.unit) for record in every.values()]).std()
    frame["spread"] = frame["group"].map(spreads)
    frame["difference"] = frame["here"] - frame["kept"]
    return frame.assign(agreement=_agreement(frame)).drop(columns=["group", "status"])


def _agreement(frame: pd.DataFrame) -> Any:
    kept, here = frame["kept"].to_numpy(float), frame["here"].to_numpy(float)
    apart = np.abs(here - kept)
    size = np.maximum(np.abs(kept), np.abs(here))
    same = frame["status"].to_numpy(bool)
    equal = same & ((here == kept) | (np.isnan(here) & np.isnan(kept)))
    spread = frame["spread"].to_numpy(float)
    ways = [equal, same & (apart <= ROUNDING * size), same & (apart <= SPREADS * spread)]
    return np.select([*ways, same & np.isfinite(apart) & np.isnan(spread)], KINDS[:4], OUTSIDE)


def _group(unit: Mapping[str, Any]) -> str:
    """Return the identity of a unit without its seed, also within that of its network."""
    return str({n: _group(v) if isinstance(v, dict) else v for n, v in unit.items() if n != "seed"})


def _words(unit: Any) -> str:
    """Describe a unit in a few words."""
    network = unit.get("training", unit)
    parts = [network["network"], network["data"]]
    for name, settings in network.get("penalties", {}).items():
        parts.append(f"{name} {settings['strength']:.3g}")
    parts += [f"{name} {value}" for name, value in unit.get("settings", {}).items()]
    return ", ".join([*parts, f"seed {network.get('seed', '–')}"]).replace("_", " ")


def counts(frame: pd.DataFrame) -> dict[str, int]:
    """Return how many values agree in each way, in the order of `KINDS`."""
    return {kind: int((frame["agreement"] == kind).sum()) for kind in KINDS}


def largest(frame: pd.DataFrame, n: int) -> pd.DataFrame:
    """Return the values that differ most: those outside first, by their difference in spreads.

    Where there is one seed, and so no spread, the difference is taken relative to the kept value.
    """
    frame = frame[frame["agreement"].isin([WITHIN, ALONE, OUTSIDE])]
    scale = frame["spread"].where(frame["spread"] > 0, frame["kept"].abs())
    order = (frame["difference"].abs() / scale).replace(np.inf, np.nan).fillna(np.inf)
    ranked = frame.assign(order=order, out=frame["agreement"] == OUTSIDE)
    ranked = ranked.sort_values(["out", "order"], ascending=False, kind="stable")
    return ranked.drop(columns=["order", "out"]).head(n)


def changed_verdicts(kept: pd.DataFrame, here: pd.DataFrame) -> pd.DataFrame:
    """Return the claims whose verdict differs here: claim, data, network, both verdicts."""
    on = ["claim", "data", "network"]
    both = kept[[*on, "verdict"]].merge(here[[*on, "verdict"]], on=on, suffixes=("_kept", "_here"))
    return both[both["verdict_kept"] != both["verdict_here"]].reset_index(drop=True)
