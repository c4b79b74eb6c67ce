"""Where the numbers of a run come from."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from suite.store import Reader

SURROUNDINGS = ("device", "threads", "python", "torch", "reglib", "commit")


def provenance_of(
    chapter: str, profile: str, store: Reader, keys: Iterable[str], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Sum up the provenance of stored units.

    Args:
        chapter, profile, parameters: of the run.
        store: what has the units.
        keys: of the units, each counted once.

    Returns:
        The number of units, seconds of work (in all, and the median of each kind of unit), when
        the first and last ended, peak memory, and every device, version and commit that occurs.
    """
    records = store.read_all(dict.fromkeys(keys)).values()
    seconds = defaultdict(list)
    for record in records:
        seconds[record.unit.get("metric", "training")].append(record.provenance["seconds"])
    ended = sorted(record.provenance["ended"] for record in records)
    return {
        "chapter": chapter,
        "profile": profile,
        "parameters": dict(parameters),
        "units": len(records),
        "seconds": round(sum(sum(values) for values in seconds.values()), 1),
        "median_seconds": {kind: round(median(values), 2) for kind, values in seconds.items()},
        "ended": {"first": ended[0], "last": ended[-1]} if ended else {},
        "peak_bytes": max((record.provenance["peak_bytes"] for record in records), default=0),
        **{name: sorted({record.provenance[name] for record in records}) for name in SURROUNDINGS},
    }
