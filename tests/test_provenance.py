"""The provenance of a run, from the records of its units."""

from suite.runs.keep import provenance_of
from suite.store import Record

ABOUT = {"device": "a CPU", "threads": 1, "python": "3.11.7", "torch": "2.15.0", "reglib": "0.1.0"}


def record(seconds, ended, metric=None, **changes):
    unit = {"unit": "measurement", "metric": metric} if metric else {"unit": "training"}
    about = ABOUT | {"commit": "abc", "peak_bytes": 10} | changes
    return Record(unit, "done", {}, about | {"seconds": seconds, "ended": ended})


def test_units_count_once(store):
    store.write("a" * 32, record(4.0, "2026-01-01T00:00:00Z"))
    store.write("b" * 32, record(6.0, "2026-01-03T00:00:00Z", peak_bytes=30, commit="def"))
    store.write("c" * 32, record(1.0, "2026-01-02T00:00:00Z", metric="entropy"))
    keys = ["a" * 32, "b" * 32, "c" * 32, "a" * 32, "d" * 32]
    parameters = {"profile": "smoke", "seeds": [0]}
    summary = provenance_of("chapter", parameters, store.read_all(keys).values())
    assert (summary["units"], summary["seconds"], summary["peak_bytes"]) == (3, 11.0, 30)
    assert summary["ended"] == {"first": "2026-01-01T00:00:00Z", "last": "2026-01-03T00:00:00Z"}
    assert (summary["device"], summary["commit"]) == (["a CPU"], ["abc", "def"])
    assert summary["parameters"] == parameters
