"""The provenance of a run."""

from collections.abc import Iterable, Mapping
from typing import Any

from suite.store import Reader

SURROUNDINGS = ("device", "threads", "python", "torch", "reglib", "commit")


def provenance_of(
    chapter: str, profile: str, store: Reader, keys: Iterable[str], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Summarise the provenance of stored units.

    Args:
        chapter, profile, parameters: of the run.
        store: holds the units.
        keys: of the units; duplicates count once.

    Returns:
        The number of units, total seconds, the times at which the first and the last ended, peak
        memory, and all devices, versions and commits.
    """
    records = store.read_all(dict.fromkeys(keys)).values()
    ended = sorted(record.provenance["ended"] for record in records)
    return {
        "chapter": chapter,
        "profile": profile,
        "parameters": dict(parameters),
        "units": len(records),
        "seconds": round(sum(record.provenance["seconds"] for record in records), 1),
        "ended": {"first": ended[0], "last": ended[-1]} if ended else {},
        "peak_bytes": max((record.provenance["peak_bytes"] for record in records), default=0),
        **{name: sorted({record.provenance[name] for record in records}) for name in SURROUNDINGS},
    }
